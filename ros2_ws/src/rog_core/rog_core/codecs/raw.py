"""``raw``: float32, little endian, without loss.

Model values are always sent with this codec; the other codecs are only for changes of values.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from typing_extensions import override

from ..arrays import Array
from .base import COPY, Codec, Segments
from .kernels import LENGTH, OWN

_FLOAT = np.dtype('<f4')


class Raw(Codec):
    """Encodes values as float32, without loss; ignores ``magnitude``."""

    name, number, segment_elements, scales = 'raw', 0, 256, 0
    kernels = 'raw', 'raw'
    faults = ('chunk holds a value that is NaN or infinite',)

    @override
    def sizes(self, lengths):
        return 4 * lengths

    def _encode_on_host(self, partition, values, mirror, ids, magnitude):
        out = self._room(partition, ids)
        _gather(values, mirror, partition.offsets, ids, out.view(np.float32))
        if mirror is None:
            _store(values, partition.offsets, ids, np.zeros(out.size // 4, np.float32))
        return out

    def snapshot(self, partition: Segments, values: Array, ids: np.ndarray) -> np.ndarray:
        """Encode the segments ``ids`` of ``values`` as uint8; ``values`` does not change."""
        if not isinstance(values, np.ndarray):
            return self._encode_by_kernel(partition, values, None, ids, None, COPY)
        out = np.empty(int(partition.lengths[ids].sum()), np.float32)
        _gather(values, None, partition.offsets, ids, out)
        return out.view(np.uint8)

    def _look(self, lengths, ids, data):
        if data.size != 4 * int(lengths[ids].sum()):
            return LENGTH, 0, 0.0
        energy = _energy(_floats(data))
        # The sum is float64, so squares of finite float32 values cannot make it infinite.
        return 0 if math.isfinite(energy) else OWN, 0, energy

    def _add_on_host(self, partition, values, ids, data, factor):
        _add(values, partition.offsets, ids, factor, _floats(data))

    @override
    def scaled(self, partition, ids, data, factor):
        return (_floats(data) * np.float32(factor)).view(np.uint8)

    def floats(self, data: np.ndarray) -> np.ndarray:
        """Return the values in ``data`` (uint8), float32; the caller must `check` it first."""
        return _floats(data)

    def store(self, partition: Segments, values: Array, ids: np.ndarray, data: np.ndarray) -> None:
        """Decode ``data``, and write the result to the segments ``ids`` of ``values``.

        The caller must `check` the data first.
        """
        if isinstance(values, np.ndarray):
            _store(values, partition.offsets, ids, _floats(data))
        else:
            self._launch('store', partition, values, ids, None, (), data)


def _floats(data: np.ndarray) -> np.ndarray:
    floats = data.view(_FLOAT)
    return floats if floats.flags.aligned else data.copy().view(_FLOAT)


@njit(nogil=True, cache=True, fastmath={'reassoc', 'contract'})
def _energy(dense):
    """Return the sum of the squares in float64; if a value is NaN or infinite, the sum is too."""
    total = 0.0
    for k in range(dense.size):
        total += np.float64(dense[k]) * np.float64(dense[k])
    return total


@njit(nogil=True, cache=True)
def _gather(values, mirror, offsets, ids, out):
    """Copy the segments ``ids`` of ``values - mirror`` into ``out``, one after the other.

    If ``mirror`` is None, copy the segments of ``values``.
    """
    at = 0
    for i in range(ids.size):
        lo, hi = offsets[ids[i]], offsets[ids[i] + 1]
        row, to = values[lo:hi], out[at:at + hi - lo]
        if mirror is None:
            to[:] = row
        else:
            theirs = mirror[lo:hi]
            for k in range(row.size):
                to[k] = row[k] - theirs[k]
        at += row.size


@njit(nogil=True, cache=True)
def _add(values, offsets, ids, factor, dense):
    """Add ``factor * dense`` to the segments ``ids`` of ``values``.

    ``dense``: the numbers for the first of these segments, then for the second, and so on.
    """
    at = 0
    for i in range(ids.size):
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        part = dense[at:at + row.size]
        for k in range(row.size):
            row[k] += factor * part[k]
        at += row.size


@njit(nogil=True, cache=True)
def _store(values, offsets, ids, dense):
    """Copy ``dense`` to the segments ``ids`` of ``values``.

    ``dense``: the numbers for the first of these segments, then for the second, and so on.
    """
    at = 0
    for i in range(ids.size):
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        row[:] = dense[at:at + row.size]
        at += row.size
