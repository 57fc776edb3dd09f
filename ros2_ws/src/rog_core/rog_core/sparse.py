"""Compiled loops of the sparse ternary format, as `rog_core.kernels` and under its rules.

A segment in this format (see `rog_core.backend`) names its elements of largest magnitude. Their
least magnitude is found by bisection on the bits of float32: a pass that only counts takes eight
elements at a time, which no sort does. ``counts`` int64 (ids,) says how many elements each of the
given segments names, see `counts_of`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .kernels import prefetch_row, scale_of

NEGATIVE = 0x8000  # the sign of an element; the other bits are its position
NOTHING = 0xffff   # fills up a segment that has fewer elements other than zero


def counts_of(lengths: np.ndarray, sparsity: float) -> np.ndarray:
    """Elements sent of segments of the given lengths, int64: m = max(n p, 1), equation 18."""
    return np.maximum(np.rint(sparsity * lengths), 1).astype(np.int64)


@njit(nogil=True, cache=True)
def _count(magnitudes, least):
    """How many are at least ``least``."""
    total = np.int32(0)
    for k in range(magnitudes.size):
        total = np.int32(total + np.int32(magnitudes[k] >= least))
    return np.int64(total)


@njit(nogil=True, cache=True)
def _threshold(magnitudes, count):
    """(t, equals): the ``count`` largest are those above t and the first ``equals`` that are t.

    Where fewer are above zero, t is 0.
    """
    low, high, above = np.int32(0), np.int32(0), 0
    for k in range(magnitudes.size):
        high = max(high, magnitudes[k])
    high += 1  # at least ``count`` magnitudes are ``low`` or more, ``above`` are ``high`` or more
    step = 1 << 23  # a factor of 2; most often what is sought is that near to the largest
    while high - low > 1:
        middle = np.int32(max(low + (high - low) // 2, high - step))
        step *= 2
        found = _count(magnitudes, middle)
        if found < count:
            high, above = middle, found
            continue
        low = middle
        if found == count:
            break
    return low, count - above


@njit(nogil=True, cache=True)
def _write(row, magnitudes, positions, count, code):
    """Write the sparse format of one segment; returns its scale.

    Scratch: ``magnitudes`` int32 of the size of ``row``, ``positions`` uint16 not smaller.
    """
    bits = row.view(np.int32)
    for k in range(row.size):
        magnitudes[k] = bits[k] & 0x7fffffff
    threshold, equals = _threshold(magnitudes, count)
    found, least = 0, max(threshold, np.int32(1))
    for k in range(row.size):  # no branch: which elements are large cannot be foreseen
        positions[found] = k
        found += magnitudes[k] >= least
    total, sent = 0.0, 0
    for k in positions[:found]:
        equal = magnitudes[k] == threshold
        if equal and equals == 0:
            continue
        equals -= equal
        code[2 + 2 * sent], code[3 + 2 * sent] = k & 255, k >> 8 | (bits[k] < 0) << 7
        total += abs(row[k])
        sent += 1
    code[2 + 2 * sent:] = 255
    mean = np.float32(total / max(sent, 1)).view(np.uint32) + np.uint32(0x8000)
    code[0], code[1] = mean >> 16 & 255, mean >> 24
    return scale_of(code[0], code[1])


@njit(nogil=True, cache=True)
def _element(code, k):
    """Position and sign of element ``k`` that a segment names."""
    return np.int64(code[2 + 2 * k]) | np.int64(code[3 + 2 * k]) << 8


@njit(nogil=True, cache=True)
def _move(row, code, scale):
    """Add +scale or -scale to the elements that one segment names."""
    for k in range(code.size // 2 - 1):
        element = _element(code, k)
        if element == NOTHING:
            break
        row[element & ~NEGATIVE] += -scale if element & NEGATIVE else scale


@njit(nogil=True, cache=True)
def _longest(offsets, ids):
    longest = np.int64(0)
    for i in range(ids.size):
        longest = max(longest, offsets[ids[i] + 1] - offsets[ids[i]])
    return longest


@njit(nogil=True, cache=True)
def encode(values, offsets, ids, counts, out):
    """Write the sparse format of the given segments and take what it says off ``values``."""
    at, longest = 0, _longest(offsets, ids)
    magnitudes, positions = np.empty(longest, np.int32), np.empty(longest, np.uint16)
    for i in range(ids.size):
        prefetch_row(values, offsets, ids, i + 1)
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        code = out[at:at + 2 + 2 * counts[i]]
        _move(row, code, -_write(row, magnitudes[:row.size], positions, counts[i], code))
        at += code.size


@njit(nogil=True, cache=True)
def encode_difference(master, mirror, offsets, ids, counts, out):
    """Write the sparse format of master - mirror of the given segments."""
    at, longest = 0, _longest(offsets, ids)
    magnitudes, positions = np.empty(longest, np.int32), np.empty(longest, np.uint16)
    for i in range(ids.size):
        prefetch_row(master, offsets, ids, i + 1)
        prefetch_row(mirror, offsets, ids, i + 1)
        lo, hi = offsets[ids[i]], offsets[ids[i] + 1]
        code = out[at:at + 2 + 2 * counts[i]]
        _write(master[lo:hi] - mirror[lo:hi], magnitudes[:hi - lo], positions, counts[i], code)
        at += code.size


@njit(nogil=True, cache=True)
def add(values, offsets, ids, counts, factor, data):
    """Add factor * the decoded segments; only the elements that were sent are touched."""
    at = 0
    for i in range(ids.size):
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        code = data[at:at + 2 + 2 * counts[i]]
        _move(row, code, factor * scale_of(code[0], code[1]))
        at += code.size


@njit(nogil=True, cache=True)
def check(lengths, ids, counts, data):
    """Whether ``data``, of the right length, is the sparse format of the segments.

    Returns (rule, position of the segment). Rules: 0 none broken; 1 scale NaN, infinite or
    negative; 2 a position outside the segment; 3 positions do not ascend.
    """
    at = 0
    for i in range(ids.size):
        code = data[at:at + 2 + 2 * counts[i]]
        at += code.size
        # As in `kernels.onebit_check`: above 0x7f7f are infinity, NaN and what is negative.
        if (np.uint16(code[0]) | np.uint16(code[1]) << 8) > 0x7f7f:
            return 1, i
        previous = -1
        for k in range(counts[i]):
            element = _element(code, k)
            position = element & ~NEGATIVE
            if element != NOTHING and position >= lengths[ids[i]]:
                return 2, i
            if position <= previous and not element == NOTHING == previous | NEGATIVE:
                return 3, i
            previous = position
    return 0, 0
