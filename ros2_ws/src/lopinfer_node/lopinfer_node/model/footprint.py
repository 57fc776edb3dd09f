"""Footprints: which input interval an output interval needs (thesis 4.4.1).

A tensor is divided along one axis. The output interval [a, b) of an operator needs an interval
[lo, hi) of each input, along that input's axis. Two tables over the output index hold lo and hi. So
planner, checker and runtime treat all operators alike, whatever their arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Interval = tuple[int, int]
EMPTY: Interval = (0, 0)


@dataclass(frozen=True)
class Footprint:
    """Says which interval of one input each interval of an output needs.

    `extent`: number of indices of this input. `starts` and `ends` are int64, with one value per
    index of the output, and never decrease. The output interval [a, b) needs the input interval
    [starts[a], ends[b - 1]). If that input interval is empty, the output interval needs nothing.

    The indices that an output index needs may have gaps, or may decrease from one output index to
    the next. In that case `starts` and `ends` describe larger intervals that contain all needed
    indices: the smallest such intervals, or the whole input (`whole`).
    """

    starts: np.ndarray
    ends: np.ndarray
    extent: int

    def __post_init__(self) -> None:
        if self.starts.shape != self.ends.shape or not len(self.starts):
            raise ValueError('a footprint must have one start and one end for each output index')
        for table in (self.starts, self.ends):
            if table.min() < 0 or table.max() > self.extent or (np.diff(table) < 0).any():
                raise ValueError(f'a footprint must stay in 0..{self.extent} and never decrease')

    def need(self, lo: int, hi: int) -> Interval:
        """Return the input interval that the output interval [lo, hi) needs.

        Return (0, 0) if the output interval needs nothing.
        """
        if lo >= hi:
            return EMPTY
        start, end = int(self.starts[lo]), int(self.ends[hi - 1])
        return (start, end) if start < end else EMPTY

    @property
    def local(self) -> bool:
        """Return whether the input has one index, or an output index needs only a part of it."""
        return self.extent == 1 or bool(self.starts[-1] > 0 or self.ends[0] < self.extent)


def _of(starts: np.ndarray, ends: np.ndarray, extent: int) -> Footprint:
    """Return the footprint in which output index i needs the input indices [starts[i], ends[i]).

    The intervals are clipped to the input, and enlarged so that `starts` and `ends` never decrease.
    An output index with an empty interval needs nothing.
    """
    starts, ends = np.clip(starts, 0, extent), np.clip(ends, 0, extent)
    empty = starts >= ends
    starts = np.where(empty, extent, starts)
    ends = np.where(empty, 0, ends)
    return Footprint(np.minimum.accumulate(starts[::-1])[::-1].astype(np.int64),
                     np.maximum.accumulate(ends).astype(np.int64), extent)


def whole(outputs: int, extent: int) -> Footprint:
    """Return the footprint of a global dependency: every output index needs the whole input."""
    return Footprint(np.zeros(outputs, np.int64), np.full(outputs, extent, np.int64), extent)


def fixed(outputs: int, lo: int, hi: int, extent: int) -> Footprint:
    """Return the footprint in which every output index needs the input indices [lo, hi)."""
    return Footprint(np.full(outputs, lo, np.int64), np.full(outputs, hi, np.int64), extent)


def shifted(outputs: int, offset: int, extent: int, step: int = 1) -> Footprint:
    """Return a footprint for slice, pad and cat.

    Output index i needs input index i * step + offset, or nothing if there is no such input index.
    """
    at = np.arange(outputs) * step + offset
    return _of(at, at + 1, extent)


def identity(extent: int) -> Footprint:
    """Return the footprint in which output index i needs input index i."""
    return shifted(extent, 0, extent)


def window(outputs: int, extent: int, kernel: int, stride: int = 1, padding: int = 0,
           dilation: int = 1) -> Footprint:
    """Return the footprint of convolution and pooling.

    Output index i needs the input indices i * stride - padding + dilation * r, for r from 0 to
    kernel - 1.
    """
    start = np.arange(outputs) * stride - padding
    if dilation == 1:
        return _of(start, start + kernel, extent)
    # A dilated kernel has holes. So the interval reaches from the first to the last kernel position
    # inside the input. This interval may be smaller than the window clipped to the input.
    first = start + dilation * np.maximum(0, -(start // dilation))
    last = start + dilation * np.minimum(kernel - 1, (extent - 1 - start) // dilation)
    return _of(np.where(first <= last, first, extent), last + 1, extent)


def transposed_window(outputs: int, extent: int, kernel: int, stride: int = 1, padding: int = 0,
                      dilation: int = 1) -> Footprint:
    """Return the footprint of transposed convolution.

    Output index i needs input index j if j * stride - padding + dilation * r == i for some r from
    0 to kernel - 1.
    """
    at = np.arange(outputs)[:, None] + padding - dilation * np.arange(kernel)[None, :]
    j, remainder = np.divmod(at, stride)
    hit = (remainder == 0) & (j >= 0) & (j < extent)
    return _of(np.where(hit, j, extent).min(1), np.where(hit, j + 1, 0).max(1), extent)


def merged(outputs: int, inner: int, extent: int) -> Footprint:
    """Return the footprint of a reshape that joins the axis with an inner axis of size `inner`.

    Output index i needs input index i // inner.
    """
    at = np.arange(outputs) // inner
    return _of(at, at + 1, extent)


def divided(outputs: int, inner: int, extent: int) -> Footprint:
    """Return the footprint of a reshape that splits the axis; the inner new axis has size `inner`.

    Output index i needs the input indices [i * inner, (i + 1) * inner).
    """
    at = np.arange(outputs) * inner
    return _of(at, at + inner, extent)


def ranges(starts: np.ndarray, ends: np.ndarray, extent: int) -> Footprint:
    """Return a footprint for adaptive pooling and interpolation.

    Output index i needs the input indices [starts[i], ends[i]).
    """
    return _of(np.asarray(starts), np.asarray(ends), extent)
