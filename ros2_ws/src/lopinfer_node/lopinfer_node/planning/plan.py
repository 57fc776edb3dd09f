"""Plans: which interval of every operator each side computes, and which intervals cross the link.

A plan may run only after `check` has verified from the footprints that every operator gets all its
inputs (thesis 4.4.2 and 4.4.3). A plan does not store its transfers: both sides derive the same
list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import PlanError
from ..model.footprint import EMPTY, Interval
from ..model.graph import Graph, Kind

DEVICE, SERVER = 0, 1
SIDES = ('device', 'server')


@dataclass(frozen=True)
class Transfer:
    """An interval of a tensor that crosses the link as soon as it is computed.

    `index` is the position of the transfer in `Plan.transfers`, the same on both sides.
    """

    index: int
    node: int
    source: int            # DEVICE or SERVER
    lo: int
    hi: int
    bytes: int


class Plan:
    """Placement of every operator: `own[side, node]` is the interval [lo, hi) that side computes.

    `own` is int64 of shape (2, nodes, 2); (0, 0) if a side computes nothing. Inputs and outputs of
    the model belong to the device, but no side computes them.
    """

    def __init__(self, graph: Graph, own: np.ndarray) -> None:
        own = np.asarray(own, np.int64)
        if own.shape != (2, len(graph), 2):
            raise PlanError(f'{graph.name}: intervals of a plan must have shape '
                            f'(2, {len(graph)}, 2), got {own.shape}')
        empty = own[..., 0] >= own[..., 1]
        self.graph = graph
        self.own = np.where(empty[..., None], 0, own)
        self.own.setflags(write=False)

    @classmethod
    def of_cuts(cls, graph: Graph, device_to: np.ndarray, server_from: np.ndarray) -> Plan:
        """Return the plan with two cuts per node.

        For each node the device computes the indices below `device_to`, and the server computes
        the indices from `server_from` on. A plan is valid if every node has server_from <=
        device_to, and each global operator is on one side: then one side computes what the other
        side lacks.
        This function itself sets the cuts of inputs and outputs, whatever the arguments say.
        """
        fixed = np.array([n.kind is not Kind.OPERATOR for n in graph.nodes])
        own = np.zeros((2, len(graph), 2), np.int64)
        own[DEVICE, :, 1] = np.where(fixed, graph.extents, device_to)
        own[SERVER, :, 0] = np.where(fixed, graph.extents, server_from)
        own[SERVER, :, 1] = graph.extents
        return cls(graph, own)

    @classmethod
    def device_only(cls, graph: Graph) -> Plan:
        """Return the plan in which the robot computes everything."""
        return cls.of_cuts(graph, graph.extents, graph.extents)

    @classmethod
    def server_only(cls, graph: Graph) -> Plan:
        """Return the plan in which the server computes everything."""
        zero = np.zeros(len(graph), np.int64)
        return cls.of_cuts(graph, zero, zero)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and np.array_equal(self.own, other.own)

    def __hash__(self) -> int:
        return hash(self.own.tobytes())

    def interval(self, side: int, node: int) -> Interval:
        """Return the interval of an operator that `side` computes."""
        return int(self.own[side, node, 0]), int(self.own[side, node, 1])

    @cached_property
    def needs(self) -> np.ndarray:
        """Return the smallest interval with all indices that each side needs of each tensor.

        The result is int64 of shape (2, nodes, 2).
        """
        needs = np.zeros_like(self.own)
        for node in self.graph.nodes:
            for side in (DEVICE, SERVER):
                lo, hi = self.interval(side, node.index)
                for source, footprint in zip(node.inputs, node.footprints, strict=True):
                    start, end = footprint.need(lo, hi)
                    if start == end:
                        continue
                    old = needs[side, source]
                    if old[0] == old[1]:
                        old[:] = start, end
                    else:
                        old[:] = min(old[0], start), max(old[1], end)
        needs.setflags(write=False)
        return needs

    def missing(self, side: int, node: int) -> Iterator[Interval]:
        """Yield the intervals of a tensor, at most two, that `side` needs but does not compute."""
        (lo, hi), (start, end) = self.needs[side, node], self.own[side, node]
        if start == end:
            if lo < hi:
                yield int(lo), int(hi)
            return
        if lo < min(hi, start):
            yield int(lo), int(min(hi, start))
        if end < hi:
            yield int(max(lo, end)), int(hi)

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """Return all transfers, in the order in which their producers run."""
        found: list[Transfer] = []
        for node in self.graph.nodes:
            for source in (DEVICE, SERVER):
                for lo, hi in self.missing(1 - source, node.index):
                    found.append(Transfer(len(found), node.index, source, lo, hi,
                                          (hi - lo) * node.bytes_per_index))
        return tuple(found)

    def held(self, side: int, node: int) -> Interval:
        """Return the interval of a tensor that `side` has after all transfers to `side`.

        It is the smallest interval with all indices that `side` computes or that operators on
        `side` need.
        """
        lo, hi = self.interval(side, node)
        start, end = (int(x) for x in self.needs[side, node])
        if lo == hi:
            return start, end
        return (lo, hi) if start == end else (min(lo, start), max(hi, end))

    @property
    def digest(self) -> bytes:
        """Return eight bytes that identify the plan and its graph on both sides."""
        return hashlib.sha256(self.graph.digest.encode() + self.own.tobytes()).digest()[:8]


def check(plan: Plan, small_transfers: bool = False) -> None:
    """Raise PlanError unless a plan is valid.

    The error names the operator and the interval.

    A plan is valid if all of these statements are true:
    - Intervals lie inside their tensors.
    - The two sides together cover every operator.
    - At least one side computes an indivisible operator whole.
    - Only one side computes a global operator.
    - Inputs and outputs are on the device alone.
    - Each index that a side needs is computed, by this side or by the other side.

    `small_transfers` also checks the transmission-efficiency rule: no tensor crosses the link
    that is larger than all inputs of the model together.
    """
    graph = plan.graph
    for side, index in np.argwhere((plan.own[..., 0] < 0) | (plan.own[..., 1] > graph.extents)):
        node, (lo, hi) = graph.nodes[index], plan.interval(side, index)
        raise PlanError(f'{graph.name}: operator {node.name} ({node.op}) at index {index}: the '
                        f'{SIDES[side]} computes [{lo}, {hi}) of {node.extent}')
    for node in graph.nodes:
        where = f'{graph.name}: operator {node.name} ({node.op}) at index {node.index}'
        own = [plan.interval(side, node.index) for side in (DEVICE, SERVER)]
        if node.kind is not Kind.OPERATOR and own != [(0, node.extent), EMPTY]:
            raise PlanError(f'{where}: the device must compute an {node.kind.value} whole')
        gap = _gap(own, node.extent)
        if gap is not None:
            raise PlanError(f'{where}: neither side computes [{gap[0]}, {gap[1]})')
        if node.is_global and EMPTY not in own:
            raise PlanError(f'{where}: only one side may compute a global operator')
        for side in (DEVICE, SERVER):
            for lo, hi in plan.missing(side, node.index):
                start, end = own[1 - side]
                if lo < start or hi > end:
                    raise PlanError(f'{where}: the {SIDES[side]} needs [{lo}, {hi}), the '
                                    f'{SIDES[1 - side]} computes only [{start}, {end})')
                if small_transfers and node.bytes > graph.input_bytes:
                    raise PlanError(f'{where}: [{lo}, {hi}) of a tensor larger than the input '
                                    f'would cross the link')


def _gap(own: list[Interval], extent: int) -> Interval | None:
    """Return the first interval of [0, extent) that no side computes, or None."""
    covered = 0
    for lo, hi in sorted(i for i in own if i != EMPTY):
        if lo > covered:
            return covered, lo
        covered = max(covered, hi)
    return (covered, extent) if covered < extent else None
