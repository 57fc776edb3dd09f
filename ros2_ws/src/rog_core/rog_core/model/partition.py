"""Divides a model into rows, the units of transmission and of staleness.

Source: ROG (MICRO 2022), Section III-A, "The choice of granularity". Rows are formed as in this
paper. Buffers and frozen parameters, which the paper does not have, follow the trained parameters:
their rows have higher numbers, so a model without them has the paper's rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from ..codecs import RAW, Codec, Part, get_codec, in_model_order
from ..errors import ConfigError, PartitionMismatchError, shown

GRANULARITIES = ('model', 'layer', 'row', 'element')
SMALL = 1000  # a parameter with fewer elements than this is one row


class Role(IntEnum):
    """What the fleet does with a tensor of the model; the numbers are those of messages."""

    TRAINED = 0  # a parameter that requires a gradient: optimised
    AVERAGE = 1  # a floating-point buffer: averaged over the robots
    MAXIMUM = 2  # an integer buffer, such as a counter of batches: the maximum over the robots
    FROZEN = 3   # a parameter without a gradient: not transferred unless a robot unfreezes it


BUFFERS = (Role.AVERAGE, Role.MAXIMUM)


@dataclass(frozen=True)
class Parameter:
    """Name, shape and role of one tensor of a model; its rows are float32."""

    name: str
    shape: tuple[int, ...]
    role: Role = Role.TRAINED

    @property
    def size(self) -> int:
        """Number of elements of this tensor."""
        return prod(self.shape)

    def __str__(self) -> str:
        role = '' if self.role == Role.TRAINED else ', frozen' if self.role == Role.FROZEN \
            else ', buffer'
        return f"{shown(self.name, 80)} ({'x'.join(map(str, self.shape)) or 'scalar'}{role})"


class Listing(NamedTuple):
    """A worker's description of its model, without the values of the parameters.

    ``parameters``: all tensors, the frozen parameters included.
    """

    parameters: tuple[Parameter, ...]
    granularity: str


class Region(NamedTuple):
    """Successive parameters; ``offsets``: first element of each segment within the region."""

    elements: slice
    segments: slice
    offsets: np.ndarray


@dataclass(frozen=True)
class RowPartition:
    """Divides the flat float32 storage of a model into rows and segments.

    The storage contains the trained parameters, then the buffers, each in model order. The
    parameters in ``frozen`` are not in the storage; those of `grown` are, after the buffers. So
    rows and segments have the same numbers in both partitions.

    ``row_offsets`` int64 (rows + 1,) and ``offsets`` int64 (segments + 1,) are the elements at
    which rows and segments begin; their last value is the number of elements. ``row_lengths`` and
    ``lengths`` are the numbers of elements of each row and of each segment. ``segment_row`` int64
    (segments,) is the row of each segment. ``first_segment`` and ``segments_of_row`` int64 (rows,)
    are the first segment and the number of segments of each row. A row longer than
    ``segment_elements`` has several segments. Each segment fits into one chunk and can be decoded
    alone. Segments of buffers fit into one chunk as raw float32.
    """

    parameters: tuple[Parameter, ...]
    granularity: str = 'row'
    segment_elements: int = 8192
    frozen: tuple[Parameter, ...] = ()
    row_offsets: np.ndarray = field(init=False, repr=False, compare=False)
    offsets: np.ndarray = field(init=False, repr=False, compare=False)
    segment_row: np.ndarray = field(init=False, repr=False, compare=False)
    segments_of_row: np.ndarray = field(init=False, repr=False, compare=False)
    lengths: np.ndarray = field(init=False, repr=False, compare=False)
    row_lengths: np.ndarray = field(init=False, repr=False, compare=False)
    first_segment: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.granularity not in GRANULARITIES:
            raise ConfigError(f"granularity '{self.granularity}' is unknown; choose one of "
                              f"{', '.join(GRANULARITIES)}")
        roles = [parameter.role for parameter in self.parameters]
        if Role.TRAINED not in roles:
            raise ConfigError('the model has no parameters that require a gradient')
        if roles != sorted(roles, key=_place):
            raise ConfigError('parameters must come in the order trained, buffers, frozen')
        for parameter in self.parameters:
            if parameter.size == 0:
                raise ConfigError(f'parameter {parameter} has no elements; leave it out')
        per_parameter = [self._row_lengths(p) for p in self.parameters]
        lengths = np.concatenate(per_parameter)
        most = np.repeat([min(RAW.segment_elements, self.segment_elements) if role in BUFFERS
                          else self.segment_elements for role in roles],
                         [part.size for part in per_parameter])
        if self.granularity == 'model':
            trained = sum(part.size for part, role in zip(per_parameter, roles, strict=True)
                          if role == Role.TRAINED)
            lengths = np.concatenate([[lengths[:trained].sum()], lengths[trained:]])
            most = most[trained - 1:]
        parts = -(-lengths // most)
        rows = np.repeat(np.arange(lengths.size), parts)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        within = np.arange(rows.size) - np.repeat(np.cumsum(parts) - parts, parts)
        starts = ends[:-1][rows] + within * most[rows]
        set_field = object.__setattr__
        set_field(self, 'row_offsets', ends)
        set_field(self, 'segment_row', rows)
        set_field(self, 'segments_of_row', parts)
        set_field(self, 'first_segment', np.cumsum(parts) - parts)
        set_field(self, 'offsets', np.concatenate([starts, ends[-1:]]))
        set_field(self, 'lengths', np.diff(self.offsets))
        set_field(self, 'row_lengths', lengths)

    def _row_lengths(self, parameter: Parameter) -> np.ndarray:
        granularity = 'row' if parameter.role in BUFFERS else self.granularity
        if granularity == 'element':
            return np.ones(parameter.size, np.int64)
        small = len(parameter.shape) <= 1 or parameter.size < SMALL
        if granularity != 'row' or small:
            return np.array([parameter.size], np.int64)
        rows = parameter.shape[0]
        return np.full(rows, parameter.size // rows, np.int64)

    @cached_property
    def raw_partition(self) -> RowPartition:
        """The same rows in shorter segments, whose raw float32 values fit into a datagram.

        Model values (snapshots) are sent raw with any codec. A segment for the codec onebit would
        take 32 kB as raw float32, or 23 IP fragments. If one fragment is lost, the whole segment is
        lost. So on a link that loses a few percent of the fragments, most such segments would be
        lost.
        """
        size = RAW.segment_elements
        if self.segment_elements <= size:
            return self
        return RowPartition(self.parameters, self.granularity, size, self.frozen)

    # -- buffers and frozen parameters -----------------------------------------------------------

    @cached_property
    def grown(self) -> RowPartition:
        """The same partition with the parameters of ``frozen`` in the storage."""
        if not self.frozen:
            return self
        return RowPartition(self.parameters + self.frozen, self.granularity, self.segment_elements)

    @cached_property
    def starts(self) -> np.ndarray:
        """First element of each parameter, and the number of elements, int64 (parameters + 1,)."""
        return np.concatenate([[0], np.cumsum([p.size for p in self.parameters])])

    @cached_property
    def buffers(self) -> slice:
        """The elements of the buffers; empty if the model has none."""
        at = [k for k, p in enumerate(self.parameters) if p.role in BUFFERS]
        if not at:
            return slice(self.elements, self.elements)
        return slice(int(self.starts[at[0]]), int(self.starts[at[-1] + 1]))

    @cached_property
    def buffer_rows(self) -> slice:
        """The rows of the buffers."""
        return self._from_elements(self.row_offsets)

    @cached_property
    def buffer_segments(self) -> slice:
        """The segments of the buffers."""
        return self._from_elements(self.offsets)

    def _from_elements(self, offsets: np.ndarray) -> slice:
        first, end = np.searchsorted(offsets, (self.buffers.start, self.buffers.stop))
        return slice(int(first), int(end))

    @cached_property
    def are_integers(self) -> np.ndarray:
        """Whether each element of the buffers is an integer, bool (elements of the buffers,)."""
        buffers = [p for p in self.parameters if p.role in BUFFERS]
        return np.repeat(np.array([p.role == Role.MAXIMUM for p in buffers], bool),
                         np.array([p.size for p in buffers], np.int64))

    @cached_property
    def optimised(self) -> tuple[Region, ...]:
        """The storage without the buffers: the trained parameters, then those of `grown`."""
        both = ((0, self.buffer_segments.start), (self.buffer_segments.stop, self.segments))
        return tuple(Region(slice(int(self.offsets[a]), int(self.offsets[b])), slice(a, b),
                            self.offsets[a:b + 1] - self.offsets[a]) for a, b in both if a < b)

    def trained(self, switched: Iterable[int] = ()) -> np.ndarray:
        """Return which rows a robot trains, bool (rows,).

        ``switched``: numbers of the parameters that the robot has frozen or unfrozen since the
        model was made.
        """
        changed = frozenset(switched)
        return self._trained(changed) if changed else self._trained_at_first.copy()

    @cached_property
    def _trained_at_first(self) -> np.ndarray:
        return self._trained(frozenset())

    def _trained(self, changed: frozenset[int]) -> np.ndarray:
        trained = np.zeros(self.rows, bool)
        for k, parameter in enumerate(self.parameters):
            if parameter.role in BUFFERS or (parameter.role == Role.FROZEN) != (k in changed):
                continue
            first = np.searchsorted(self.row_offsets, self.starts[k], side='right') - 1
            trained[first:np.searchsorted(self.row_offsets, self.starts[k + 1])] = True
        return trained

    def are_buffers(self, ids: np.ndarray) -> bool:
        """Return whether ``ids`` are segments of buffers; a chunk never has both kinds."""
        buffers = self.buffer_segments
        return bool(ids.size) and buffers.start <= ids[0] < buffers.stop

    def codec_of(self, ids: np.ndarray, codec: Codec) -> Codec:
        """Return the codec of a chunk with the segments ``ids``; buffers are always raw."""
        return RAW if self.are_buffers(ids) else codec

    def sizes(self, codec: Codec) -> np.ndarray:
        """Return the number of bytes of each encoded segment, int64 (segments,)."""
        sizes = codec.sizes(self.lengths)
        buffers = self.buffer_segments
        if buffers.start < buffers.stop and codec is not RAW:
            sizes[buffers] = RAW.sizes(self.lengths[buffers])
        return sizes

    def in_order(self, codec: Codec, parts: list[Part]
                 ) -> Iterator[tuple[Codec, np.ndarray, np.ndarray]]:
        """Yield (codec, segments, encoded values) of the chunks ``parts``, in model order.

        There is one result for the parameters and one for the buffers, if there are any.
        """
        for one in dict.fromkeys((codec, RAW)):
            chosen = [part for part in parts if self.codec_of(part[0], codec) is one]
            if chosen:
                yield (one, *in_model_order(one, self, chosen))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.row_offsets.size - 1

    @property
    def segments(self) -> int:
        """Number of segments; equals ``rows`` unless a row is longer than a segment."""
        return self.segment_row.size

    @property
    def elements(self) -> int:
        """Number of float32 elements of the flat storage."""
        return int(self.row_offsets[-1])

    @property
    def digest(self) -> str:
        """SHA-256 (hexadecimal) of granularity, segment length, and all names, shapes, roles."""
        return self._digest_of(self.listing.parameters)

    @property
    def trained_digest(self) -> str:
        """The digest of the trained parameters alone, as in checkpoints without buffers."""
        return self._digest_of([p for p in self.parameters if p.role == Role.TRAINED])

    def _digest_of(self, parameters: Sequence[Parameter]) -> str:
        text = '\n'.join([self.granularity, str(self.segment_elements), *(
            f'{p.name} {p.shape} float32' + (f' {p.role.name.lower()}' if p.role else '')
            for p in parameters)])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def listing(self) -> Listing:
        """All tensors of the model, the frozen parameters included."""
        return Listing(self.parameters + self.frozen, self.granularity)

    def owner(self, element: int) -> Parameter:
        """Return the parameter to which an element of the flat storage belongs."""
        return self.parameters[int(np.searchsorted(self.starts[1:], element, side='right'))]

    def rows_complete(self, segments: np.ndarray) -> np.ndarray:
        """Return for each row whether ``segments`` contains all its segments, bool (rows,).

        ``segments``: ids of segments, each at most once.
        """
        counts = np.bincount(self.segment_row[segments], minlength=self.rows)
        return counts == self.segments_of_row

    def row_sum(self, per_segment: np.ndarray) -> np.ndarray:
        """Return for each row the sum of ``per_segment`` over its segments, (rows,)."""
        if self.rows == self.segments:
            return per_segment
        return np.add.reduceat(per_segment, self.first_segment)

    def require_same(self, other: RowPartition) -> None:
        """Raise `PartitionMismatchError` with the first difference if ``other`` differs."""
        if self.digest == other.digest:
            return
        require_same(self.listing, other)
        raise PartitionMismatchError('segments have different lengths here and there; '
                                     'use the same codec on both sides')


def require_same(here: Listing, there: RowPartition) -> None:
    """Raise `PartitionMismatchError`, which names the first difference, if the models differ."""
    if here.granularity != there.granularity:
        raise PartitionMismatchError(f"granularity is '{shown(here.granularity, 80)}' here but "
                                     f"'{there.granularity}' there")
    other = there.listing.parameters
    for number, (ours, theirs) in enumerate(zip(here.parameters, other, strict=False)):
        if ours != theirs:
            raise PartitionMismatchError(f'parameter {number} is {ours} here but {theirs} there')
    ours_count, theirs_count = len(here.parameters), len(other)
    if ours_count != theirs_count:
        longer = here.parameters if ours_count > theirs_count else other
        raise PartitionMismatchError(
            f'the model has {ours_count} parameters here but {theirs_count} there; '
            f'the first one without a counterpart is {longer[min(ours_count, theirs_count)]}')


def partition_of(parameters: Iterable[Parameter | tuple[str, Sequence[int]]],
                 granularity: str = 'row', codec: str = 'onebit') -> RowPartition:
    """Divide a model into rows, and into segments that fit the codec.

    ``parameters``: in any order of their roles; a pair (name, shape) is a trained parameter.
    """
    known = [p if isinstance(p, Parameter) else Parameter(p[0], tuple(map(int, p[1])))
             for p in parameters]
    frozen = tuple(p for p in known if p.role == Role.FROZEN)
    return RowPartition(tuple(sorted((p for p in known if p.role != Role.FROZEN), key=_order)),
                        granularity, get_codec(codec).segment_elements, frozen)


def _order(parameter: Parameter) -> int:
    return _place(parameter.role)


def _place(role: Role) -> int:
    """Return 0 for trained parameters, 1 for buffers, 2 for frozen parameters."""
    return 0 if role == Role.TRAINED else 2 if role == Role.FROZEN else 1
