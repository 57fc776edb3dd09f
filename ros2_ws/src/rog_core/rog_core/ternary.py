"""Compiled loops of the ternary format, as `rog_core.kernels` and under its rules.

A segment in this format (see `rog_core.backend`) costs one pass over its elements to write; what
the bytes name, one element in 64, is all that taking off and adding touch.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .kernels import prefetch_row, scale_of

BLOCK = 64  # elements of which one is sent


@njit(nogil=True, cache=True)
def _byte(bits):
    """Ternary byte of up to a block of float32 given as int32: the first of largest magnitude.

    Magnitudes compare as integers; with the position in the low bits, one maximum finds both.
    """
    largest = np.int64(0)
    for k in range(bits.size):
        largest = max(largest, np.int64(bits[k] & 0x7fffffff) << 6 | (63 - k))
    if largest < BLOCK:
        return np.uint8(0)
    at = 63 - (largest & 63)
    return np.uint8(0x80 | (bits[at] < 0) << 6 | at)


@njit(nogil=True, cache=True)
def _write(row, code):
    """Write the ternary format of one segment; returns its scale."""
    bits, total, count = row.view(np.int32), 0.0, 0
    for b in range(2, code.size):
        start = (b - 2) * BLOCK
        code[b] = _byte(bits[start:start + BLOCK])
        if code[b]:
            total += abs(row[start + (code[b] & 63)])
            count += 1
    mean = np.float32(total / max(count, 1)).view(np.uint32) + np.uint32(0x8000)
    code[0], code[1] = mean >> 16 & 255, mean >> 24
    return scale_of(code[0], code[1])


@njit(nogil=True, cache=True)
def _move(row, code, scale):
    """Add +scale or -scale to the elements that the bytes of one segment name."""
    for b in range(2, code.size):
        if code[b]:
            row[(b - 2) * BLOCK + (code[b] & 63)] += -scale if code[b] & 64 else scale


@njit(nogil=True, cache=True)
def _size(length):
    """Bytes of a segment in the ternary format."""
    return 2 + (length + BLOCK - 1) // BLOCK


@njit(nogil=True, cache=True)
def encode(values, offsets, ids, out):
    """Write the ternary format of the given segments and take what it says off ``values``."""
    at = 0
    for i in range(ids.size):
        prefetch_row(values, offsets, ids, i + 1)
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        code = out[at:at + _size(row.size)]
        _move(row, code, -_write(row, code))
        at += code.size


@njit(nogil=True, cache=True)
def encode_difference(master, mirror, offsets, ids, out):
    """Write the ternary format of master - mirror of the given segments."""
    at = 0
    for i in range(ids.size):
        prefetch_row(master, offsets, ids, i + 1)
        prefetch_row(mirror, offsets, ids, i + 1)
        lo, hi = offsets[ids[i]], offsets[ids[i] + 1]
        code = out[at:at + _size(hi - lo)]
        _write(master[lo:hi] - mirror[lo:hi], code)
        at += code.size


@njit(nogil=True, cache=True)
def add(values, offsets, ids, factor, data):
    """Add factor * the decoded segments; only the elements that were sent are touched."""
    at = 0
    for i in range(ids.size):
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        code = data[at:at + _size(row.size)]
        _move(row, code, factor * scale_of(code[0], code[1]))
        at += code.size


@njit(nogil=True, cache=True)
def check(lengths, ids, data):
    """Whether ``data`` is the ternary format of the segments: (rule, position of the segment).

    Rules: 0 none broken; 1 length of the data; 2 scale NaN, infinite or negative; 3 a byte that
    points outside its block, or says that nothing is sent and is not 0.
    """
    at, rule, bad = 0, 0, 0
    for i in range(ids.size):
        length = lengths[ids[i]]
        code = data[at:at + _size(length)]
        if code.size < _size(length):
            return 1, i
        at += code.size
        # As in `kernels.onebit_check`: above 0x7f7f are infinity, NaN and what is negative.
        if rule == 0 and (np.uint16(code[0]) | np.uint16(code[1]) << 8) > 0x7f7f:
            rule, bad = 2, i
        for b in range(2, code.size):
            left = length - (b - 2) * BLOCK
            if rule == 0 and code[b] and (code[b] < 0x80 or (code[b] & 63) >= left):
                rule, bad = 3, i
    return (rule, bad) if at == data.size else (1, bad)
