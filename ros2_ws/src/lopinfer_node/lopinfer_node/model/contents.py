"""Checksums of the memory of weights: detect writes that PyTorch's version counter misses.

The version counter misses three kinds of writes: by another process through shared memory, by
NumPy through an array on the same memory, and to a weight that was created in inference mode.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
import torch

PART = 1 << 20     # number of bytes that one checksum covers
SAMPLE = 256       # bytes of each weight that every call of `look` reads


class Contents:
    """Checksums of the memory of CPU tensors and arrays, computed in the constructor.

    The object keeps the memory alive, so that no new weight gets the address of a freed weight.
    """

    def __init__(self, held: Mapping[str, torch.Tensor | np.ndarray]) -> None:
        memories = {name: memory for name, value in held.items()
                    if (memory := _memory(value)) is not None and memory.nbytes}
        self._samples = [(name, _middle(memory)) for name, memory in memories.items()]
        self._parts = [(name, memory[at:at + PART]) for name, memory in memories.items()
                       for at in range(0, memory.nbytes, PART)]
        self._sums = [[zlib.crc32(part) for _, part in parts]
                      for parts in (self._samples, self._parts)]
        self._next = 0

    def look(self, nbytes: int) -> str:
        """Check a sample of each weight, and about ``nbytes`` further bytes.

        These bytes follow the bytes that the previous call checked. The bytes of all weights
        count as one sequence, so successive calls together check all bytes. Return the name of a
        weight that has changed, or ''.
        """
        for (name, part), known in zip(self._samples, self._sums[0], strict=True):
            if zlib.crc32(part) != known:
                return name
        for _ in self._parts:
            name, part = self._parts[self._next]
            if zlib.crc32(part) != self._sums[1][self._next]:
                return name
            self._next = (self._next + 1) % len(self._parts)
            nbytes -= part.nbytes
            if nbytes <= 0:
                break
        return ''


def _middle(memory: memoryview) -> memoryview:
    start = max(0, (memory.nbytes - SAMPLE) // 2)
    return memory[start:start + SAMPLE]


def _memory(value: torch.Tensor | np.ndarray) -> memoryview | None:
    """Return the memory of a tensor or an array as bytes; None if it is no block of host memory.

    If the elements have gaps between them, return the whole block of memory that contains them.
    """
    array = value if isinstance(value, np.ndarray) else _array(value)
    while array is not None and not array.flags.c_contiguous \
            and isinstance(array.base, np.ndarray):
        array = array.base
    if array is None or not array.flags.c_contiguous or array.dtype.hasobject:
        return None
    return array.reshape(-1).view(np.uint8).data


def _array(tensor: torch.Tensor) -> np.ndarray | None:
    if tensor.layout is not torch.strided or tensor.device.type != 'cpu' or tensor.is_quantized:
        return None
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
    # With the axes in this order, a channels-last or transposed tensor becomes contiguous.
    tensor = tensor.detach().permute(order)
    if not tensor.is_contiguous():
        tensor = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return flat(tensor).view(torch.uint8).numpy()


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as one dimension of stride 1; copy them if they are not contiguous.

    The stride must be set, because a contiguous tensor of one element may have any stride. Some
    strides prevent a view as bytes.
    """
    return tensor.contiguous().as_strided((tensor.numel(),), (1,))
