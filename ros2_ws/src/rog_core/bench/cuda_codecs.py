"""Compares CUDA kernels with PyTorch operations, for the codecs on a GPU.

The model is ConvMLP-M with 17.4 M elements. For each codec, this bench measures these durations in
milliseconds, take and add once with CUDA kernels and once with PyTorch operations:

- take: encode all segments, and copy the bytes to the host;
- add: copy the bytes to the GPU, decode them, and add the values;
- memcpy: copy the float32 values of all segments within the GPU.

Then it measures one iteration of a worker and a server that push and pull all rows. It prints one
JSON line. Without a GPU or without cupy, it measures nothing and prints a message.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from unittest import mock

import numpy as np
import torch
from hot_path import Pair, model
from rog_core import cuda
from rog_core.arrays import Array, difference_magnitude, on_device, zeros_like
from rog_core.codecs import codec_names, get_codec
from rog_core.model.partition import RowPartition

Put = Callable[[np.ndarray], Array]


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Return the median duration of a call in milliseconds, including its work on the GPU.

    The first call compiles kernels and is not measured.
    """
    call()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return round(1e3 * statistics.median(times), 3)


def by_torch(call: Callable[[], object], repeats: int) -> float:
    with mock.patch.object(cuda, 'usable', lambda values: False):
        return milliseconds(call, repeats)


def measure(codec: str, partition: RowPartition, put: Put, repeats: int) -> dict[str, float]:
    coder, ids = get_codec(codec), np.arange(partition.segments)
    values = put(np.random.default_rng(1).standard_normal(partition.elements, np.float32))
    target = zeros_like(values)
    magnitude = difference_magnitude(values, target, partition.offsets)
    data = coder.difference(partition, values, target, ids, magnitude)

    def take():
        coder.difference(partition, values, target, ids, magnitude)

    def add():
        coder.add(partition, target, ids, data, 0.0)

    return {'memcpy_ms': milliseconds(lambda: target.copy_(values), repeats),
            'take_ms': milliseconds(take, repeats), 'torch_take_ms': by_torch(take, repeats),
            'add_ms': milliseconds(add, repeats), 'torch_add_ms': by_torch(add, repeats)}


def iterations(partition: RowPartition, put: Put, repeats: int) -> dict[str, float]:
    """Measure one iteration of a worker and a server on the GPU with the codec onebit, in ms.

    The two results are for CUDA kernels and for PyTorch operations.
    """
    return {name: clock(Pair(partition, 2, 14000, put=put).iterate, repeats)
            for name, clock in (('iteration_ms', milliseconds), ('torch_iteration_ms', by_torch))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--repeats', type=int, default=9)
    parser.add_argument('--device', default='cuda')
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print('cuda_codecs: no GPU here, nothing is measured', file=sys.stderr)
        return
    line: dict = {'bench': 'cuda_codecs', 'device': torch.cuda.get_device_name(options.device)}

    def put(values: np.ndarray) -> Array:
        return on_device(values, options.device)

    if not cuda.usable(put(np.zeros(1, np.float32))):
        print('cuda_codecs: cupy is not installed, nothing is measured', file=sys.stderr)
        return
    for codec in codec_names():
        line[codec] = measure(codec, model(codec), put, options.repeats)
    line |= iterations(model('onebit'), put, options.repeats)
    print(json.dumps(line))


if __name__ == '__main__':
    main()
