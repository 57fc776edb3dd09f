"""Measures the codecs of a model on a GPU: CUDA kernels there, and loops on the host.

The model is ConvMLP-M with 17.4 M elements. For each codec, this bench measures these durations in
milliseconds, take and add once on the GPU and once on one core of the CPU:

- take: encode all segments into bytes on the host;
- add: decode these bytes, and add the values;
- memcpy: copy the float32 values of all segments within the GPU.

Then it measures an iteration of a worker, on the GPU and on the CPU, and of a server on the CPU,
that push and pull all rows. At last it measures what an iteration costs in addition if the rows of
the model on the GPU are on the host: the copy of the gradient to the host, and that of the weights
to the GPU. With ``--device cpu`` it measures only these copies, between two places of the host's
memory. It prints one JSON line. Without a GPU or without cupy, it prints a message.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from unittest import mock

import numpy as np
import torch
from hot_path import Pair, model
from rog_core import cuda
from rog_core.arrays import Array, difference_magnitude, zeros_like
from rog_core.codecs import codec_names, get_codec
from rog_core.model.partition import RowPartition
from rog_core.protocol.config import TransferConfig
from rog_core.worker import learner

Put = Callable[[np.ndarray], Array]


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Return the median duration of a call in milliseconds, including its work on the GPU.

    The first call compiles kernels and is not measured.
    """
    call()
    times = []
    for _ in range(repeats):
        _wait()
        begin = time.perf_counter()
        call()
        _wait()
        times.append(time.perf_counter() - begin)
    return round(1e3 * statistics.median(times), 3)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(codec: str, partition: RowPartition, put: Put, repeats: int) -> dict[str, float]:
    coder, ids = get_codec(codec), np.arange(partition.segments)
    drawn = np.random.default_rng(1).standard_normal(partition.elements, np.float32)
    found = {}
    for where, values in (('', put(drawn)), ('host_', drawn)):
        target = zeros_like(values)
        magnitude = difference_magnitude(values, target, partition.offsets)
        data = coder.difference(partition, values, target, ids, magnitude)
        calls = {'take': lambda v=values, t=target, m=magnitude: coder.difference(
                     partition, v, t, ids, m),
                 'add': lambda t=target, d=data: coder.add(partition, t, ids, d, 0.0)}
        if not where:
            calls = {'memcpy': lambda v=values, t=target: t.copy_(v), **calls}
        found |= {f'{where}{name}_ms': milliseconds(call, repeats) for name, call in calls.items()}
    return found


def iterations(partition: RowPartition, put: Put, repeats: int) -> dict[str, float]:
    """Measure one iteration of a worker and a server with the codec onebit, in ms.

    The two results are for a worker on the GPU and for one on the host.
    """
    return {name: milliseconds(Pair(partition, 2, 14000, put=there).iterate, repeats)
            for name, there in (('iteration_ms', put), ('host_iteration_ms', np.copy))}


def copies(shapes: Sequence[tuple[str, tuple[int, ...]]], device: str, repeats: int
           ) -> dict[str, float]:
    """Measure the copies of an iteration whose rows are on the host, in ms."""
    network = torch.nn.ParameterDict({name.replace('.', '_'): torch.nn.Parameter(
        torch.ones(shape, device=device)) for name, shape in shapes})
    with mock.patch.object(learner, '_has_loops', lambda values, codec: False):
        robot = learner.Learner(network, 'robot', 1, TransferConfig('row', 'onebit'))
    return {'gradient_down_ms': milliseconds(lambda: robot.result, repeats),
            'weights_up_ms': milliseconds(robot.load, repeats)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--repeats', type=int, default=9)
    parser.add_argument('--device', default='cuda')
    options = parser.parse_args()
    shapes = [(p.name, p.shape) for p in model('onebit').parameters]
    if options.device == 'cpu':
        print(json.dumps({'bench': 'cuda_codecs', 'device': 'cpu',
                          **copies(shapes, 'cpu', options.repeats)}))
        return
    if not torch.cuda.is_available():
        print('cuda_codecs: no GPU here, nothing is measured', file=sys.stderr)
        return
    line: dict = {'bench': 'cuda_codecs', 'device': torch.cuda.get_device_name(options.device)}

    def put(values: np.ndarray) -> Array:
        return torch.tensor(values, device=options.device)

    if not cuda.usable(put(np.zeros(1, np.float32))):
        print('cuda_codecs: cupy is not installed, nothing is measured', file=sys.stderr)
        return
    for codec in codec_names():
        line[codec] = measure(codec, model(codec), put, options.repeats)
    line |= iterations(model('onebit'), put, options.repeats)
    line |= copies(shapes, options.device, options.repeats)
    print(json.dumps(line))


if __name__ == '__main__':
    main()
