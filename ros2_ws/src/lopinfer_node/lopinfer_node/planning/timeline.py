"""Estimate one inference under a plan: schedule, latency, critical path, overlap and energy.

This module is the event-driven simulator of the thesis (4.4.3). Each processor runs its
operators in topological order. Each direction of the link sends tensors in the order in which
they are computed, which is also the topological order. So one pass over the operators gives
the exact schedule. `compiled.py` computes the same schedule faster for the search, but
accepts only plans with two cuts per operator (`Plan.of_cuts`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from fleet_env.settings.power_model import PowerModel

from ..model.graph import Graph, Kind
from .plan import DEVICE, SERVER, SIDES, Plan, Transfer


@dataclass(frozen=True)
class Costs:
    """The cost of every operator on each side: `fixed + per_share * share` seconds.

    `share` is the share of the operator's indices that the side computes, 0 to 1. An operator costs
    nothing on a side that computes no part of it. `fixed` and `per_share` are float64 arrays of
    shape (2, nodes), finite and not negative. Inputs and outputs cost nothing, whatever the arrays
    contain.

    `sent`: bytes that cross the link for each byte of a node's tensor, (nodes,) float64, because
    tensors are encoded; None: 1 for each.

    :raises ValueError: the arrays have other shapes or values.
    """

    fixed: np.ndarray
    per_share: np.ndarray
    sent: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ('fixed', 'per_share'):
            # Make the array contiguous, because numba would compile the kernels again for another
            # memory order.
            value = np.ascontiguousarray(getattr(self, name), np.float64)
            if value.ndim != 2 or len(value) != 2:
                raise ValueError(f'{name} must have shape (2, nodes), got {value.shape}')
            if not (np.isfinite(value).all() and (value >= 0).all()):
                raise ValueError(f'{name} must be finite and at least 0 s')
            object.__setattr__(self, name, value)
        if self.fixed.shape != self.per_share.shape:
            raise ValueError('fixed and per_share must have the same number of operators')
        if self.sent is not None and self.sent.shape != self.fixed.shape[1:]:
            raise ValueError('sent must have a number for each operator')

    def row_bytes(self, graph: Graph) -> np.ndarray:
        """Return the bytes that cross the link for one index of each node's tensor, int64."""
        rows = np.array([node.bytes_per_index for node in graph.nodes], np.int64)
        return rows if self.sent is None else np.maximum(1, np.round(rows * self.sent)).astype(
            np.int64)


@dataclass(frozen=True)
class Link:
    """The rates of a link in bytes/s, and the other costs of a transfer.

    With rate 0 the link is dead. `latency`: delay of each direction, in seconds; during the
    delay the link is free for other transfers. `message`: seconds for which each transfer occupies
    the link in addition to the time for its bytes. These seconds include the costs at the sender
    and at the receiver.
    """

    up: float
    down: float
    latency: float = 0.0
    message: float = 0.0

    def __post_init__(self) -> None:
        if not all(np.isfinite(x) and x >= 0
                   for x in (self.up, self.down, self.latency, self.message)):
            raise ValueError(f'values of a link must be finite and at least 0, got {self}')

    def seconds(self, source: int, size: int) -> float:
        """Return how long `size` bytes from side `source` occupy the link; infinite at rate 0."""
        rate = self.up if source == DEVICE else self.down
        return size / rate + self.message if rate > 0 else float('inf')


@dataclass(frozen=True)
class Segment:
    """One computation or transfer of the critical path; times in seconds.

    A transfer ends at its arrival. `transfer` is the index in `Plan.transfers`, -1 for a
    computation. `side` is the side that computes or sends.
    """

    side: int
    node: int
    start: float
    end: float
    transfer: int = -1

    def __str__(self) -> str:
        what = f'transfer {self.transfer}' if self.transfer >= 0 else 'compute'
        return (f'{SIDES[self.side]} {what} of operator {self.node}: '
                f'{self.start:.6f} to {self.end:.6f} s')


