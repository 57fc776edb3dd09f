"""Transmission plan: which rows a transfer carries, in which order, and which must arrive.

Source: ROG, Section IV-B, Algorithm 3 (ImportanceMetric) and Algorithm 4 (MTA).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..codecs import Codec
from ..errors import ConfigError
from ..model.partition import RowPartition
from ..protocol.messages import Sending

# For the option `second` of a method; values as in the authors' artifact. Each pair is a staleness
# bound and a share of the rows. Of the pairs whose bound is at most the bound of the method, the
# largest share is mandatory in addition to the MTA.
SECOND = ((5, .03), (10, .075), (20, .11), (40, .115))


@lru_cache
def minimum_transmission(threshold: int) -> float:
    """Return the share P of the rows that every transfer must carry: P solves (1-P)^(S-1) = P.

    S: the staleness threshold. With this share, every row is sent before its staleness reaches S.
    Source: ROG, Section IV-B and Table I. For example, P is 1 for S = 1, and 0.5 for S = 2.
    """
    if threshold < 1:
        raise ConfigError(f'the staleness threshold is {threshold}; it must be at least 1')
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if (1 - middle) ** (threshold - 1) > middle:
            low = middle
        else:
            high = middle
    return high


@dataclass(frozen=True)
class Plan:
    """Windows of segments in order of importance.

    Inside a window, segment ids ascend, so that an id takes about one byte in the message. The
    order of importance inside a window is lost, so a window is small (`window_size`).

    The first ``mandatory`` windows are sent in model order, however long this takes. All other
    windows are sent only within ``budget`` seconds. The MTA time is ``mta_factor`` times the
    transmission time of the mandatory rows. Usually the factor is 1. But with the option
    ``-minimum``, fewer rows are mandatory than the MTA has. Then the factor is the number of rows
    of the MTA divided by the number of mandatory rows.
    """

    windows: list[np.ndarray]
    mandatory: int
    rows: int
    budget: float = float('inf')
    mta_factor: float = 1.0

    @property
    def wanted(self) -> int:
        """Number of mandatory segments; if no window is mandatory, the number of all segments."""
        return sum(ids.size for ids in self.windows[:self.mandatory or None])


def _windows(partition: RowPartition, segments: np.ndarray) -> list[np.ndarray]:
    """Cut ``segments`` into windows, in this order; no window mixes buffers with parameters."""
    size, buffers = window_size(partition), partition.buffer_segments
    of_buffers = (segments >= buffers.start) & (segments < buffers.stop)
    if not of_buffers.any():
        return _cut(segments, size)
    found = [(at[first], ids) for at in map(np.flatnonzero, (~of_buffers, of_buffers))
             for first, ids in zip(range(0, at.size, size), _cut(segments[at], size), strict=True)]
    return [ids for _, ids in sorted(found, key=lambda pair: pair[0])]


def _cut(segments: np.ndarray, size: int) -> list[np.ndarray]:
    full = segments.size // size * size
    windows = list(np.sort(segments[:full].reshape(-1, size)))
    return windows if full == segments.size else [*windows, np.sort(segments[full:])]


def window_size(partition: RowPartition) -> int:
    """Return the number of segments per window: 1/32 of all segments, from 16 to 1024."""
    return min(max(partition.segments // 32, 16), 1024)


def _expand(partition: RowPartition, rows: np.ndarray) -> np.ndarray:
    """Return the segments of the given rows, in the order of the rows."""
    if partition.rows == partition.segments:
        return rows
    counts = partition.segments_of_row[rows]
    first = partition.first_segment[rows]
    step = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(first, counts) + step


def everything(partition: RowPartition, rows: np.ndarray | None = None) -> Plan:
    """Return a plan that makes the given rows (None: all rows) mandatory, in model order."""
    rows = np.arange(partition.rows) if rows is None else rows
    windows = _windows(partition, _expand(partition, rows))
    return Plan(windows, len(windows), rows.size)


def importance(mean_magnitude: np.ndarray, age: np.ndarray, f1: float, f2: float,
               buffers: slice = slice(0, 0)) -> np.ndarray:
    """Return the importance of each row: f1 * mean|gradient| + f2 * age (Algorithm 3).

    The magnitude is divided by its mean over the rows, so that f1 and f2 mean the same for every
    model and learning rate. ``age`` is in iterations. At a worker, ``age`` is the number of
    iterations since the row was last pushed (max(iters) - iters). At the server, ``age`` is larger
    for a row with a newer push (iters - min(iters)). The rows ``buffers`` have a mean of their own,
    because their changes are no gradients.
    """
    if buffers.start == buffers.stop:
        mean = float(mean_magnitude.mean()) or 1.0
        return f1 / mean * mean_magnitude + f2 * age
    means = np.ones(mean_magnitude.size, np.float32)
    others = np.ones(mean_magnitude.size, bool)
    others[buffers] = False
    for part in (others, ~others):
        means[part] = mean_magnitude[part].mean() or 1.0
    return f1 * mean_magnitude / means + f2 * age


def _descending(scores: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the positions by descending score; positions where ``first`` is true come first.

    Equal scores keep their order. The function sorts integers, which is several times faster than
    `numpy.lexsort`. Each integer has 1 bit for "not first", 32 bits for the score (as float32) and
    31 bits for the position. The bits of floats sort like integers if those of negative floats are
    inverted.
    """
    bits = scores.astype(np.float32).view(np.int32).astype(np.int64)
    ascending = np.where(bits < 0, -1 - (bits & 0x7fffffff), bits) + (1 << 31)
    key = (~first).astype(np.uint64) << np.uint64(63)
    key |= ((1 << 32) - 1 - ascending).astype(np.uint64) << np.uint64(31)
    key |= np.arange(scores.size, dtype=np.uint64)
    key.sort()
    return (key & np.uint64(0x7fffffff)).astype(np.int64)


