"""``ternary:P``: sends the share P of each segment's elements, namely the largest ones.

Each of these elements is sent as +scale or -scale.

Source: the paper DGH-(GC)^2, equations 18 to 22, unchanged, for pushes and pulls. The
paper calls the n of the equations "the number of nodes". But the equations come from
reference [40] of the paper, where n is the number of elements of a tensor. So here n is
the number of elements of a segment (a row, or a part of a long row). The paper uses the
learning rate instead of a scale. Here, as in [40], the scale is the mean
magnitude of the elements sent.

A segment begins with its scale (bfloat16). Two bytes follow for each of the m elements
of largest magnitude, in ascending order of position. Bits 0 to 14 contain the position, and
bit 15 the sign (1: negative). If elements have equal magnitudes, those with the lowest
positions are sent. Zeros are not sent. If fewer than m elements are nonzero, 0xffff fills the
remaining places at the end.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit
from typing_extensions import override

from ..errors import ConfigError
from .base import MOST, Codec, require_few
from .kernels import (
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

NEGATIVE = 0x8000  # sign bit in the two bytes of an element; the other bits contain the position
NOTHING = 0xffff   # fills the two bytes of an element if too few elements are nonzero


class SparseTernary(Codec):
    """Encodes a segment as two bytes for each sent element and one bfloat16 scale.

    ``sparsity`` is the fraction of the elements that are sent, above 0 and at most 0.5;
    ``magnitude`` is not used.
    """

    number = 3
    kernels = 'topk', 'sparse'
    faults = 'a position is outside segment {}', 'positions in segment {} do not ascend'

    def __init__(self, sparsity: float) -> None:
        self.name, self.sparsity = f'ternary:{sparsity}', sparsity
        # A segment sends at most MOST elements of 2 bytes each. These 1 KiB fit into one datagram.
        self.segment_elements = int(min(MOST / sparsity, 8192))

    @staticmethod
    @lru_cache
    def of(text: str) -> SparseTernary:
        """Return the codec whose sparsity is the number in ``text``.

        Raises `ConfigError` if the sparsity is invalid.
        """
        try:
            sparsity = float(text)
        except ValueError:
            sparsity = 0.0
        if not 0 < sparsity <= 0.5:
            raise ConfigError(f"codec 'ternary:{text}': the sparsity, the fraction of the elements "
                              'that is sent, must be a number above 0 and at most 0.5')
        return SparseTernary(sparsity)

    def counts(self, lengths: np.ndarray) -> np.ndarray:
        """Return how many elements each segment sends, int64: at least 1 (equation 18).

        ``lengths``: the number of elements of each segment. A segment sends the share `sparsity` of
        its elements, rounded.
        """
        return np.maximum(np.rint(self.sparsity * lengths), 1).astype(np.int64)

    @override
    def sizes(self, lengths):
        return 2 + 2 * self.counts(lengths)

    def _encode_on_host(self, partition, values, mirror, ids, magnitude):
        out = self._room(partition, ids)
        _encode(values, mirror, partition.offsets, ids, self.counts(partition.lengths[ids]), out)
        return out

    def _look(self, lengths, ids, data):
        counts = self.counts(lengths[ids])
        if data.size != 2 * (counts.sum() + counts.size):
            return LENGTH, 0, 0.0
        return _check(lengths, ids, counts, data)

    def _numbers(self, lengths, magnitude):
        return require_few(self.counts(lengths), self)

    def _add_on_host(self, partition, values, ids, data, factor):
        _add(values, partition.offsets, ids, self.counts(partition.lengths[ids]), factor, data)


@njit(nogil=True, cache=True)
def _write(row, magnitudes, positions, count, code):
    """Encode the segment ``row`` into ``code``; return the scale of the segment.

    ``count``: number of elements to send. ``magnitudes``, ``positions``: see `select_largest`.
    """
    bits, total = row.view(np.int32), 0.0
    sent = select_largest(bits, magnitudes, positions, count)
    for i in range(sent):
        k = positions[i]
        code[2 + 2 * i], code[3 + 2 * i] = k & 255, k >> 8 | (bits[k] < 0) << 7
        total += abs(row[k])
    code[2 + 2 * sent:] = 255
    return write_scale(code, total / max(sent, 1))


@njit(nogil=True, cache=True)
def _element(code, k):
    """Return the two bytes of the k-th element as an integer: position and sign, or `NOTHING`."""
    return np.int64(code[2 + 2 * k]) | np.int64(code[3 + 2 * k]) << 8


@njit(nogil=True, cache=True)
def _move(row, code, scale):
    """Add ``scale`` to the elements of ``row`` that ``code`` lists.

    If the sign bit of an element is set, ``scale`` is subtracted. ``code``: an encoded segment.
    """
    for k in range(code.size // 2 - 1):
        element = _element(code, k)
        if element == NOTHING:
            break
        row[element & ~NEGATIVE] += -scale if element & NEGATIVE else scale


@njit(nogil=True, cache=True)
def _encode(values, mirror, offsets, ids, counts, out):
    """Encode ``values - mirror`` into ``out``.

    If ``mirror`` is None, encode ``values`` and subtract the decoded values from them.
    """
    at, most = 0, longest(offsets, ids)
    magnitudes, positions = np.empty(most, np.int32), np.empty(most, np.uint16)
    for i in range(ids.size):
        prefetch_row(values, offsets, ids, i + 1)
        lo, hi = offsets[ids[i]], offsets[ids[i] + 1]
        row, code, count = values[lo:hi], out[at:at + 2 + 2 * counts[i]], counts[i]
        if mirror is None:
            _move(row, code, -_write(row, magnitudes[:row.size], positions, count, code))
        else:
            prefetch_row(mirror, offsets, ids, i + 1)
            _write(row - mirror[lo:hi], magnitudes[:row.size], positions, count, code)
        at += code.size


@njit(nogil=True, cache=True)
def _add(values, offsets, ids, counts, factor, data):
    """Add ``factor`` times the decoded values to the segments ``ids``.

    Only elements that were sent change.
    """
    at = 0
    for i in range(ids.size):
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        code = data[at:at + 2 + 2 * counts[i]]
        _move(row, code, factor * scale_of(code))
        at += code.size


@njit(nogil=True, cache=True)
def _check(lengths, ids, counts, data):
    """Check ``data``; return the three numbers that `Codec._look` describes.

    The caller has already checked the length of ``data``.
    """
    at, energy = 0, 0.0
    for i in range(ids.size):
        code = data[at:at + 2 + 2 * counts[i]]
        at += code.size
        if bad_scale(code):
            return SCALE, i, energy
        previous, sent = -1, 0
        for k in range(counts[i]):
            element = _element(code, k)
            position = element & ~NEGATIVE
            if element != NOTHING and position >= lengths[ids[i]]:
                return OWN, i, energy
            if position <= previous and not element == NOTHING == previous | NEGATIVE:
                return OWN + 1, i, energy
            previous = position
            sent += element != NOTHING
        energy += sent * np.float64(scale_of(code)) ** 2
    return 0, 0, energy
