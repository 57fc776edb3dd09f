"""The interface of a codec, and functions that several codecs use.

A codec turns the values of a set of segments into bytes and back. The bytes are numpy
arrays on the host. The values are numpy arrays, or torch tensors on any device.
Compiled loops encode and decode numpy arrays. Tensor operations (see `rog_core.arrays`)
or CUDA kernels (`rog_core.cuda`) encode and decode tensors. All three give the same bytes.

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
from ..arrays import Array, from_host
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
    # CUDA kernels: (source file in `rog_core.cuda`, prefix of their names); None: no kernels.
    kernels: tuple[str, str] | None = None
    compiled: bool = True          # whether compiled loops (not torch) process numpy arrays

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
        lengths = partition.lengths[ids]
        if isinstance(values, np.ndarray) and self.compiled:
            sizes = self.sizes(lengths)
            # faster than sizes.sum() if there are few sizes
            out = np.empty(np.add.reduce(sizes), np.uint8)
            self._encode_compiled(values, mirror, partition.offsets, ids, magnitude, sizes, out)
            return out
        if self.uses_kernels(values):
            return self._encode_by_kernel(partition, values, mirror, ids, magnitude,
                                          TAKE if mirror is None else DIFFERENCE)
        values, mirror = as_tensor(values), None if mirror is None else as_tensor(mirror)
        out = self._encode_dense(gather(partition, values, mirror, ids), lengths, magnitude)
        if mirror is None:
            self.add(partition, values, ids, out, -1.0)
        return out

    def uses_kernels(self, values: Array) -> bool:
        """Return whether CUDA kernels, not compiled loops or torch, process ``values``."""
        return self.kernels is not None and cuda.usable(values)

    def _encode_compiled(self, values: np.ndarray, mirror: np.ndarray | None, offsets: np.ndarray,
                         ids: np.ndarray, magnitude: np.ndarray, sizes: np.ndarray,
                         out: np.ndarray) -> None:
        """Encode ``values - mirror`` into ``out``.

        If ``mirror`` is None, encode ``values`` and subtract the decoded values from them. A codec
        needs this method only if its field `compiled` is true.
        """
        raise NotImplementedError

    @abstractmethod
    def _encode_dense(self, dense: Array, lengths: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
        """Encode the tensor ``dense``, in which the segments follow one another."""

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
        assert self.kernels is not None, 'see `uses_kernels`'
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
        if isinstance(values, np.ndarray) and self.compiled:
            self._add_compiled(values, partition, ids, data, np.float32(factor))
        elif self.uses_kernels(values):
            self._launch('add', partition, values, ids, None, (), data, np.float32(factor))
        else:
            self._add_dense(as_tensor(values), partition, ids, data, factor)

    def _add_compiled(self, values: np.ndarray, partition: Segments, ids: np.ndarray,
                      data: np.ndarray, factor: np.float32) -> None:
        """Do the same as `add`; a codec needs this method only if its field `compiled` is true."""
        raise NotImplementedError

    @abstractmethod
    def _add_dense(self, values: Array, partition: Segments, ids: np.ndarray, data: np.ndarray,
                   factor: float) -> None:
        """Do the same as `add` for a tensor ``values``."""

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


# -- scales and bytes, on the host -----------------------------------------------------------------

def bfloat16_encode(values: np.ndarray) -> np.ndarray:
    """Round float32 values (>= 0) to bfloat16; return the bits of bfloat16 as uint16."""
    return ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def bfloat16_decode(codes: np.ndarray) -> np.ndarray:
    """Return the float32 values of bfloat16 numbers, which are given by their bits as uint16."""
    return (codes.astype(np.uint32) << 16).view(np.float32)


def mean_scales(of: np.ndarray, chosen: np.ndarray, segments: int) -> np.ndarray:
    """Return for each segment the mean magnitude of the nonzero values that it sends.

    The means are bfloat16 numbers, given by their bits as uint16. ``chosen``: the sent values of
    all segments; ``of``: the segment of each value, counted from 0.
    """
    total = np.bincount(of, np.abs(chosen), segments)
    count = np.bincount(of[chosen != 0], minlength=segments)
    return bfloat16_encode((total / np.maximum(count, 1)).astype(np.float32))


def largest_of(dense: Array, lengths: np.ndarray, counts: np.ndarray
               ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the elements of largest magnitude in each segment; of equal ones, choose the first.

    ``dense``: a tensor in which the segments follow one another; ``counts``: number of elements
    to find in each segment. Returns three arrays on the host: the segment of each element (counted
    from 0), its position in the segment, and its value. The elements are sorted by segment, then by
    position as in `kernels.select_largest`. Zeros come last in their segment.
    """
    segments = np.arange(lengths.size)
    order = dense.abs().argsort(descending=True, stable=True)
    order = order[repeat(segments, lengths, dense)[order].argsort(stable=True)]
    largest = order[spans(starts_of(lengths), counts, dense)]
    chosen, at = dense[largest].cpu().numpy(), largest.cpu().numpy()
    # Sort into the order of the compiled loops. The host does this, because few elements are left.
    of = np.repeat(segments, counts)
    ascending = np.lexsort((at, chosen == 0, of))
    return of, at[ascending] - np.repeat(starts_of(lengths), counts), chosen[ascending]


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


