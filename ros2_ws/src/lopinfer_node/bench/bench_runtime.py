"""Compares measured and estimated latency; robot and server are two processes connected by DDS.

Each side computes on one thread. A factor slows the robot down, and both processes emulate
the link. The program prints one JSON line. For each model, bandwidth and method, the line
contains the median latency and the latency that the plan expects, both in seconds, and the
largest error of the outputs.

`bench_runtime.py [--slowdown X] [--requests N] [MODEL[@SIDE] ...]`; SIDE is the side of the square
input in pixels (default 224).
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / 'test'))
from lopinfer_node.cli.rig import Rig, private_domain  # noqa: E402
from lopinfer_node.model.traced import trace  # noqa: E402
from lopinfer_node.runtime.measure import measure  # noqa: E402
from models import named  # noqa: E402

METHODS = ('server-only', 'dsccs', 'lopinfer')
RATES = (2e6, 4e6, 8e6, 12e6, 20e6)
DELAY = 0.002


def row(measured):
    return {'median_s': round(measured.median, 5), 'estimate_s': round(measured.estimate, 5),
            'off': round(measured.median / measured.estimate - 1, 3),
            'overlap_s': round(measured.overlap, 5), 'error': measured.error}


def model_rows(name, options, folder):
    """Measure one model and return the results of each method at each bandwidth.

    `device-only` is measured only at the first bandwidth, because it does not use the link.
    """
    name, _, side = name.partition('@')
    model = named(name)
    example = torch.randn(1, 3, *2 * [int(side or 224)],
                          generator=torch.Generator().manual_seed(0))
    profile = measure(trace(model, example), slowdown=options.slowdown)
    found = {}
    for rate in RATES:
        with Rig(model, example, rate, DELAY, folder, options.slowdown) as rig:
            methods = METHODS if found else ('device-only', *METHODS)
            found[f'{rate / 1e6:g}'] = {
                method: row(rig.measure(method, profile, options.requests, DELAY))
                for method in methods}
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('models', nargs='*', default=['densenet121', 'unet', 'vgg11_bn'])
    parser.add_argument('--slowdown', type=float, default=3.0)
    parser.add_argument('--requests', type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with private_domain(), tempfile.TemporaryDirectory() as folder:
        rows = {name: model_rows(name, options, Path(folder)) for name in options.models}
    print(json.dumps({'bench': 'lopinfer_runtime', 'slowdown': options.slowdown, 'models': rows}))


if __name__ == '__main__':
    main()