@dataclass(frozen=True)
class Timeline:
    """Schedule of one inference; times in seconds from the arrival of the input, energy in J.

    `start`, `end`: float64 (2, nodes), NaN if a side computes nothing. `transfers`: one row
    (queued, start, end, arrival) for each of `Plan.transfers`. `overlap`: seconds in which at least
    two of device, server, uplink and downlink are busy. `hidden`: share of the link's busy time
    during which at least one side computes. `energy`: energy of the device. Latency and energy are
    infinite if a tensor would have to cross a dead link.
    """

    plan: Plan
    start: np.ndarray
    end: np.ndarray
    transfers: np.ndarray
    latency: float
    overlap: float
    hidden: float
    energy: float
    critical_path: tuple[Segment, ...] = field(repr=False)

    def computing(self, side: int) -> float:
        """Return for how many seconds a side computes."""
        return float(np.nansum(self.end[side] - self.start[side]))

    @property
    def bytes(self) -> int:
        """Return the bytes that cross the link in both directions."""
        return sum(t.bytes for t in self.plan.transfers)


def estimate(graph: Graph, plan: Plan, costs: Costs, link: Link,
             power: PowerModel | None = None) -> Timeline:
    """Return the timeline of one inference with `plan`, which must be valid (`plan.check`)."""
    schedule = _Schedule(graph, plan, costs, link)
    latency = schedule.latency
    busy, length = _busy(schedule, latency)
    return Timeline(plan, schedule.start, schedule.end, schedule.rows, latency,
                    float(length[busy.sum(0) >= 2].sum()), _hidden(busy, length),
                    _energy(busy, length, latency, power or PowerModel()),
                    schedule.critical_path())


class _Schedule:
    """Computes the times of all computations and transfers of a plan."""

    def __init__(self, graph: Graph, plan: Plan, costs: Costs, link: Link) -> None:
        if costs.fixed.shape[1] != len(graph):
            raise ValueError(f'{graph.name} has {len(graph)} operators, its costs '
                             f'{costs.fixed.shape[1]}')
        self.graph, self.plan, self.costs, self.link = graph, plan, costs, link
        self._row_bytes = costs.row_bytes(graph)
        self.start = np.full((2, len(graph)), np.nan)
        self.end = np.full((2, len(graph)), np.nan)
        self.rows = np.zeros((len(plan.transfers), 4))
        # The critical path needs these dictionaries. A computation is a pair (side, node).
        # `waited` maps a computation to the transfer for which the computation waited. `before`
        # maps a computation to the node that the same side computed immediately before. `queue`
        # maps a transfer to the earlier transfer for which it waited. None: no wait, or no
        # earlier node.
        self.waited: dict[tuple[int, int], int | None] = {}
        self.before: dict[tuple[int, int], int | None] = {}
        self.queue: dict[int, int | None] = {}
        self.of_node: dict[int, list[Transfer]] = {}
        for transfer in plan.transfers:
            self.of_node.setdefault(transfer.node, []).append(transfer)
        self._free = [0.0, 0.0]
        self._latest: list[int | None] = [None, None]
        self._sent: list[int | None] = [None, None]
        for node in graph.nodes:
            for side in (DEVICE, SERVER):
                if plan.own[side, node.index, 0] < plan.own[side, node.index, 1]:
                    self._compute(side, node.index)
            for transfer in self.of_node.get(node.index, ()):
                self._send(transfer)
        self.latency = float(max(self.end[DEVICE, o] for o in graph.outputs))

    def _compute(self, side: int, index: int) -> None:
        node, (lo, hi) = self.graph.nodes[index], self.plan.interval(side, index)
        ready, cause = 0.0, None
        local = 0.0
        for source, footprint in zip(node.inputs, node.footprints, strict=True):
            need = footprint.need(lo, hi)
            for transfer in self.of_node.get(source, ()):
                arrival = self.rows[transfer.index, 3]
                if transfer.source != side and transfer.lo < need[1] and need[0] < transfer.hi \
                        and arrival >= ready:
                    ready, cause = arrival, transfer.index
            if not np.isnan(self.end[side, source]):
                local = max(local, self.end[side, source])
        if node.kind is not Kind.OPERATOR:
            # Inputs and outputs of the model are not computed. So they wait only for the tensors
            # that they need, not for the processor.
            self.start[side, index] = self.end[side, index] = max(ready, local)
            self.before[side, index] = self._latest_of(side, node.inputs)
            self.waited[side, index] = cause if ready > local else None
            return
        free = self._free[side]
        self.waited[side, index] = cause if ready > free else None
        self.before[side, index] = self._latest[side]
        self.start[side, index] = begin = max(ready, free)
        seconds = self.costs.fixed[side, index] \
            + self.costs.per_share[side, index] * (hi - lo) / node.extent
        self.end[side, index] = self._free[side] = begin + seconds
        self._latest[side] = index

    def _latest_of(self, side: int, nodes: tuple[int, ...]) -> int | None:
        done = [n for n in nodes if not np.isnan(self.end[side, n])]
        return max(done, key=lambda n: float(self.end[side, n]), default=None)

    def _send(self, transfer: Transfer) -> None:
        source, queued = transfer.source, self.end[transfer.source, transfer.node]
        previous = self._sent[source]
        free = 0.0 if previous is None else self.rows[previous, 2]
        self.queue[transfer.index] = previous if free > queued else None
        begin = max(queued, free)
        end = begin + self.link.seconds(
            source, (transfer.hi - transfer.lo) * int(self._row_bytes[transfer.node]))
        self.rows[transfer.index] = queued, begin, end, end + self.link.latency
        self._sent[source] = transfer.index

    def critical_path(self) -> tuple[Segment, ...]:
        """Return the critical path.

        The search starts at the last output. It goes backwards, from each computation or transfer
        to the computation or transfer for which it waited.
        """
        if not np.isfinite(self.latency):
            return ()
        side = DEVICE
        node: int | None = max(self.graph.outputs, key=lambda o: float(self.end[DEVICE, o]))
        path: list[Segment] = []
        while node is not None:
            path.append(Segment(side, node, float(self.start[side, node]),
                                float(self.end[side, node])))
            cause = self.waited.get((side, node))
            if cause is None:
                node = self.before.get((side, node))
                continue
            end = float(self.rows[cause, 3])
            while True:
                transfer, begin = self.plan.transfers[cause], float(self.rows[cause, 1])
                side, node = transfer.source, transfer.node
                path.append(Segment(side, node, begin, end, cause))
                previous = self.queue[cause]
                if previous is None:
                    break
                cause, end = previous, begin
        return tuple(s for s in reversed(path) if s.end > s.start)


