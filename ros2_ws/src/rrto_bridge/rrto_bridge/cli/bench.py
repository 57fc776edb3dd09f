"""`rrto bench`: measure a model's latency in every mode, over several emulated links."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fleet_env.command import at_least_one
from fleet_env.errors import FleetEnvError
from fleet_env.settings.base import from_flat
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment

from ..client.settings import Settings
from .run import for_program, own_server

MODES = ('native', 'replay', 'async', 'cached', 'rpc')
Figures = dict[str, Any]
# These modes are slow, because nearly every call makes a round trip. Therefore the bench times only
# a tenth of the usual number of inferences.
SLOW = ('cached', 'rpc')


def add_parser(verbs: Any) -> None:
    """Declare the verb."""
    parser = verbs.add_parser('bench', help='latency in every mode, over emulated links')
    parser.add_argument('--model', default='small',
                        help='small, or the name of a torchvision model')
    parser.add_argument('--size', type=at_least_one, default=32,
                        help='rows and columns of the image')
    parser.add_argument('--round-trips', type=float, nargs='+', default=[1, 5, 10, 30],
                        metavar='MS', help='emulated round trips, ms (default: 1 5 10 30)')
    parser.add_argument('--rate', type=float, default=1000.0, help='rate of the link, Mbit/s')
    parser.add_argument('--traces', nargs='+', default=[], metavar='TRACE',
                        help='emulate recorded links instead: indoor, outdoor or a file; each with '
                             'the first round trip')
    parser.add_argument('--count', type=at_least_one, default=30, help='number of timed inferences')
    parser.set_defaults(call=call)



def call(options: Any) -> int:
    """Run the verb: print one line of JSON per mode and link."""
    os.environ.update(dds_environment(ReachConfig()))  # keep all messages on this machine
    try:
        for _, link in _links(options):
            from_flat(Settings, link).shaped_link()
    except FleetEnvError as error:
        raise SystemExit(f'rrto: {error}') from error
    print(f'{options.model}: latency without a server, then with one in {len(MODES)} modes on each '
          'link; with the default options this takes about 3 minutes', file=sys.stderr, flush=True)
    for mode, link, result in measure(options.model, options.size, options.count, _links(options)):
        del result['every_ms']
        print(json.dumps({'bench': 'rrto', 'model': options.model, 'mode': mode, **link, **result}),
              flush=True)
    return 0


def measure(model: str, size: int, count: int, links: Iterable[tuple[Figures, Figures]]
            ) -> Iterator[tuple[str, Figures, Figures]]:
    """Yield (mode, description of the link, figures) for each measurement.

    The first measurement has the mode 'device-only': the model runs without a server. Then all
    modes are measured on each link. Program and server stand for two machines. So each of them gets
    half of this machine's processors, if this machine has at least two.

    ``links``: for each link a description and the settings that emulate the link, see `emulated`.
    ``size``: rows and columns of the image. ``count``: number of timed inferences.
    """
    command = [sys.executable, '-m', 'rrto_bridge.cli.measure', model, str(size)]
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    with _on(cores[:half]):
        yield 'device-only', {}, _run([*command, str(count)], dict(os.environ))
    for said, link in links:
        with _on(cores[-half:]), own_server(threads=1, **link) as name, _on(cores[:half]):
            for mode in MODES:
                settings = from_flat(Settings, {
                    'mode': 'replay' if mode == 'native' else mode, 'server': name, **link})
                times = count if mode not in SLOW else max(2, count // 10)
                extra = ['native'] if mode == 'native' else []
                yield mode, said, _run(*for_program([*command, str(times), *extra], settings))


@contextmanager
def _on(cores: list[int]) -> Iterator[None]:
    """Return a context in which new processes run only on the processors `cores`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def emulated(trip: float, rate: float) -> tuple[Figures, Figures]:
    """Return the description and the settings of a link; ``trip`` in ms, ``rate`` in Mbit/s."""
    return {'round_trip_ms': trip}, {'link.rate': rate, 'link.latency': trip / 2e3}


def _links(options: Any) -> Iterator[tuple[Figures, Figures]]:
    if not options.traces:
        yield from (emulated(trip, options.rate) for trip in options.round_trips)
    trip = options.round_trips[0]
    for trace in options.traces:
        yield ({'trace': trace, 'round_trip_ms': trip},
               {'link.trace': trace, 'link.latency': trip / 2e3, 'link_epoch': time.time()})


def _run(command: list[str], environment: dict[str, str]) -> Figures:
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)  # the program has printed the reason
    figures: Figures = json.loads(done.stdout)
    return figures
