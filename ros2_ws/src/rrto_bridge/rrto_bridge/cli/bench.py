"""`rrto bench`: latency of one model in every mode, over links of several round trips."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from ..settings import Settings
from .run import own_server, program_environment

MODES = ('native', 'replay', 'async', 'cached', 'rpc')
SLOW = ('cached', 'rpc')   # a round trip for every call: fewer inferences are enough


def add_parser(verbs: Any) -> None:
    """Declare the verb."""
    parser = verbs.add_parser('bench', help='latency in every mode, over emulated links')
    parser.add_argument('--model', default='small', help='small, or a name of torchvision')
    parser.add_argument('--size', type=int, default=32, help='rows and columns of the image')
    parser.add_argument('--round-trips', type=float, nargs='+', default=[1, 5, 10, 30],
                        metavar='MS', help='emulated round trips, ms (default: 1 5 10 30)')
    parser.add_argument('--rate', type=float, default=1000.0, help='rate of the link, Mbit/s')
    parser.add_argument('--count', type=int, default=30, help='inferences that are timed')
    parser.set_defaults(call=call)


def call(options: Any) -> int:
    """Run the verb: prints one line of JSON per mode and link."""
    for mode, round_trip, result in measure(options):
        print(json.dumps({'bench': 'rrto', 'model': options.model, 'mode': mode,
                          'round_trip_ms': round_trip, **result}), flush=True)
    return 0


def measure(options: Any) -> Iterator[tuple[str, float, dict[str, float]]]:
    """(mode, round trip, figures) of every combination; device-only first."""
    command = [sys.executable, '-m', 'rrto_bridge.measure', options.model, str(options.size)]
    yield 'device-only', 0.0, _run([*command, str(options.count)], dict(os.environ))
    for round_trip in options.round_trips:
        latency = round_trip / 2e3
        with _server(options.rate, latency) as name:
            for mode in MODES:
                settings = Settings('replay' if mode == 'native' else mode, name,
                                    link_rate=options.rate, link_latency=latency)
                count = options.count if mode not in SLOW else max(2, options.count // 10)
                extra = ['native'] if mode == 'native' else []
                yield mode, round_trip, _run([*command, str(count), *extra],
                                             program_environment(settings))


@contextlib.contextmanager
def _server(rate: float, latency: float) -> Iterator[str]:
    with own_server(link_rate=rate, link_latency=latency, threads=1) as name:
        yield name


def _run(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures
