"""``e3m0``: four bits per element, a sign and an exponent; for the outer steps of local methods.

Source: Streaming DiLoCo (arXiv 2501.18512), which encodes outer gradients with one sign bit, three
exponent bits and no mantissa. Unlike in the paper, the sender keeps the difference to the exact
values and sends it later (error feedback).

A segment begins with its scale (bfloat16), the largest magnitude in it. Four bits per element
follow; the first element is in the lower half of a byte, and the end is padded to a whole byte.
Bits 0 to 2 hold the exponent e. If e is 0, the value is 0; otherwise the magnitude of the value is
scale * 2^(e - 7). Bit 3 holds the sign (1: negative). Values are rounded to the nearest value that
can be encoded.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from rog_core.codecs.base import Codec
from rog_core.codecs.kernels import LENGTH, SCALE, bad_scale, prefetch_row, scale_of, write_scale
from typing_extensions import override

# For each exponent 0 to 7: the decoded magnitude, divided by the scale.
LEVELS = np.array([0, *(2.0 ** (e - 7) for e in range(1, 8))], np.float32)
# For each exponent 1 to 7: the smallest magnitude that gets this exponent, divided by the scale.
LEAST = np.array([2.0 ** -7, *(1.5 * 2.0 ** (e - 8) for e in range(2, 8))], np.float32)


class E3M0(Codec):
    """Encodes a segment as half a byte per element and a bfloat16 scale; ignores ``magnitude``."""

    name, number = 'e3m0', 4
    segment_elements = 2048  # half a byte for each element: 1 KiB, which fits one datagram
    kernels = 'e3m0', 'e3m0'

    @override
    def sizes(self, lengths):
        return 2 + (lengths + 1) // 2

    def _encode_on_host(self, partition, values, mirror, ids, magnitude):
        out = self._room(partition, ids)
        _encode(values, mirror, partition.offsets, ids, out)
        return out

    def _look(self, lengths, ids, data):
        return _check(lengths, ids, data)

    def _add_on_host(self, partition, values, ids, data, factor):
        _add(values, partition.offsets, ids, factor, data)


@njit(nogil=True, cache=True)
def _code(value, least):
    """Encode a value in four bits.

    ``least`` float32 (7,): for each exponent 1 to 7, the lowest magnitude that is encoded with it.
    """
    magnitude, exponent = abs(value), 0
    for e in range(7):
        exponent += magnitude >= least[e]
    if magnitude == 0 or exponent == 0:
        return 0
    return exponent | np.signbit(value) << 3


@njit(nogil=True, cache=True)
def _level(code):
    level = LEVELS[code & 7]
    return -level if code & 8 else level


@njit(nogil=True, cache=True)
def _write(row, code, least):
    """Encode one segment; return its scale.

    ``least`` float32 (7,): memory in which this function keeps temporary values.
    """
    largest = np.float32(0)
    for k in range(row.size):
        largest = max(largest, abs(row[k]))
    scale = write_scale(code, largest)
    for e in range(7):
        least[e] = scale * LEAST[e]
    for k in range(0, row.size, 2):
        byte = _code(row[k], least)
        if k + 1 < row.size:
            byte |= _code(row[k + 1], least) << 4
        code[2 + k // 2] = byte
    return scale


@njit(nogil=True, cache=True)
def _move(row, code, scale):
    """Add the decoded values to ``row``, with ``scale`` instead of the scale in ``code``."""
    for k in range(row.size):
        row[k] += scale * _level(code[2 + k // 2] >> 4 * (k & 1) & 15)


@njit(nogil=True, cache=True)
def _size(length):
    return 2 + (length + 1) // 2


@njit(nogil=True, cache=True)
def _encode(values, mirror, offsets, ids, out):
    """Encode values - mirror into ``out``.

    If ``mirror`` is None, encode ``values`` and subtract the decoded values from them.
    """
    at, least = 0, np.empty(7, np.float32)
    for i in range(ids.size):
        prefetch_row(values, offsets, ids, i + 1)
        lo, hi = offsets[ids[i]], offsets[ids[i] + 1]
        row, code = values[lo:hi], out[at:at + _size(hi - lo)]
        if mirror is None:
            _move(row, code, -_write(row, code, least))
        else:
            prefetch_row(mirror, offsets, ids, i + 1)
            _write(row - mirror[lo:hi], code, least)
        at += code.size


@njit(nogil=True, cache=True)
def _add(values, offsets, ids, factor, data):
    """Add factor * the decoded values to the segments."""
    at = 0
    for i in range(ids.size):
        prefetch_row(values, offsets, ids, i + 1)
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        code = data[at:at + _size(row.size)]
        _move(row, code, factor * scale_of(code))
        at += code.size


@njit(nogil=True, cache=True)
def _check(lengths, ids, data):
    at, rule, bad, energy = 0, 0, 0, 0.0
    for i in range(ids.size):
        length, total = lengths[ids[i]], 0.0
        code = data[at:at + _size(length)]
        if code.size < _size(length):
            return LENGTH, i, energy
        at += code.size
        if rule == 0 and bad_scale(code):
            rule, bad = SCALE, i
        for k in range(length):
            total += np.float64(_level(code[2 + k // 2] >> 4 * (k & 1) & 15)) ** 2
        energy += total * np.float64(scale_of(code)) ** 2
    return (rule, bad, energy) if at == data.size else (LENGTH, bad, energy)
