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

# The option `second`, as in the authors' artifact: from this threshold on, a second share of rows.
SECOND = ((5, .03), (10, .075), (20, .11), (40, .115))


@lru_cache
def minimum_transmission(threshold: int) -> float:
    """Share P of the rows that every transfer must carry: the solution of (1-P)^(S-1) = P.

    With it, all rows have been sent before the staleness threshold S is reached.
    Source: ROG, Section IV-B and Table I. S = 1 gives 1, S = 2 gives 0.5.
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

    Inside a window segment ids ascend, so that an id takes about one byte on the wire; the order of
    importance inside a window is lost, which is why it has at most 1/32 of the model. The first
    ``mandatory`` windows are sent however long it takes, in model order, the others only within
    ``budget`` seconds. ``mta_factor``: the MTA over the mandatory rows, where these are fewer
    (option ``-minimum``); it scales the measured time.
    """

    windows: list[np.ndarray]
    mandatory: int
    rows: int
    budget: float = float('inf')
    mta_factor: float = 1.0

    @property
    def wanted(self) -> int:
        """Number of segments that must arrive; of all segments if no window is mandatory."""
        return sum(ids.size for ids in self.windows[:self.mandatory or None])


def _windows(segments: np.ndarray, size: int) -> list[np.ndarray]:
    return [np.sort(segments[i:i + size]) for i in range(0, segments.size, size)]


def window_size(partition: RowPartition) -> int:
    """Segments per window: 1/32 of the model, but at least 16 and at most 1024."""
    return int(np.clip(partition.segments // 32, 16, 1024))


def _expand(partition: RowPartition, rows: np.ndarray) -> np.ndarray:
    """Segments of the given rows, in the order of the rows."""
    if partition.rows == partition.segments:
        return rows
    counts = partition.segments_of_row[rows]
    first = partition.first_segment[rows]
    step = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(first, counts) + step


def everything(partition: RowPartition, rows: np.ndarray | None = None) -> Plan:
    """Return the plan of all (given) rows, all mandatory, in model order."""
    rows = np.arange(partition.rows) if rows is None else rows
    windows = _windows(_expand(partition, rows), window_size(partition))
    return Plan(windows, len(windows), rows.size)


def importance(mean_magnitude: np.ndarray, age: np.ndarray, f1: float, f2: float) -> np.ndarray:
    """Algorithm 3: f1 * mean|gradient| + f2 * age, per row.

    The magnitude is divided by its mean over the rows, so that f1 and f2 mean the same for every
    model and learning rate. ``age`` in iterations: worker mode, how long the row has not been
    pushed (max(iters) - iters); server mode, how fresh it is (iters - min(iters)).
    """
    mean = float(mean_magnitude.mean()) or 1.0
    return f1 / mean * mean_magnitude + f2 * age


def _descending(scores: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Positions by descending score, those in ``first`` before all others, ties in their order.

    One sort of integers, several times faster than `numpy.lexsort`: 1 bit not first, 32 bits score
    (as float32), 31 bits position. The bits of a float sort like integers once negative ones are
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
    """Return the plan of the given rows by descending score, none mandatory; scores (rows,)."""
    order = rows[_descending(scores[rows], np.zeros(rows.size, bool))]
    return Plan(_windows(_expand(partition, order), window_size(partition)), 0, rows.size, budget)


def affordable(plan: Plan, partition: RowPartition, codec: Codec, smaller: Codec, rate: float,
               patience: float) -> Codec:
    """Return ``codec``, or ``smaller`` where the mandatory rows take more than ``patience``.

    ``rate`` of the link in bytes/s, ``patience`` in seconds. An id counts as one byte.
    """
    if not plan.mandatory or patience == float('inf'):
        return codec
    ids = np.concatenate(plan.windows[:plan.mandatory])
    nbytes = int(codec.sizes(partition.lengths[ids]).sum()) + ids.size
    return smaller if nbytes > rate * patience else codec


def by_importance(partition: RowPartition, sending: Sending, scores: np.ndarray, age: np.ndarray,
                  candidates: np.ndarray, budget: float) -> Plan:
    """Return the plan of ATP: overdue rows first, then by descending score; the minimum mandatory.

    ``scores``: importance, float32 (rows,). ``age`` int64 (rows,): iterations for which a row was
    not sent; a row that reaches the threshold is overdue: left out, it would break the staleness
    bound. ``candidates`` (bool, (rows,)): rows that may be sent at all. ``budget``: MTA time in
    seconds. Equal scores keep model order, so the plan is deterministic.
    """
    rows = np.flatnonzero(candidates)
    if rows.size == 0:
        return Plan([], 0, 0, budget)
    if not sending.by_importance:
        scores = np.zeros(partition.rows)
    late = (age >= sending.threshold)[rows] if sending.threshold else np.zeros(rows.size, bool)
    order = rows[_descending(scores[rows], late)]
    # At least one row: an empty transfer would not measure the link.
    least = max(int(np.ceil(sending.minimum * partition.rows)), int(late.sum()), 1)
    least = min(least, rows.size)
    size = window_size(partition)
    # All mandatory rows are sent, so their order does not matter, and model order is the fastest in
    # memory and gives the shortest ids.
    first = _windows(_expand(partition, np.sort(order[:least])), size)
    rest = _windows(_expand(partition, order[least:]), size)
    factor = max(sending.mta * partition.rows / least, 1.0)
    return Plan(first + rest, len(first), rows.size, budget, factor)
