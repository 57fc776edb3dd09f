"""`rrto demo`: compare the latency of a small model in all modes, on an emulated link."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment

from .bench import emulated, measure

TRIP = 10.0   # round trip of the emulated link in ms


def add_parser(verbs: Any) -> None:
    """Declare the verb."""
    parser = verbs.add_parser('demo', help='compare the modes on an emulated link of 10 ms')
    parser.add_argument('--out', type=Path, default=Path('runs/rrto'), metavar='DIR',
                        help='directory for the picture (default: runs/rrto)')
    parser.set_defaults(call=call)


def call(options: Any) -> int:
    """Run the verb."""
    os.environ.update(dds_environment(ReachConfig()))  # keep all messages on this machine
    options.out.mkdir(parents=True, exist_ok=True)   # if this fails, measure nothing
    print('A network of 50 layers on a server behind an emulated link of 10 ms round trip.\n'
          'This takes about 30 s on two idle cores; milliseconds per inference:', flush=True)
    from .picture import draw  # imports matplotlib
    every = {}
    for mode, _, figures in measure('small', 32, 20, [emulated(TRIP, 1000.0)]):
        print(f'  {mode:12} {figures["median_ms"]:8.1f}', flush=True)
        every[mode] = figures['every_ms']
    path = options.out / 'demo.png'
    draw(every, TRIP, path)
    print(f'drawn in {path}')
    return 0
