"""`lopinfer bench`: measure the time that sharing adds to an inference on a link without delay."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING

from fleet_env.command import at_least_one

from .choice import add_device, measured

if TYPE_CHECKING:
    import torch


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser(
        'bench', help='measure the overhead over plain server-only execution, on loopback')
    parser.add_argument('models', nargs='*', metavar='MODEL', default=['resnet18', 'vgg11_bn'],
                        help='models of torchvision or timm (default: resnet18 vgg11_bn)')
    parser.add_argument('--requests', type=at_least_one, default=30, metavar='N',
                        help='inferences to measure (default: 30)')
    add_device(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    print(f'{", ".join(options.models)}: {options.requests} inferences by a server, and as many '
          'without; with the default options this takes about 35 s on two idle cores',
          file=sys.stderr, flush=True)
    import torch  # takes seconds

    from ..model import zoo
    from .rig import Rig, private_domain

    torch.set_num_threads(1)
    rows = []
    with private_domain():
        for name in options.models:
            model = zoo.load(name)
            example = torch.randn(zoo.IMAGE, generator=torch.Generator().manual_seed(0))
            with Rig(model, example, None, device=options.device) as rig:
                profile = measured(rig.traced)
                shared = rig.measure('server-only', profile, options.requests, 0.0)
            plain = statistics.median(_plain(model, example, options.requests))
            rows.append({'model': name, 'plain_ms': plain * 1e3, 'shared_ms': shared.median * 1e3,
                         'server_ms': shared.server * 1e3, 'sent_bytes': shared.sent,
                         'overhead_ms': (shared.median - plain) * 1e3,
                         'overhead_share': shared.median / plain - 1, 'error': shared.error})
    print(json.dumps({'bench': 'lopinfer_overhead', 'requests': options.requests, 'rows': rows}))
    return 0


def _plain(model: torch.nn.Module, example: torch.Tensor, requests: int) -> list[float]:
    """Return the times of calls of the unchanged model, in seconds."""
    import torch
    seconds = []
    with torch.inference_mode():
        for _ in range(3 + requests):
            before = time.perf_counter()
            model(example)
            seconds.append(time.perf_counter() - before)
    return seconds[3:]
