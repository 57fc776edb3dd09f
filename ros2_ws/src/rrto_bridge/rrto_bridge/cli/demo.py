"""`rrto demo`: one program, once with a round trip per call and once replayed, side by side."""

from __future__ import annotations

import os
from typing import Any

from fleet_env.fleet import ReachConfig
from fleet_ros.environment import dds_environment

from .bench import emulated, measure


def add_parser(verbs: Any) -> None:
    """Declare the verb."""
    parser = verbs.add_parser('demo', help='what replay gains on a link of 10 ms, on this machine')
    parser.set_defaults(call=call)


def call(options: Any) -> int:
    """Run the verb."""
    os.environ.update(dds_environment(ReachConfig()))  # whatever is set, it stays here
    print('A network of 50 layers on a server behind an emulated link of 10 ms round trip;\n'
          'milliseconds per inference:', flush=True)
    for mode, _, figures in measure('small', 32, 20, [emulated(10.0, 1000.0)]):
        print(f'  {mode:12} {figures["median_ms"]:8.1f}', flush=True)
    return 0
