"""Minimum cut of a directed graph, by the maximum flow of SciPy."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

FLOW = 1 << 30  # capacities are scaled so that the cut `known` has this weight; SciPy needs int32


class Network:
    """Arcs with capacities between `nodes` nodes; an arc of infinite capacity is never cut."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._tail: list[int] = []
        self._head: list[int] = []
        self._capacity: list[float] = []

    def add(self, tail: int, head: int, capacity: float) -> None:
        """Add an arc from tail to head; an arc of capacity 0 changes nothing."""
        if capacity > 0:
            self._tail.append(tail)
            self._head.append(head)
            self._capacity.append(capacity)

    def source_side(self, source: int, sink: int) -> np.ndarray:
        """Return the nodes on the source's side of a minimum cut, bool of shape (nodes,).

        If there are several minimum cuts, choose the cut with the fewest nodes on that side.
        Capacities are rounded to about 1e-9 of a known cut, which consists of all arcs into the
        sink or of all arcs out of the source.
        """
        tail, head = np.array(self._tail, np.int32), np.array(self._head, np.int32)
        arcs = csr_array((np.array(self._capacity), (tail, head)), (self._nodes, self._nodes))
        finite = arcs.data[np.isfinite(arcs.data)].sum()
        known = min(arcs[:, [sink]].sum(), arcs[[source]].sum(), finite) or 1.0
        # An arc of infinite capacity gets nearly twice the weight of the known cut, so that no
        # minimum cut contains this arc.
        whole = np.rint(np.minimum(arcs.data * (FLOW / known), 2 * FLOW - 1)).astype(np.int32)
        arcs = csr_array((whole, arcs.indices, arcs.indptr), arcs.shape)
        left = arcs - maximum_flow(arcs, source, sink).flow
        left.eliminate_zeros()
        side = np.zeros(self._nodes, bool)
        side[breadth_first_order(left, source, return_predecessors=False)] = True
        return side
