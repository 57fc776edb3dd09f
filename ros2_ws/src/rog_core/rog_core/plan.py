"""Transmission plan: which rows now, in which order, how many at least.

Source: ROG, Section IV-B, Algorithm 3 (ImportanceMetric) and Algorithm 4 (MTA).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .partition import RowPartition
from .sync import SyncMethod


@dataclass(frozen=True)
class Plan:
    """Windows of segments in order of importance.

    Inside a window segments ascend, so that their ids cost about a byte each on the wire; the order
    among them is the price, and a window is at most 1/32 of the model. ``mandatory`` windows, the
    first ones, are sent whatever time it takes; the others only within ``budget`` seconds.
    """

    windows: list[np.ndarray]
    mandatory: int
    rows: int
    budget: float = float('inf')


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
    """All (given) rows, all mandatory, in model order."""
    rows = np.arange(partition.rows) if rows is None else rows
    windows = _windows(_expand(partition, rows), window_size(partition))
    return Plan(windows, len(windows), rows.size)


def importance(mean_magnitude: np.ndarray, age: np.ndarray, f1: float, f2: float) -> np.ndarray:
    """Algorithm 3: f1 * mean|gradient| + f2 * age, per row.

    The magnitude is divided by its mean over the rows, so that f1 and f2 mean the same for every
    model and learning rate. ``age`` in iterations: worker mode, how long the row has not been pushed
    (max(iters) - iters); server mode, how fresh it is (iters - min(iters)).
    """
    mean = float(mean_magnitude.mean()) or 1.0
    return f1 / mean * mean_magnitude + f2 * age


def adaptive(partition: RowPartition, method: SyncMethod, scores: np.ndarray, overdue: np.ndarray,
             candidates: np.ndarray, budget: float) -> Plan:
    """ATP: overdue rows first, then the others by descending score; the minimum is mandatory.

    ``overdue`` (bool, (rows,)): rows that would break the staleness bound if they did not travel now.
    ``candidates`` (bool, (rows,)): rows that may travel at all. ``budget``: MTA time in seconds.
    Equal scores keep model order, so the plan is deterministic.
    """
    rows = np.flatnonzero(candidates)
    if rows.size == 0:
        return Plan([], 0, 0, budget)
    late = overdue[rows]
    order = rows[np.lexsort((-scores[rows], ~late))]
    least = max(int(np.ceil(method.minimum * partition.rows)), int(late.sum()))
    least = min(least, rows.size)
    size = window_size(partition)
    first = _windows(_expand(partition, order[:least]), size)
    rest = _windows(_expand(partition, order[least:]), size)
    return Plan(first + rest, len(first), rows.size, budget)
