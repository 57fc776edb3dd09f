"""Divides a model into rows, the units of transmission and of staleness.

Source: ROG (MICRO 2022), Section III-A, "The choice of granularity". Rows are formed as in this
paper.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from ..codecs import RAW, get_codec
from ..errors import ConfigError, PartitionMismatchError, shown

GRANULARITIES = ('model', 'layer', 'row', 'element')
SMALL = 1000  # a parameter with fewer elements than this is one row


@dataclass(frozen=True)
class Parameter:
    """Name and shape of one float32 parameter of a model."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements of this parameter."""
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{shown(self.name, 80)} ({'x'.join(map(str, self.shape)) or 'scalar'})"


class Listing(NamedTuple):
    """A worker's description of its model, without the values of the parameters."""

    parameters: tuple[Parameter, ...]
    granularity: str


@dataclass(frozen=True)
class RowPartition:
    """Divides the flat float32 storage of a model into rows and segments, in model order.

    ``row_offsets`` int64 (rows + 1,) and ``offsets`` int64 (segments + 1,) are the elements at
    which rows and segments begin; their last value is the number of elements. ``row_lengths`` and
    ``lengths`` are the numbers of elements of each row and of each segment. ``segment_row`` int64
    (segments,) is the row of each segment. ``first_segment`` and ``segments_of_row`` int64 (rows,)
    are the first segment and the number of segments of each row. A row longer than
    ``segment_elements`` has several segments. Each segment fits into one chunk and can be decoded
    alone.
    """

    parameters: tuple[Parameter, ...]
    granularity: str = 'row'
    segment_elements: int = 8192
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
        if not self.parameters:
            raise ConfigError('the model has no parameters that require a gradient')
        for parameter in self.parameters:
            if parameter.size == 0:
                raise ConfigError(f'parameter {parameter} has no elements; leave it out')
        lengths = np.concatenate([self._row_lengths(p) for p in self.parameters])
        if self.granularity == 'model':
            lengths = np.array([lengths.sum()])
        parts = -(-lengths // self.segment_elements)
        rows = np.repeat(np.arange(lengths.size), parts)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        within = np.arange(rows.size) - np.repeat(np.cumsum(parts) - parts, parts)
        starts = ends[:-1][rows] + within * self.segment_elements
        set_field = object.__setattr__
        set_field(self, 'row_offsets', ends)
        set_field(self, 'segment_row', rows)
        set_field(self, 'segments_of_row', parts)
        set_field(self, 'first_segment', np.cumsum(parts) - parts)
        set_field(self, 'offsets', np.concatenate([starts, ends[-1:]]))
        set_field(self, 'lengths', np.diff(self.offsets))
        set_field(self, 'row_lengths', lengths)

    def _row_lengths(self, parameter: Parameter) -> np.ndarray:
        if self.granularity == 'element':
            return np.ones(parameter.size, np.int64)
        small = len(parameter.shape) <= 1 or parameter.size < SMALL
        if self.granularity != 'row' or small:
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
        return RowPartition(self.parameters, self.granularity, size)

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
        """SHA-256 (hexadecimal) of granularity, segment length, and all names, shapes, dtypes."""
        text = '\n'.join([self.granularity, str(self.segment_elements),
                          *(f'{p.name} {p.shape} float32' for p in self.parameters)])
        return hashlib.sha256(text.encode()).hexdigest()

    def owner(self, element: int) -> Parameter:
        """Return the parameter to which an element of the flat storage belongs."""
        sizes = np.cumsum([p.size for p in self.parameters])
        return self.parameters[int(np.searchsorted(sizes, element, side='right'))]

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
        require_same(Listing(self.parameters, self.granularity), other)
        raise PartitionMismatchError('segments have different lengths here and there; '
                                     'use the same codec on both sides')


def require_same(here: Listing, there: RowPartition) -> None:
    """Raise `PartitionMismatchError`, which names the first difference, if the models differ."""
    if here.granularity != there.granularity:
        raise PartitionMismatchError(f"granularity is '{shown(here.granularity, 80)}' here but "
                                     f"'{there.granularity}' there")
    for number, (ours, theirs) in enumerate(zip(here.parameters, there.parameters, strict=False)):
        if ours != theirs:
            raise PartitionMismatchError(f'parameter {number} is {ours} here but {theirs} there')
    ours_count, theirs_count = len(here.parameters), len(there.parameters)
    if ours_count != theirs_count:
        longer = here.parameters if ours_count > theirs_count else there.parameters
        raise PartitionMismatchError(
            f'the model has {ours_count} parameters here but {theirs_count} there; '
            f'the first one without a counterpart is {longer[min(ours_count, theirs_count)]}')


def partition_of(parameters: Iterable[tuple[str, Sequence[int]]], granularity: str = 'row',
                 codec: str = 'onebit') -> RowPartition:
    """Divide parameters, given as (name, shape), into rows and segments that fit the codec."""
    return RowPartition(tuple(Parameter(n, tuple(map(int, s))) for n, s in parameters),
                        granularity, get_codec(codec).segment_elements)
