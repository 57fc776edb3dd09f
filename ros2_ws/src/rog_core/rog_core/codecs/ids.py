"""Segment ids on the wire, and how segments are cut into chunks.

The ids of a chunk ascend. The first stands as it is, of each other the difference to the one before
it, in LEB128: seven bits to a byte, the lowest first, bit 7 where more follow. Neighbours cost one
byte each.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..errors import RemoteProtocolError
from .base import Segments


def encode_ids(ids: np.ndarray, starts: np.ndarray | None = None) -> list[np.ndarray]:
    """LEB128 differences of ascending segment ids, uint8, per chunk (``starts`` as of `cut`)."""
    starts = np.zeros(1, np.int64) if starts is None else starts
    out, ends = np.empty(5 * ids.size, np.uint8), np.empty(starts.size, np.int64)
    _encode(ids, starts, out, ends)
    return [out[a:b] for a, b in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]


_VARINT_FAULTS = {1: 'the id bytes do not hold {0} ids', 2: 'segment ids do not ascend',
                  3: 'a segment id is not below {1}, the number of segments of the model'}


def decode_ids(data: np.ndarray, count: int, partition: Segments) -> np.ndarray:
    """Inverse of `encode_ids`: int64 (count,), all valid segments, or `RemoteProtocolError`."""
    if count < 1 or count > data.size:
        raise RemoteProtocolError(f'chunk says {count} segments but has {data.size} bytes of ids')
    ids = np.empty(count, np.int64)
    fault = _decode(data, partition.lengths.size, ids)
    if fault:
        raise RemoteProtocolError('chunk refused: '
                                  + _VARINT_FAULTS[fault].format(count, partition.lengths.size))
    return ids


def cut(ids: np.ndarray, sizes: np.ndarray, limit: int) -> np.ndarray:
    """First index of each chunk of at most ``limit`` bytes; a chunk holds at least one segment."""
    starts = np.empty(ids.size, np.int64)
    return starts[:_cut(ids, sizes, limit, starts)]


@njit(nogil=True, cache=True)
def _varint_size(value):
    return 1 + (value > 127) + (value > 16383) + (value > 2097151) + (value > 268435455)


@njit(nogil=True, cache=True)
def _cut(ids, sizes, limit, starts):
    """Cut segments into chunks of at most ``limit`` bytes of values and ids; returns their number.

    ``starts[c]`` becomes the first segment of chunk c. A chunk holds at least one segment.
    """
    chunks, used, previous = 0, 0, np.int64(0)
    for i in range(ids.size):
        cost = sizes[i] + _varint_size(ids[i] - previous)
        if i == 0 or used + cost > limit:
            starts[chunks] = i
            chunks += 1
            used = 0
            cost = sizes[i] + _varint_size(ids[i])
        used += cost
        previous = ids[i]
    return chunks


@njit(nogil=True, cache=True)
def _encode(ids, starts, out, ends):
    """LEB128 of the first id of every chunk and of the differences that follow in it.

    Chunk c begins at ``ids[starts[c]]``; its bytes end before ``out[ends[c]]``.
    """
    at = 0
    for c in range(starts.size):
        stop = starts[c + 1] if c + 1 < starts.size else ids.size
        previous = np.int64(0)
        for i in range(starts[c], stop):
            rest = np.int64(ids[i]) - previous
            previous = np.int64(ids[i])
            while rest > 127:
                out[at] = np.uint8(rest & 127 | 128)
                rest >>= 7
                at += 1
            out[at] = np.uint8(rest)
            at += 1
        ends[c] = at


@njit(nogil=True, cache=True)
def _decode(data, limit, out):
    """Inverse of `_encode`. Returns 0, or which rule the bytes break (1, 2 or 3).

    1: the bytes end early or go on too long; 2: ids do not ascend; 3: an id is >= ``limit``.
    """
    at, previous = 0, np.int64(-1)
    for i in range(out.size):
        value, shift = np.int64(0), 0
        while True:
            if at >= data.size or shift > 35:
                return 1
            byte = np.int64(data[at])
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        identity = value if i == 0 else previous + value
        if i > 0 and value == 0:
            return 2
        if identity >= limit:
            return 3
        out[i] = identity
        previous = identity
    return 0 if at == data.size else 1
