"""The interface of a codec, and functions that several codecs use.

A codec turns the values of a set of segments into bytes and back. The bytes are numpy
arrays on the host. The values are numpy arrays, or torch tensors on a CUDA device if the codec has
`kernels`. Loops that numba has compiled, or plain numpy, encode and decode numpy arrays. CUDA
kernels (`rog_core.cuda`) encode and decode tensors, and give the same bytes.

Encoded segments follow one another, and each segment can be decoded without the others.
All formats are little endian. In every format except raw, a segment begins with one or
more scales (`Codec.scales`) as bfloat16, the upper half of a float32.

A new codec is a subclass of `Codec`. It is either a new file of this package, listed in
`rog_core.codecs`, or a part of another package; docs/howto/codec.md has an example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NoReturn, Protocol

import numpy as np
from numba import njit

from .. import cuda
from ..arrays import Array
from ..errors import LocalProtocolError, RemoteProtocolError
from .kernels import LENGTH, OWN, SCALE

# What a CUDA kernel encodes. DIFFERENCE: ``values - mirror``. TAKE: ``values``; afterwards the
# kernel subtracts the decoded values from ``values``. COPY: ``values``, without changing them.
DIFFERENCE, TAKE, COPY = range(3)
MOST = 512  # a sparse codec sends at most this many elements of each segment
Part = tuple[np.ndarray, np.ndarray]  # segment ids int64, encoded values of these segments uint8


class Segments(Protocol):
    """The part of `rog_core.model.partition.RowPartition` that a codec uses."""

    @property
    def offsets(self) -> np.ndarray:
        """Index in the flat array at which each segment begins, int64 (segments + 1,)."""

    @property
    def lengths(self) -> np.ndarray:
        """Number of elements of each segment, int64 (segments,)."""


class Codec(ABC):
    """An encoding of values; the base class of all codecs.

    In all methods, ``ids`` int64 are the numbers of segments, ascending; ``values`` is the flat
    array of all values of a model, (elements,).
    """

    name: str                      # name that users write; `get_codec` sets it for plugins
    number: int                    # number in messages; 64 to 255 for codecs of other packages
    # Maximum number of elements of a segment, so that an encoded segment fits into a datagram.
    segment_elements: int
    scales: int = 1                # number of bfloat16 scales that begin an encoded segment
    # `take` replaces the values by kept * (values - decoded values)
    kept: float = 1.0
    # error texts of this codec's own rules; the rules have the numbers `OWN`, `OWN` + 1, ...
    faults: tuple[str, ...] = ()
    # CUDA kernels: (source file in `rog_core.cuda`, prefix of their names). None: no kernels, so
    # the rows of a model on a GPU are on the host.
    kernels: tuple[str, str] | None = None

    @abstractmethod
    def sizes(self, lengths: np.ndarray) -> np.ndarray:
        """Return how many bytes each encoded segment has; ``lengths``: elements of each segment."""

    def take(self, partition: Segments, values: Array, ids: np.ndarray, magnitude: np.ndarray
             ) -> np.ndarray:
        """Encode the segments ``ids`` as uint8, and subtract the decoded values from ``values``.

        ``magnitude`` float32 (ids,): sum of the absolute values of each segment.
        """
        return self._encode(partition, values, None, ids, magnitude)

    def difference(self, partition: Segments, master: Array, mirror: Array, ids: np.ndarray,
                   magnitude: np.ndarray) -> np.ndarray:
        """Encode the segments ``ids`` of ``master - mirror`` as uint8; the arrays do not change.

        ``magnitude`` float32 (ids,): sum of the absolute differences of each segment.
        """
        return self._encode(partition, master, mirror, ids, magnitude)

    def _encode(self, partition: Segments, values: Array, mirror: Array | None, ids: np.ndarray,
                magnitude: np.ndarray) -> np.ndarray:
        if not isinstance(values, np.ndarray):
            return self._encode_by_kernel(partition, values, mirror, ids, magnitude,
                                          TAKE if mirror is None else DIFFERENCE)
        return self._encode_on_host(partition, values, mirror, ids, magnitude)

    def has_kernels(self, values: Array) -> bool:
        """Return whether this codec has CUDA kernels that can process ``values``."""
        return self.kernels is not None and cuda.usable(values)

    def _encode_on_host(self, partition: Segments, values: np.ndarray, mirror: np.ndarray | None,
                        ids: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
        """Encode ``values - mirror``; return uint8.

        If ``mirror`` is None, encode ``values`` and subtract the decoded values from them. A codec
        has compiled loops here, or `_encode_dense` and `_decode_dense`.
        """
        index, lengths = elements(partition, ids), partition.lengths[ids]
        dense = values[index] if mirror is None else values[index] - mirror[index]
        out = self._encode_dense(dense, lengths, magnitude)
        if mirror is None:
            values[index] -= self._decode_dense(lengths, out)
        return out

    def _encode_dense(self, dense: np.ndarray, lengths: np.ndarray, magnitude: np.ndarray
                      ) -> np.ndarray:
        """Encode ``dense`` float32, in which the segments follow one another; return uint8.

        ``lengths``: number of elements of each of these segments.
        """
        raise NotImplementedError(f'{type(self).__name__} must define _encode_dense')

    def _decode_dense(self, lengths: np.ndarray, data: np.ndarray) -> np.ndarray:
        """Return the values that ``data`` encodes, float32, one segment after the other."""
        raise NotImplementedError(f'{type(self).__name__} must define _decode_dense')

    def _room(self, partition: Segments, ids: np.ndarray) -> np.ndarray:
        """Return memory for the encoded segments ``ids``."""
        # faster than sizes.sum() if there are few sizes
        return np.empty(np.add.reduce(self.sizes(partition.lengths[ids])), np.uint8)

    def _encode_by_kernel(self, partition: Segments, values: Array, mirror: Array | None,
                          ids: np.ndarray, magnitude: np.ndarray | None, mode: int) -> np.ndarray:
        code = cuda.empty(int(self.sizes(partition.lengths[ids]).sum()), values)
        self._launch('encode', partition, values, ids, magnitude,
                     (values if mirror is None else mirror,), code, np.int32(mode))
        return cuda.download(code)

    def _launch(self, name: str, partition: Segments, values: Array, ids: np.ndarray,
                magnitude: np.ndarray | None, before: tuple[Array, ...], code: Array,
                *after: np.number) -> None:
        """Start a CUDA kernel with a table of the segments, int64 (ids, 4), see `common.cuh`.

        ``code``: the encoded bytes on the host, or memory for them on the device. ``before``:
        arguments that the kernel takes before the table. ``after``: arguments that the kernel
        takes after ``code``.
        """
        table = np.empty((ids.size, 4), np.int64)
        table[:, 0], table[:, 1] = partition.offsets[ids], partition.lengths[ids]
        table[:, 2] = starts_of(self.sizes(table[:, 1]))
        table[:, 3] = self._numbers(table[:, 1], magnitude)
        assert self.kernels is not None, 'see `rog_core.worker.learner.Learner`'
        family, prefix = self.kernels
        cuda.launch(family, f'{prefix}_{name}', ids.size, values, values, *before, table, code,
                    *after)

    def _numbers(self, lengths: np.ndarray, magnitude: np.ndarray | None) -> np.ndarray | int:
        """Return the last column of the kernel's table: a number for each segment, int64.

        Each codec defines the meaning of this number. ``magnitude``: see `take`; None if the
        kernel does not need it.
        """
        return 0

    def check(self, partition: Segments, ids: np.ndarray, data: np.ndarray) -> float:
        """Check that ``data`` (uint8) is a valid encoding of the segments ``ids``.

        Returns the sum of the squares of the decoded values. Raises `RemoteProtocolError` if
        ``data`` is invalid.
        """
        rule, at, energy = self._look(partition.lengths, ids, data)
        if rule:
            self._refuse(partition, ids, data, rule, at)
        return energy

    @abstractmethod
    def _look(self, lengths: np.ndarray, ids: np.ndarray, data: np.ndarray
              ) -> tuple[int, int, float]:
        """Check ``data`` and return three numbers.

        The first number is the rule that ``data`` breaks: 0 (none), `LENGTH`, `SCALE`, or `OWN`
        and higher. The second number is the position in ``ids`` of the segment that breaks the
        rule. The third number is the sum of the squares of the decoded values.

        ``lengths``: number of elements of each segment of the model.
        """

    def add(self, partition: Segments, values: Array, ids: np.ndarray, data: np.ndarray,
            factor: float = 1.0) -> None:
        """Decode ``data``, and add factor * decoded values to the segments ``ids`` of ``values``.

        The caller must `check` the data first.
        """
        if isinstance(values, np.ndarray):
            self._add_on_host(partition, values, ids, data, np.float32(factor))
        else:
            self._launch('add', partition, values, ids, None, (), data, np.float32(factor))

    def _add_on_host(self, partition: Segments, values: np.ndarray, ids: np.ndarray,
                     data: np.ndarray, factor: np.float32) -> None:
        """Do the same as `add`, by compiled loops or by `_decode_dense`."""
        values[elements(partition, ids)] += factor * self._decode_dense(partition.lengths[ids],
                                                                       data)

    def scaled(self, partition: Segments, ids: np.ndarray, data: np.ndarray, factor: float
               ) -> np.ndarray:
        """Return encoded data whose decoded values are ``factor`` (0 to 1) times those of ``data``.

        The caller must `check` the data before. The scales are rounded down. A codec without scales
        must override this method.
        """
        out, starts = data.copy(), starts_of(self.sizes(partition.lengths[ids]))
        starts = (starts[:, None] + 2 * np.arange(self.scales)).reshape(-1)
        codes = out[starts].astype(np.uint16) | out[starts + 1].astype(np.uint16) << 8
        codes = ((bfloat16_decode(codes) * np.float32(factor)).view(np.uint32) >> 16)
        out[starts], out[starts + 1] = codes & 255, codes >> 8
        return out

    def _refuse(self, partition: Segments, ids: np.ndarray, data: np.ndarray, rule: int, at: int
               ) -> NoReturn:
        """Raise the error for ``data`` that breaks ``rule`` at segment ``ids[at]``."""
        if rule == LENGTH:
            expected = int(self.sizes(partition.lengths[ids]).sum())
            raise RemoteProtocolError(f'chunk of {ids.size} segments has {data.size} bytes of '
                                      f'{self.name} values; {expected} are needed')
        if rule == SCALE:
            raise RemoteProtocolError(f'scale of segment {ids[at]} is NaN, infinite or negative')
        raise RemoteProtocolError(self.faults[rule - OWN].format(ids[at]))


def in_model_order(codec: Codec, partition: Segments, parts: list[Part]) -> Part:
    """Join the segments of many chunks and sort them by ascending id.

    No id may be in two parts. A loop over the result visits the rows in the order of the model.
    Such a loop takes half as long as a loop in the order of arrival.
    """
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.uint8)
    ids, data = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.argsort(ids)
    sizes = codec.sizes(partition.lengths[ids])
    out = np.empty_like(data)
    _reorder(data, starts_of(sizes)[order], sizes[order], out)
    return ids[order], out


@njit(nogil=True, cache=True)
def _reorder(data, starts, sizes, out):
    """Copy ranges of bytes into ``out``, one after the other.

    ``starts``, ``sizes``: first byte and number of bytes of each range in ``data``.
    """
    at = 0
    for i in range(starts.size):
        out[at:at + sizes[i]] = data[starts[i]:starts[i] + sizes[i]]
        at += sizes[i]


def bfloat16_encode(values: np.ndarray) -> np.ndarray:
    """Round float32 values (>= 0) to bfloat16; return the bits of bfloat16 as uint16."""
    return ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def bfloat16_decode(codes: np.ndarray) -> np.ndarray:
    """Return the float32 values of bfloat16 numbers, which are given by their bits as uint16."""
    return (codes.astype(np.uint32) << 16).view(np.float32)


def require_few(counts: np.ndarray, codec: Codec) -> np.ndarray:
    """Return ``counts``; raise `LocalProtocolError` if a count exceeds `MOST`."""
    if counts.max(initial=0) > MOST:
        raise LocalProtocolError(
            f'a segment must send at most {MOST} elements, got {counts.max()}: make the partition '
            f'with partition_of(..., codec={codec.name!r})')
    return counts


def starts_of(sizes: np.ndarray) -> np.ndarray:
    """Return where each range starts; the ranges lie one after the other, from position 0."""
    return np.cumsum(sizes) - sizes


def elements(partition: Segments, ids: np.ndarray) -> np.ndarray:
    """Return the positions of all elements of the segments ``ids`` in the model, int64."""
    lengths = partition.lengths[ids]
    return np.repeat(partition.offsets[ids] - starts_of(lengths), lengths) \
        + np.arange(lengths.sum())