def _busy(schedule: _Schedule, latency: float) -> tuple[np.ndarray, np.ndarray]:
    """Return which of (device, server, uplink, downlink) are busy in each interval between events.

    The two results are bool (4, intervals), and the lengths of the intervals in s, float64
    (intervals,). The time after the result of the inference does not count.
    """
    if not np.isfinite(latency):
        return np.zeros((4, 0), bool), np.zeros(0)
    spans = []
    for side in (DEVICE, SERVER):
        ran = ~np.isnan(schedule.start[side])
        spans.append(np.stack((schedule.start[side, ran], schedule.end[side, ran])))
    sources = np.array([t.source for t in schedule.plan.transfers], np.int64)
    spans += [schedule.rows[sources == side, 1:3].T for side in (DEVICE, SERVER)]
    spans = [np.minimum(s, latency) for s in spans]
    times = np.unique(np.concatenate([s.ravel() for s in spans] + [np.array([0.0, latency])]))
    middle = (times[1:] + times[:-1]) / 2
    busy = np.stack([np.searchsorted(np.sort(s[0]), middle) > np.searchsorted(np.sort(s[1]), middle)
                     for s in spans])
    return busy, np.diff(times)


def _hidden(busy: np.ndarray, length: np.ndarray) -> float:
    sending = busy[2] | busy[3]
    total = float(length[sending].sum())
    return float(length[sending & (busy[0] | busy[1])].sum()) / total if total > 0 else 0.0


def _energy(busy: np.ndarray, length: np.ndarray, latency: float, power: PowerModel) -> float:
    if not np.isfinite(latency):
        return latency
    computing = float(length[busy[0]].sum())
    communicating = float(length[~busy[0] & (busy[2] | busy[3])].sum())
    return computing * power.computing + communicating * power.communicating \
        + (latency - computing - communicating) * power.stalled
