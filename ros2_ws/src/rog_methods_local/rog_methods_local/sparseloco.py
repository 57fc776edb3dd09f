"""``sparseloco``: sends the 64 largest of 4096 elements in 14 bits each; for local methods.

Source: SparseLoCo (arXiv 2508.15706). It sends the 64 elements of largest magnitude of each chunk
of 4096, with 12 bits for the position and 2 for the value. Its error feedback decays: each push
reduces by 5 percent the values that it does not send. What the paper calls a chunk is a segment
here (a row, or a part of a long row). A segment sends one element in 64, but at least one. Pulls,
which the paper does not have, reduce no values.

A segment begins with two scales (bfloat16). The elements sent form two classes: large elements,
whose magnitude is above the mean magnitude of all elements sent, and small elements. The first
scale is the mean magnitude of the large elements, the second that of the small elements.

Then 14 bits follow for each element sent, in ascending order of position. The first element is in
the lowest bits, and the end is padded to a whole byte. Of the 14 bits, bits 0 to 11 hold the
position, bit 12 is 1 for the first scale, and bit 13 holds the sign (1: negative).

Zeros are not sent. If a segment has too few nonzero elements, the remaining places hold 14 zero
bits, which is position 0. A decoder recognises these places: positions ascend, so only the first
place can really have position 0. If a segment holds only zeros, both scales are 0. If elements have
equal magnitudes, the first of them are sent.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from rog_core.codecs.base import Codec, require_few
from rog_core.codecs.kernels import (
    LENGTH,
    OWN,
    SCALE,
    bad_scale,
    longest,
    prefetch_row,
    scale_of,
    select_largest,
    write_scale,
)
from typing_extensions import override

SHARE = 64                  # one of SHARE elements is sent
BITS = 14                   # bits for each sent element
LARGE, NEGATIVE = 1 << 12, 1 << 13
FEEDBACK = np.float32(0.95)  # factor by which a push multiplies the values that it does not send


class SparseLoCo(Codec):
    """Encodes a segment as 14 bits per sent element and two scales; ignores ``magnitude``."""

    name, number = 'sparseloco', 5
    segment_elements = 4096
    kernels = 'topk', 'sparseloco'
    scales = 2
    kept = float(FEEDBACK)
    faults = 'a position is outside segment {}', 'positions in segment {} do not ascend'

    def counts(self, lengths: np.ndarray) -> np.ndarray:
        """Return how many elements each segment sends, int64.

        ``lengths``: sizes of the segments.
        """
        return np.maximum(np.rint(lengths / SHARE), 1).astype(np.int64)

    @override
    def sizes(self, lengths):
        return 4 + (BITS * self.counts(lengths) + 7) // 8

    @override
    def take(self, partition, values, ids, magnitude):
        out = super().take(partition, values, ids, magnitude)
        if isinstance(values, np.ndarray):  # the CUDA kernel itself multiplies the values
            _decay(values, partition.offsets, ids)
        return out

    def _encode_on_host(self, partition, values, mirror, ids, magnitude):
        lengths, out = partition.lengths[ids], self._room(partition, ids)
        _encode(values, mirror, partition.offsets, ids, self.counts(lengths), self.sizes(lengths),
                out)
        return out

    def _look(self, lengths, ids, data):
        lengths = lengths[ids]
        counts, sizes = self.counts(lengths), self.sizes(lengths)
        if data.size != int(sizes.sum()):
            return LENGTH, 0, 0.0
        return _check(lengths, counts, sizes, data)

    def _numbers(self, lengths, magnitude):
        return require_few(self.counts(lengths), self)

    def _add_on_host(self, partition, values, ids, data, factor):
        lengths = partition.lengths[ids]
        _add(values, partition.offsets, ids, self.counts(lengths), self.sizes(lengths), factor,
             data)


@njit(nogil=True, cache=True)
def _word(code, k):
    """Return the 14 bits of element ``k`` of an encoded segment; they lie in two or three bytes."""
    bit = BITS * k
    at, shift = 4 + bit // 8, bit % 8
    word = np.int64(code[at]) | np.int64(code[at + 1]) << 8
    if shift > 2:
        word |= np.int64(code[at + 2]) << 16
    return word >> shift & 0x3fff


@njit(nogil=True, cache=True)
def _put(code, k, word):
    bit = BITS * k
    at, shifted = 4 + bit // 8, word << bit % 8
    code[at] |= shifted & 255
    code[at + 1] |= shifted >> 8 & 255
    if bit % 8 > 2:
        code[at + 2] |= shifted >> 16


@njit(nogil=True, cache=True)
def _write(row, magnitudes, positions, count, code):
    """Encode one segment; return its two scales.

    ``magnitudes``, ``positions``: memory for temporary values, see `select_largest`.
    """
    bits = row.view(np.int32)
    sent = select_largest(bits, magnitudes, positions, count)
    total = 0.0
    for i in range(sent):
        total += abs(row[positions[i]])
    mean, code[4:] = total / max(sent, 1), 0
    large, small, many = 0.0, 0.0, 0
    for i in range(sent):
        k = np.int64(positions[i])
        size = np.float64(abs(row[k]))
        if size > mean:
            large += size
            many += 1
            _put(code, i, k | LARGE | (bits[k] < 0) * NEGATIVE)
        else:
            small += size
            _put(code, i, k | (bits[k] < 0) * NEGATIVE)
    return (write_scale(code, large / max(many, 1)),
            write_scale(code[2:], small / max(sent - many, 1)))


@njit(nogil=True, cache=True)
def _move(row, code, count, large, small):
    """Add +scale or -scale to each element whose position is in the encoded segment."""
    for k in range(count):
        word = _word(code, k)
        if word == 0 and k > 0:
            break
        scale = large if word & LARGE else small
        row[word & (LARGE - 1)] += -scale if word & NEGATIVE else scale


@njit(nogil=True, cache=True)
def _encode(values, mirror, offsets, ids, counts, sizes, out):
    """Encode values - mirror into ``out``.

    If ``mirror`` is None, encode ``values`` and subtract the decoded values from them.
    """
    at, most = 0, longest(offsets, ids)
    magnitudes, positions = np.empty(most, np.int32), np.empty(most, np.uint16)
    for i in range(ids.size):
        prefetch_row(values, offsets, ids, i + 1)
        lo, hi = offsets[ids[i]], offsets[ids[i] + 1]
        row, code, count = values[lo:hi], out[at:at + sizes[i]], counts[i]
        if mirror is None:
            large, small = _write(row, magnitudes[:row.size], positions, count, code)
            _move(row, code, count, -large, -small)
        else:
            prefetch_row(mirror, offsets, ids, i + 1)
            _write(row - mirror[lo:hi], magnitudes[:row.size], positions, count, code)
        at += code.size


@njit(nogil=True, cache=True)
def _decay(values, offsets, ids):
    for i in range(ids.size):
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        for k in range(row.size):
            row[k] *= FEEDBACK


@njit(nogil=True, cache=True)
def _add(values, offsets, ids, counts, sizes, factor, data):
    """Add factor * the decoded values to the segments.

    Only the elements that were sent change.
    """
    at = 0
    for i in range(ids.size):
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        code = data[at:at + sizes[i]]
        _move(row, code, counts[i], factor * scale_of(code), factor * scale_of(code[2:]))
        at += code.size


@njit(nogil=True, cache=True)
def _check(lengths, counts, sizes, data):
    """Check ``data``, which has the right length; ``lengths``: elements of each segment in it."""
    at, energy = 0, 0.0
    for i in range(lengths.size):
        code = data[at:at + sizes[i]]
        at += code.size
        if bad_scale(code) or bad_scale(code[2:]):
            return SCALE, i, energy
        large, small = np.float64(scale_of(code)) ** 2, np.float64(scale_of(code[2:])) ** 2
        previous, over = -1, False
        for k in range(counts[i]):
            word = _word(code, k)
            position = word & (LARGE - 1)
            over = over or word == 0 and k > 0
            if position >= lengths[i]:
                return OWN, i, energy
            if position <= previous and not over or over and word != 0:
                return OWN + 1, i, energy
            previous = position
            if not over:
                energy += large if word & LARGE else small
    return 0, 0, energy
