"""Codecs: how the values of a set of segments become bytes, and back.

``raw`` sends float32. ``onebit`` sends one sign bit per element and one scale, the mean magnitude,
per segment; what it loses stays with the sender (error feedback), so it reaches the receiver later.
Source: ROG Section V and its reference [22] (dist-EF-SGDM), with one block per row.
``ternary`` sends one element in 64, as +scale or -scale, for links on which one bit is too much.
Source: DGH-(GC)^2, equations 18 to 22, and its reference [40] (the scale: mean magnitude of what is
sent), with the top k taken per block, so that the size of a segment depends on its length alone.
``ternary:P`` sends the fraction P of the elements of each segment, as +scale or -scale, in both
directions: equations 18 to 22 as they stand. Their n is "the number of nodes" in the text; in [40],
where they come from, it is the number of elements of a tensor, and so it is here, the tensor being
a segment (a row, or a part of a long one). The paper leaves the scale to the learning rate; ours is
that of [40].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from . import kernels, sparse, ternary
from .backend import Array, Backend, bfloat16_encode
from .errors import ConfigError, RemoteProtocolError

if TYPE_CHECKING:
    from .partition import RowPartition

Part = tuple[np.ndarray, np.ndarray]  # segment ids int64, their encoded values uint8


class Codec(ABC):
    """One wire format. Encoded segments are self-contained and stand one after the other."""

    name: str
    number: int  # on the wire
    segment_elements: int  # a longer row travels in several segments, so that each fits a chunk

    @abstractmethod
    def sizes(self, lengths: np.ndarray) -> np.ndarray:
        """Encoded bytes of segments of the given lengths."""

    @abstractmethod
    def take(self, backend: Backend, partition: RowPartition, values: Array, ids: np.ndarray,
             magnitude: np.ndarray) -> np.ndarray:
        """Encode the segments ``ids`` of ``values`` and take what the bytes say off ``values``.

        ``magnitude`` float32 (ids,): sum of absolutes of each segment. Returns uint8.
        """

    @abstractmethod
    def difference(self, backend: Backend, partition: RowPartition, master: Array, mirror: Array,
                   ids: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
        """Encode master - mirror of the segments ``ids``; changes neither. Returns uint8."""

    @abstractmethod
    def check(self, partition: RowPartition, ids: np.ndarray, data: np.ndarray) -> None:
        """Raise `RemoteProtocolError` unless ``data`` (uint8) is a valid encoding of ``ids``."""

    @abstractmethod
    def add(self, backend: Backend, partition: RowPartition, values: Array, ids: np.ndarray,
            data: np.ndarray, factor: float = 1.0) -> None:
        """Add factor * the decoded (and checked) data to the segments ``ids`` of ``values``."""

    def refuse_length(self, partition: RowPartition, ids: np.ndarray, data: np.ndarray) -> NoReturn:
        """Raise the error for data that has not the length that the segments need."""
        expected = int(self.sizes(partition.lengths[ids]).sum())
        raise RemoteProtocolError(f'chunk of {ids.size} segments has {data.size} bytes of '
                                  f'{self.name} values; {expected} are needed')


class Raw(Codec):
    """Float32, little endian."""

    name, number, segment_elements = 'raw', 0, 256

    def sizes(self, lengths):
        """See `Codec.sizes`."""
        return 4 * lengths

    def take(self, backend, partition, values, ids, magnitude):
        """See `Codec.take`."""
        dense = backend.gather(values, partition.offsets, ids, _total(partition, ids))
        host = backend.to_host(dense)
        backend.scatter_set(values, partition.offsets, ids, np.zeros_like(host))
        return host.view(np.uint8)

    def difference(self, backend, partition, master, mirror, ids, magnitude):
        """See `Codec.difference`."""
        dense = backend.gather_difference(master, mirror, partition.offsets, ids,
                                          _total(partition, ids))
        return backend.to_host(dense).view(np.uint8)

    def snapshot(self, backend: Backend, partition: RowPartition, values: Array,
                 ids: np.ndarray) -> np.ndarray:
        """Encode the segments ``ids`` of ``values`` as they are. Returns uint8."""
        dense = backend.gather(values, partition.offsets, ids, _total(partition, ids))
        return backend.to_host(dense).view(np.uint8)

    def check(self, partition, ids, data):
        """See `Codec.check`."""
        if data.size != 4 * _total(partition, ids):
            self.refuse_length(partition, ids, data)
        if not kernels.all_finite(_floats(data)):
            raise RemoteProtocolError('chunk holds a value that is NaN or infinite')

    def add(self, backend, partition, values, ids, data, factor=1.0):
        """See `Codec.add`."""
        backend.scatter_add(values, partition.offsets, ids, factor, _floats(data))

    def store(self, backend: Backend, partition: RowPartition, values: Array, ids: np.ndarray,
              data: np.ndarray) -> None:
        """Store the decoded (and checked) data in the segments ``ids`` of ``values``."""
        backend.scatter_set(values, partition.offsets, ids, _floats(data))


class OneBit(Codec):
    """Sign bits and one bfloat16 scale per segment."""

    name, number = 'onebit', 1
    segment_elements = 8192  # 1 KiB of sign bits: one datagram

    def sizes(self, lengths):
        """See `Codec.sizes`."""
        return 2 + (lengths + 7) // 8

    def _encode(self, partition, ids, magnitude):
        lengths = partition.lengths[ids]
        codes = bfloat16_encode((magnitude / lengths).astype(np.float32))
        return codes, np.empty(int(self.sizes(lengths).sum()), np.uint8)

    def take(self, backend, partition, values, ids, magnitude):
        """See `Codec.take`."""
        codes, out = self._encode(partition, ids, magnitude)
        backend.onebit_encode(values, partition.offsets, ids, codes, out)
        return out

    def difference(self, backend, partition, master, mirror, ids, magnitude):
        """See `Codec.difference`."""
        codes, out = self._encode(partition, ids, magnitude)
        backend.onebit_encode_difference(master, mirror, partition.offsets, ids, codes, out)
        return out

    def check(self, partition, ids, data):
        """See `Codec.check`."""
        fault = kernels.onebit_check(partition.lengths, ids, data)
        if fault == -2:
            self.refuse_length(partition, ids, data)
        if fault >= 0:
            raise RemoteProtocolError(f'scale of segment {ids[fault]} is NaN, infinite or negative')

    def add(self, backend, partition, values, ids, data, factor=1.0):
        """See `Codec.add`."""
        backend.onebit_add(values, partition.offsets, ids, factor, data)


class Ternary(Codec):
    """Of each block of 64 elements the largest, as a byte; one bfloat16 scale per segment.

    The scale is the mean magnitude of the elements sent, so ``magnitude`` is not used.
    """

    name, number, segment_elements = 'ternary', 2, 8192

    def sizes(self, lengths):
        """See `Codec.sizes`."""
        return 2 + -(-lengths // ternary.BLOCK)

    def _empty(self, partition, ids):
        return np.empty(int(self.sizes(partition.lengths[ids]).sum()), np.uint8)

    def take(self, backend, partition, values, ids, magnitude):
        """See `Codec.take`."""
        out = self._empty(partition, ids)
        backend.ternary_encode(values, partition.offsets, ids, out)
        return out

    def difference(self, backend, partition, master, mirror, ids, magnitude):
        """See `Codec.difference`."""
        out = self._empty(partition, ids)
        backend.ternary_encode_difference(master, mirror, partition.offsets, ids, out)
        return out

    def check(self, partition, ids, data):
        """See `Codec.check`."""
        rule, at = ternary.check(partition.lengths, ids, data)
        if rule == 1:
            self.refuse_length(partition, ids, data)
        if rule == 2:
            raise RemoteProtocolError(f'scale of segment {ids[at]} is NaN, infinite or negative')
        if rule == 3:
            raise RemoteProtocolError(f'a byte of segment {ids[at]} points outside its block of '
                                      'elements, or sends nothing and is not 0')

    def add(self, backend, partition, values, ids, data, factor=1.0):
        """See `Codec.add`."""
        backend.ternary_add(values, partition.offsets, ids, factor, data)


class SparseTernary(Codec):
    """The largest elements of each segment, two bytes each; one bfloat16 scale per segment.

    ``sparsity`` is the fraction of the elements that is sent, above 0 and at most 0.5. The scale is
    the mean magnitude of the elements sent, so ``magnitude`` is not used.
    """

    number = 3

    def __init__(self, sparsity: float) -> None:
        self.name, self.sparsity = f'ternary:{sparsity}', sparsity
        self.segment_elements = int(min(512 / sparsity, 8192))  # 1 KiB: one datagram

    def sizes(self, lengths):
        """See `Codec.sizes`."""
        return 2 + 2 * sparse.counts_of(lengths, self.sparsity)

    def _counts(self, partition, ids):
        return sparse.counts_of(partition.lengths[ids], self.sparsity)

    def _encode(self, partition, ids):
        counts = self._counts(partition, ids)
        return counts, np.empty(2 * int(counts.sum() + counts.size), np.uint8)

    def take(self, backend, partition, values, ids, magnitude):
        """See `Codec.take`."""
        counts, out = self._encode(partition, ids)
        backend.sparse_encode(values, partition.offsets, ids, counts, out)
        return out

    def difference(self, backend, partition, master, mirror, ids, magnitude):
        """See `Codec.difference`."""
        counts, out = self._encode(partition, ids)
        backend.sparse_encode_difference(master, mirror, partition.offsets, ids, counts, out)
        return out

    def check(self, partition, ids, data):
        """See `Codec.check`."""
        counts = self._counts(partition, ids)
        if data.size != 2 * (counts.sum() + counts.size):
            self.refuse_length(partition, ids, data)
        rule, at = sparse.check(partition.lengths, ids, counts, data)
        if rule == 1:
            raise RemoteProtocolError(f'scale of segment {ids[at]} is NaN, infinite or negative')
        if rule == 2:
            raise RemoteProtocolError(f'a position is outside segment {ids[at]}')
        if rule == 3:
            raise RemoteProtocolError(f'positions in segment {ids[at]} do not ascend')

    def add(self, backend, partition, values, ids, data, factor=1.0):
        """See `Codec.add`."""
        backend.sparse_add(values, partition.offsets, ids, self._counts(partition, ids), factor,
                           data)


RAW = Raw()
# The codecs that have a name alone; `get_codec` knows ``ternary:P`` too.
CODECS: dict[str, Codec] = {codec.name: codec for codec in (RAW, OneBit(), Ternary())}
SMALLER = CODECS['ternary']  # for rows that have no time for the ordinary code
_BY_NUMBER = {codec.number: codec for codec in CODECS.values()}


def get_codec(name: str) -> Codec:
    """Return the codec of that name; `ConfigError` lists the known ones."""
    if name in CODECS:
        return CODECS[name]
    if name.startswith('ternary:'):
        return _sparse_ternary(name.removeprefix('ternary:'))
    raise ConfigError(f"codec '{name}' is unknown; choose one of {', '.join(sorted(CODECS))} "
                      'or ternary:P with a sparsity P, as in ternary:0.05')


@lru_cache
def _sparse_ternary(text: str) -> SparseTernary:
    try:
        sparsity = float(text)
    except ValueError:
        sparsity = 0.0
    if not 0 < sparsity <= 0.5:
        raise ConfigError(f"codec 'ternary:{text}': the sparsity, the fraction of the elements "
                          'that is sent, must be a number above 0 and at most 0.5')
    return SparseTernary(sparsity)


def codec_on_wire(number: int, own: Codec) -> Codec:
    """Return the codec of that number; `RemoteProtocolError` if there is none.

    ``own`` is the receiver's: a number does not say how sparse `SparseTernary` is.
    """
    if number == own.number:
        return own
    if number not in _BY_NUMBER:
        raise RemoteProtocolError(f'chunk says codec {number}, which is unknown or not the one of '
                                  f"this fleet, '{own.name}'")
    return _BY_NUMBER[number]


def in_model_order(codec: Codec, partition: RowPartition, parts: list[Part]) -> Part:
    """Put the segments of many chunks in one encoded whole, ascending.

    One pass over the model in its order costs half of one that jumps from row to row. The ids of
    all parts must be distinct.
    """
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.uint8)
    ids, data = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.argsort(ids)
    sizes = codec.sizes(partition.lengths[ids])
    out = np.empty_like(data)
    kernels.reorder(data, (np.cumsum(sizes) - sizes)[order], sizes[order], out)
    return ids[order], out


def _total(partition: RowPartition, ids: np.ndarray) -> int:
    return int(partition.lengths[ids].sum())


def _floats(data: np.ndarray) -> np.ndarray:
    if data.ctypes.data % 4:
        data = data.copy()
    return data.view('<f4')


def encode_ids(ids: np.ndarray, starts: np.ndarray | None = None) -> list[np.ndarray]:
    """LEB128 differences of ascending segment ids, uint8, per chunk (``starts`` as of `cut`)."""
    starts = np.zeros(1, np.int64) if starts is None else starts
    out, ends = np.empty(5 * ids.size, np.uint8), np.empty(starts.size, np.int64)
    kernels.varint_encode(ids, starts, out, ends)
    return [out[a:b] for a, b in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]


_VARINT_FAULTS = {1: 'the id bytes do not hold {0} ids', 2: 'segment ids do not ascend',
                  3: 'a segment id is not below {1}, the number of segments of the model'}


def decode_ids(data: np.ndarray, count: int, partition: RowPartition) -> np.ndarray:
    """Inverse of `encode_ids`: int64 (count,), all valid segments, or `RemoteProtocolError`."""
    if count < 1 or count > data.size:
        raise RemoteProtocolError(f'chunk says {count} segments but has {data.size} bytes of ids')
    ids = np.empty(count, np.int64)
    fault = kernels.varint_decode(data, partition.segments, ids)
    if fault:
        raise RemoteProtocolError('chunk refused: '
                                  + _VARINT_FAULTS[fault].format(count, partition.segments))
    return ids


def cut(ids: np.ndarray, sizes: np.ndarray, limit: int) -> np.ndarray:
    """First index of each chunk of at most ``limit`` bytes; a chunk holds at least one segment."""
    starts = np.empty(ids.size, np.int64)
    return starts[:kernels.cut(ids, sizes, limit, starts)]