def by_score(partition: RowPartition, scores: np.ndarray, rows: np.ndarray, budget: float
             ) -> Plan:
    """Return a plan of ``rows`` by descending score; no row is mandatory.

    ``scores``: score of every row of the model.
    """
    order = rows[_descending(scores[rows], np.zeros(rows.size, bool))]
    return Plan(_windows(partition, _expand(partition, order)), 0, rows.size, budget)


def due_buffers(partition: RowPartition, sending: Sending, age: np.ndarray) -> np.ndarray:
    """Return which rows may be sent as far as the age of buffers decides, bool (rows,).

    Statistics change slowly, and are sent raw: a row of a buffer is sent after a quarter of the
    staleness threshold, so that it takes few bytes. ``age``: see `by_importance`.
    """
    due = np.ones(age.size, bool)
    rows = partition.buffer_rows
    due[rows] = age[rows] >= sending.threshold // 4
    return due


def affordable(plan: Plan, partition: RowPartition, codec: Codec, smaller: Codec, rate: float,
               patience: float) -> Codec:
    """Return ``codec``, or ``smaller`` if the mandatory rows would take longer than ``patience``.

    ``rate``: rate of the link, bytes/s. ``patience`` is in seconds. An id counts as one byte.
    """
    if not plan.mandatory or patience == float('inf'):
        return codec
    ids = np.concatenate(plan.windows[:plan.mandatory])
    nbytes = int(partition.sizes(codec)[ids].sum()) + ids.size
    return smaller if nbytes > rate * patience else codec


def by_importance(partition: RowPartition, sending: Sending, scores: np.ndarray, age: np.ndarray,
                  candidates: np.ndarray, budget: float, total: int = 0) -> Plan:
    """Return the plan of ATP: overdue rows first, then the other rows by descending score.

    Overdue rows are mandatory. If they are fewer than the share ``sending.minimum`` of all rows,
    the next rows in this order are mandatory, too. ``scores``: importance, float32 (rows,).
    ``age`` int64 (rows,): number of iterations since each row was sent. A row whose age reaches the
    threshold is overdue: if it were not sent, it would exceed the staleness bound. ``candidates``
    (bool, (rows,)): rows that may be sent at all. ``budget``: MTA time in seconds. ``total``:
    number of rows of which ``sending.minimum`` is a share; 0: all rows of the model. Rows with
    equal scores keep model order, so the plan is deterministic.
    """
    total = total or partition.rows
    rows = np.flatnonzero(candidates)
    if rows.size == 0:
        return Plan([], 0, 0, budget)
    if not sending.by_importance:
        scores = np.zeros(partition.rows)
    late = (age >= sending.threshold)[rows] if sending.threshold else np.zeros(rows.size, bool)
    order = rows[_descending(scores[rows], late)]
    # At least one row is mandatory, because an empty transfer would not measure the link.
    least = max(int(np.ceil(sending.minimum * total)), int(late.sum()), 1)
    least = min(least, rows.size)
    # All mandatory rows are sent, so their order does not matter. Model order gives the fastest
    # memory access and the shortest encoded ids.
    first = _windows(partition, _expand(partition, np.sort(order[:least])))
    rest = _windows(partition, _expand(partition, order[least:]))
    factor = max(sending.mta * total / least, 1.0)
    return Plan(first + rest, len(first), rows.size, budget, factor)
