"""The encoding of segment ids, and the division of segments into chunks.

The ids of a chunk ascend. The first id is encoded as it is, and each further id as the difference
from the id before. The encoding is LEB128: seven bits per byte, lowest bits first; bit 7 says that
another byte follows. If an id is 1 higher than the id before, it takes one byte.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..errors import RemoteProtocolError
from .base import Segments


def encode_ids(ids: np.ndarray) -> np.ndarray:
    """Return the encoded ids of one chunk, uint8; ``ids``: ascending int64."""
    (_, _, data), = split_into_chunks(ids, np.zeros_like(ids), 1 << 62)
    return data


def split_into_chunks(ids: np.ndarray, sizes: np.ndarray, limit: int
                      ) -> list[tuple[int, int, np.ndarray]]:
    """Divide ascending segments into chunks of at most ``limit`` bytes of ids and values.

    ``sizes`` int64 (ids,): bytes of the values of each segment. A chunk contains at least one
    segment, even if this segment exceeds ``limit``.

    Returns three values for each chunk. The first is the number of segments up to the end of this
    chunk, counted from the first chunk. The second is the number of bytes of the values of all
    these segments. The third is the encoded ids of this chunk alone, uint8.
    """
    out, ends = np.empty(5 * ids.size, np.uint8), np.empty((3, ids.size), np.int64)
    count, begin, chunks = _split_into_chunks(ids, sizes, limit, out, ends), 0, []
    for segments, values, end in ends[:, :count].T.tolist():
        chunks.append((segments, values, out[begin:end]))
        begin = end
    return chunks


_VARINT_FAULTS = {1: 'the id bytes do not hold {0} ids', 2: 'segment ids do not ascend',
                  3: 'a segment id is not below {1}, the number of segments of the model'}


def decode_ids(data: np.ndarray, count: int, partition: Segments) -> np.ndarray:
    """Return the ids that `encode_ids` has encoded, int64 (count,).

    Raises `RemoteProtocolError` unless ``data`` holds exactly ``count`` ascending ids, and each is
    the id of a segment of the model.
    """
    if count < 1 or count > data.size:
        raise RemoteProtocolError(f'chunk says {count} segments but has {data.size} bytes of ids')
    ids = np.empty(count, np.int64)
    fault = _decode(data, partition.lengths.size, ids)
    if fault:
        raise RemoteProtocolError('chunk refused: '
                                  + _VARINT_FAULTS[fault].format(count, partition.lengths.size))
    return ids


@njit(nogil=True, cache=True)
def _varint_size(value):
    return 1 + (value > 127) + (value > 16383) + (value > 2097151) + (value > 268435455)


@njit(nogil=True, cache=True)
def _split_into_chunks(ids, sizes, limit, out, ends):
    """Write the encoded ids to ``out`` and the ends of the chunks to ``ends``.

    Returns the number of chunks. ``ends[:, c]`` contains three numbers for chunk c. The first
    is the number of segments in all chunks up to and including chunk c. The second is the
    number of bytes of the values of all these segments. The third is the position in
    ``out`` at which the ids of chunk c end.
    """
    chunks, used, at, values, previous = 0, 0, 0, 0, np.int64(0)
    for i in range(ids.size):
        cost = sizes[i] + _varint_size(ids[i] - previous)
        if i and used + cost > limit:
            ends[0, chunks], ends[1, chunks], ends[2, chunks] = i, values, at
            chunks += 1
            used, previous = 0, np.int64(0)
            cost = sizes[i] + _varint_size(ids[i])
        used += cost
        values += sizes[i]
        rest = ids[i] - previous
        previous = ids[i]
        while rest > 127:
            out[at] = np.uint8(rest & 127 | 128)
            rest >>= 7
            at += 1
        out[at] = np.uint8(rest)
        at += 1
    if ids.size:
        ends[0, chunks], ends[1, chunks], ends[2, chunks] = ids.size, values, at
        chunks += 1
    return chunks


@njit(nogil=True, cache=True)
def _decode(data, limit, out):
    """Decode ids into ``out``; return 0 if ``data`` is valid, otherwise the number of a fault.

    Fault 1: too few or too many bytes. Fault 2: the ids do not ascend. Fault 3: an id is >=
    ``limit``.
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