def _bodies(sizes: np.ndarray) -> np.ndarray:
    """Return the positions of all bytes of the encoded data that are not scales.

    ``sizes``: number of these bytes in each segment.
    """
    return np.arange(sizes.sum()) + np.repeat(2 * np.arange(1, sizes.size + 1), sizes)


def join(scales: np.ndarray, body: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Join encoded segments: for each segment, its scale (2 bytes) and its part of ``body``.

    ``sizes``: number of bytes of ``body`` for each segment.
    """
    out = np.empty(body.size + 2 * sizes.size, np.uint8)
    starts = starts_of(sizes + 2)
    out[starts], out[starts + 1] = scales & 255, scales >> 8
    out[_bodies(sizes)] = body
    return out


def split(data: np.ndarray, sizes: np.ndarray, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Reverse `join`: return the scales, float32 and multiplied by ``factor``, and the body."""
    starts = starts_of(sizes + 2)
    codes = data[starts].astype(np.uint16) | data[starts + 1].astype(np.uint16) << 8
    return np.float32(factor) * bfloat16_decode(codes), data[_bodies(sizes)]


# -- whole arrays, on the device of a tensor -------------------------------------------------------

def as_tensor(values: Array) -> Array:
    """Return a tensor that shares the memory of ``values``."""
    import torch
    return torch.as_tensor(values)


def repeat(values: np.ndarray, counts: np.ndarray, like: Array) -> Array:
    """Return a tensor that repeats each of ``values`` as often as ``counts`` says."""
    return from_host(values, like).repeat_interleave(from_host(counts, like),
                                                     output_size=int(counts.sum()))


def spans(starts: np.ndarray, lengths: np.ndarray, like: Array) -> Array:
    """Return all integers of the ranges [start, start + length), as one int64 tensor."""
    import torch
    first = repeat(starts - starts_of(lengths), lengths, like)
    return first + torch.arange(len(first), device=like.device)


def elements(partition: Segments, ids: np.ndarray, like: Array) -> Array:
    """Return the indices of all elements of the segments ``ids``, as a tensor."""
    return spans(partition.offsets[ids], partition.lengths[ids], like)


def gather(partition: Segments, values: Array, mirror: Array | None, ids: np.ndarray) -> Array:
    """Return a copy of ``values - mirror`` that contains only the segments ``ids``, without gaps.

    If ``mirror`` is None, copy these segments of ``values``.
    """
    index = elements(partition, ids, values)
    return values[index] if mirror is None else values[index] - mirror[index]


def add_signed(values: Array, index: np.ndarray, negative: np.ndarray, scale: np.ndarray) -> None:
    """Add ``scale`` to the elements ``index``; subtract it where ``negative`` is true."""
    values[from_host(index, values)] += from_host(np.where(negative, -scale, scale), values)
