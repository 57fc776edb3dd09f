"""Minimum cut of a directed graph: Dinic's algorithm on float capacities, compiled."""

from __future__ import annotations

import numpy as np

from .compiled import kernel


class Network:
    """Arcs with capacities between `nodes` nodes; infinite capacity for arcs never to be cut."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._tail: list[int] = []
        self._head: list[int] = []
        self._capacity: list[float] = []

    def add(self, tail: int, head: int, capacity: float) -> None:
        """Arc from tail to head; arcs of capacity 0 change nothing."""
        if capacity > 0:
            self._tail += (tail, head)
            self._head += (head, tail)
            self._capacity += (capacity, 0.0)

    def source_side(self, source: int, sink: int) -> np.ndarray:
        """The nodes on the source's side of a minimum cut, bool of shape (nodes,).

        Of several minimum cuts the one with the fewest nodes on that side.
        """
        tail = np.array(self._tail, np.int64)
        order = np.argsort(tail, kind='stable')
        first = np.searchsorted(tail[order], np.arange(self._nodes + 1))
        return _minimum_cut(first, order, np.array(self._head, np.int64),
                            np.array(self._capacity), source, sink)


@kernel
def _minimum_cut(first, order, head, capacity, source, sink):
    finite = capacity[np.isfinite(capacity)]
    limit = finite.sum() + 1.0
    residual = np.minimum(capacity, limit)
    smallest = limit * 1e-13      # less is rounding
    nodes = len(first) - 1
    while True:
        level = _levels(first, order, head, residual, source, smallest)
        if level[sink] < 0:
            return level >= 0
        at = first[:nodes].copy()
        path = np.zeros(nodes, np.int64)
        depth, v = 0, source
        while True:
            if v == sink:
                depth = _augment(path, depth, residual, smallest)
                v = source if depth == 0 else head[path[depth - 1]]
                continue
            while at[v] < first[v + 1]:
                arc = order[at[v]]
                if residual[arc] > smallest and level[head[arc]] == level[v] + 1:
                    break
                at[v] += 1
            if at[v] < first[v + 1]:
                path[depth] = order[at[v]]
                v = head[path[depth]]
                depth += 1
            elif depth == 0:
                break
            else:                  # a dead end: back by one, and never this arc again
                depth -= 1
                v = head[path[depth] ^ 1]
                at[v] += 1


@kernel
def _levels(first, order, head, residual, source, smallest):
    """Distance from the source over arcs that have capacity left, -1 where there is none."""
    level = np.full(len(first) - 1, -1)
    queue = np.zeros(len(first) - 1, np.int64)
    level[source], queue[0], begin, end = 0, source, 0, 1
    while begin < end:
        v = queue[begin]
        begin += 1
        for k in range(first[v], first[v + 1]):
            u = head[order[k]]
            if residual[order[k]] > smallest and level[u] < 0:
                level[u], queue[end] = level[v] + 1, u
                end += 1
    return level


@kernel
def _augment(path, depth, residual, smallest):
    """Push what the path carries; the depth up to which it still has capacity."""
    flow = np.inf
    for k in range(depth):
        flow = min(flow, residual[path[k]])
    keep = depth
    for k in range(depth - 1, -1, -1):
        residual[path[k]] -= flow
        residual[path[k] ^ 1] += flow
        if residual[path[k]] <= smallest:
            keep = k
    return keep
