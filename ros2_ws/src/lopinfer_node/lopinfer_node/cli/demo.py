"""`lopinfer demo`: run a server and a robot on this machine, and measure every method."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from fleet_env.command import at_least_one

from ..model import zoo
from ..model.traced import trace
from ..planning.plots import draw_measured
from .choice import (
    MODEL_HELP,
    above_zero,
    add_device,
    add_weights,
    bandwidths,
    example_input,
    measured,
    print_table,
    shape,
)
from .rig import Measured, Rig, private_domain

METHODS = ('device-only', 'server-only', 'dsccs', 'lopinfer')
DELAY = 0.002   # delay of the emulated link, seconds in each direction


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser(
        'demo', help='start a server, split a model, compare all methods on this machine')
    parser.add_argument('model', nargs='?', default='vgg11_bn', metavar='MODEL',
                        help=f'{MODEL_HELP.split(", or a pub")[0]} (default: vgg11_bn)')
    add_weights(parser)
    parser.add_argument('--input', type=shape, default=zoo.IMAGE, metavar='1x3x224x224',
                        help='shape of the input (default: 1x3x224x224)')
    parser.add_argument('--bandwidth', type=bandwidths, default=bandwidths('2,5,10'),
                        metavar='2,5,10', help='rates of the emulated link, MB/s (default: 2,5,10)')
    parser.add_argument('--slowdown', type=above_zero, default=3.0, metavar='X',
                        help='slow the robot down by this factor (default: 3)')
    parser.add_argument('--requests', type=at_least_one, default=5, metavar='N',
                        help='inferences per method and bandwidth (default: 5)')
    add_device(parser)
    parser.add_argument('--out', type=Path, default=Path('runs/lopinfer'), metavar='DIR',
                        help='directory for the picture (default: runs/lopinfer)')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    model = zoo.load(options.model, weights=options.weights)
    example = example_input(options.input).normal_(generator=torch.Generator().manual_seed(0))
    options.out.mkdir(parents=True, exist_ok=True)   # if this fails, measure nothing
    profile = measured(trace(model, example), slowdown=options.slowdown)
    print(f'{options.model}: robot and server are two processes with one thread each, the robot '
          f'{options.slowdown:g} times as slow; the link is emulated, {DELAY * 1e3:g} ms each way')
    found: dict[float, list[Measured]] = {}
    with private_domain(), tempfile.TemporaryDirectory() as folder:
        for rate in options.bandwidth:
            with Rig(model, example, rate, DELAY, Path(folder), options.slowdown,
                     options.device) as rig:
                # The method device-only does not use the link, so measure it only at the first
                # bandwidth.
                alone = [rows[0] for rows in found.values()][:1]
                found[rate] = alone + [rig.measure(method, profile, options.requests, DELAY)
                                       for method in METHODS[len(alone):]]
            _show(rate, found[rate])
    error = max(m.error for rows in found.values() for m in rows)
    print(f'largest difference from the unsplit model: {error:.1e} of its largest output')
    path = options.out / 'demo.png'
    draw_measured({rate: {m.method: (m.median, m.estimate) for m in rows}
                   for rate, rows in found.items()}, path, options.model)
    print(f'drawn in {path}')
    return 0


def _show(rate: float, rows: list[Measured]) -> None:
    print_table(['method', 'ms', 'expected', 'robot', 'server', 'transfer', 'hidden'],
                [[m.method, *(f'{s * 1e3:.0f}' for s in (
                    m.median, m.estimate, m.device, m.server, m.transfer, m.overlap))]
                 for m in rows], f'{rate / 1e6:g} MB/s, median ms per inference')
