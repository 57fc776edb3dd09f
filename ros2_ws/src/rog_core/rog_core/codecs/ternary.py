"""``ternary``: sends only the largest of each 64 elements, as +scale or -scale.

This codec is for slow links.

Source: the paper DGH-(GC)^2, equations 18 to 22. As in reference [40] of this paper,
the scale is the mean magnitude of the elements sent. Here the largest element of each
block of 64 is sent, so that the encoded size of a segment depends only on the number of
its elements.

A segment begins with its scale (bfloat16). One byte per block follows; the last block
may be shorter. Bits 0 to 5 contain the position of the sent element in its block, and bit 6 its
sign (1: negative); bit 7 is set. If all elements of a block are zero, its byte is 0. If elements
have equal magnitudes, the first of them is sent. Encoding reads every element once.
Decoding accesses only the elements sent, which are one in 64.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from typing_extensions import override

from .base import Codec
from .kernels import LENGTH, OWN, SCALE, bad_scale, prefetch_row, scale_of, write_scale

BLOCK = 64  # elements per block; one element of each block is sent


class Ternary(Codec):
    """Encodes a segment as a byte per block and one bfloat16 scale; ignores ``magnitude``."""

    name, number, segment_elements = 'ternary', 2, 8192
    kernels = 'ternary', 'ternary'
    faults = ('a byte of segment {} points outside its block of elements, or sends nothing and is '
              'not 0',)

    @override
    def sizes(self, lengths):
        return 2 + -(-lengths // BLOCK)

    def _encode_on_host(self, partition, values, mirror, ids, magnitude):
        out = self._room(partition, ids)
        _encode(values, mirror, partition.offsets, ids, out)
        return out

    def _look(self, lengths, ids, data):
        return _check(lengths, ids, data)

    def _add_on_host(self, partition, values, ids, data, factor):
        _add(values, partition.offsets, ids, factor, data)


@njit(nogil=True, cache=True)
def _byte(bits):
    """Return the encoded byte of a block.

    ``bits``: the float32 values of the block as int32, at most 64.

    Magnitudes can be compared as integers by their bits. ``largest`` contains a magnitude in its
    high bits and 63 - position in its low 6 bits. So the maximum gives the largest magnitude. If
    several elements have this magnitude, it gives the first of them.
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
    """Encode the segment ``row`` into ``code``; return the scale of the segment."""
    bits, total, count = row.view(np.int32), 0.0, 0
    for b in range(2, code.size):
        start = (b - 2) * BLOCK
        code[b] = _byte(bits[start:start + BLOCK])
        if code[b]:
            total += abs(row[start + (code[b] & 63)])
            count += 1
    return write_scale(code, total / max(count, 1))


@njit(nogil=True, cache=True)
def _move(row, code, scale):
    """Add ``scale`` to the elements of ``row`` that ``code`` lists.

    If the sign bit of an element is set, ``scale`` is subtracted. ``code``: an encoded segment.
    """
    for b in range(2, code.size):
        if code[b]:
            row[(b - 2) * BLOCK + (code[b] & 63)] += -scale if code[b] & 64 else scale


@njit(nogil=True, cache=True)
def _size(length):
    return 2 + (length + BLOCK - 1) // BLOCK


@njit(nogil=True, cache=True)
def _encode(values, mirror, offsets, ids, out):
    """Encode ``values - mirror`` into ``out``.

    If ``mirror`` is None, encode ``values`` and subtract the decoded values from them.
    """
    at = 0
    for i in range(ids.size):
        prefetch_row(values, offsets, ids, i + 1)
        lo, hi = offsets[ids[i]], offsets[ids[i] + 1]
        row, code = values[lo:hi], out[at:at + _size(hi - lo)]
        if mirror is None:
            _move(row, code, -_write(row, code))
        else:
            prefetch_row(mirror, offsets, ids, i + 1)
            _write(row - mirror[lo:hi], code)
        at += code.size


@njit(nogil=True, cache=True)
def _add(values, offsets, ids, factor, data):
    """Add ``factor`` times the decoded values to the segments ``ids``.

    Only elements that were sent change.
    """
    at = 0
    for i in range(ids.size):
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        code = data[at:at + _size(row.size)]
        _move(row, code, factor * scale_of(code))
        at += code.size


@njit(nogil=True, cache=True)
def _check(lengths, ids, data):
    """Check ``data``; return the three numbers that `Codec._look` describes."""
    at, rule, bad, energy = 0, 0, 0, 0.0
    for i in range(ids.size):
        length, sent = lengths[ids[i]], 0
        code = data[at:at + _size(length)]
        if code.size < _size(length):
            return LENGTH, i, energy
        at += code.size
        if rule == 0 and bad_scale(code):
            rule, bad = SCALE, i
        for b in range(2, code.size):
            left = length - (b - 2) * BLOCK
            sent += code[b] != 0
            if rule == 0 and code[b] and (code[b] < 0x80 or (code[b] & 63) >= left):
                rule, bad = OWN, i
        energy += sent * np.float64(scale_of(code)) ** 2
    return (rule, bad, energy) if at == data.size else (LENGTH, bad, energy)
