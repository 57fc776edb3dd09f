"""`lopinfer demo`: run a server and a robot on this machine, and measure every method."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from fleet_env.command import at_least_one

from .choice import (
    MODEL_HELP,
    above_zero,
    add_device,
    add_input,
    add_weights,
    bandwidths,
    example_input,
    measured,
)

if TYPE_CHECKING:
    from .rig import Measured

METHODS = ('device-only', 'server-only', 'dsccs', 'lopinfer')
REPEATS = 3     # passes over the model, at each share, that measure the robot
HEAD = f'{"method":<12}' + ''.join(
    f'{name:>10}' for name in ('ms', 'expected', 'robot', 'server', 'transfer', 'hidden'))
DELAY = 0.002   # delay of the emulated link, seconds in each direction


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser(
        'demo', help='start a server, split a model, compare all methods on this machine')
    parser.add_argument('model', nargs='?', default='vgg11_bn', metavar='MODEL',
                        help=f'{MODEL_HELP.split(", or a pub")[0]} (default: vgg11_bn)')
    add_weights(parser)
    add_input(parser)
    parser.add_argument('--bandwidth', type=bandwidths, default=bandwidths('2,10'),
                        metavar='2,10', help='rates of the emulated link, MB/s (default: 2,10)')
    parser.add_argument('--slowdown', type=above_zero, default=3.0, metavar='X',
                        help='slow the robot down by this factor (default: 3)')
    parser.add_argument('--requests', type=at_least_one, default=3, metavar='N',
                        help='inferences per method and bandwidth (default: 3)')
    add_device(parser)
    parser.add_argument('--out', type=Path, default=Path('runs/lopinfer'), metavar='DIR',
                        help='directory for the picture (default: runs/lopinfer)')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    options.out.mkdir(parents=True, exist_ok=True)   # if this fails, measure nothing
    print(f'{options.model}: robot and server are two processes with one thread each, the robot '
          f'{options.slowdown:g} times as slow; the link is emulated, {DELAY * 1e3:g} ms each way.'
          '\nWith the default options this takes about 45 s on two idle cores, the '
          'first time after an installation up to half a minute more, to compile. First both sides '
          'measure the model.', flush=True)
    import torch  # takes seconds

    from ..model import zoo
    from ..planning.plots import draw_measured
    from ..planning.table import warm_up
    from .rig import Rig, private_domain
    torch.set_num_threads(1)
    model = zoo.load(options.model, weights=options.weights)
    example = example_input(options.input).normal_(generator=torch.Generator().manual_seed(0))
    found: dict[float, list[Measured]] = {}
    with private_domain(), Rig(model, example, options.bandwidth[0], DELAY,
                               slowdown=options.slowdown, device=options.device) as rig:
        # Nobody waits for this: the server tries the model meanwhile, on the other core.
        threading.Thread(target=warm_up, args=[rig.traced.graph], daemon=True).start()
        profile = measured(rig.traced, REPEATS, options.slowdown)
        for rate in options.bandwidth:
            rig.set_rate(rate)
            print(f'{rate / 1e6:g} MB/s, median ms per inference\n{HEAD}', flush=True)
            # The method device-only does not use the link, so measure it only at the first
            # bandwidth.
            found[rate] = [rows[0] for rows in found.values()][:1]
            for method in METHODS:
                if method not in (m.method for m in found[rate]):
                    found[rate].append(rig.measure(method, profile, options.requests, DELAY))
                _show(next(m for m in found[rate] if m.method == method))
    error = max(m.error for rows in found.values() for m in rows)
    print(f'largest difference from the unsplit model: {error:.1e} of its largest output')
    path = options.out / 'demo.png'
    draw_measured({rate: {m.method: (m.median, m.estimate) for m in rows}
                   for rate, rows in found.items()}, path, options.model)
    print(f'drawn in {path}')
    return 0


def _show(m: Measured) -> None:
    numbers = (m.median, m.estimate, m.device, m.server, m.transfer, m.overlap)
    print(f'{m.method:<12}' + ''.join(f'{s * 1e3:>10.0f}' for s in numbers), flush=True)
