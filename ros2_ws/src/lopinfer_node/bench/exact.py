"""Finds the fastest plan of a small graph by constraint programming.

This plan shows how close LOSS comes to the optimum. The solver is OR-tools CP-SAT. Its model
allows the same plans as LOSS: each operator has two cuts. The robot computes the indices below
the first cut, and the server computes the indices from the second cut on. The rules and the
timeline are also the same. Element constraints give footprints and costs. In each direction, the
link sends one tensor at a time, in topological order.

Times are integers in ticks; a tick is 1/50,000 of the latency of the robot alone (1 us if
this latency is 50 ms). Only this file needs OR-tools, and it imports OR-tools only when
`plan_exact` runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from lopinfer_node.model.graph import Graph, Kind, Node
from lopinfer_node.planning.plan import DEVICE, SERVER, Plan
from lopinfer_node.planning.timeline import Costs, Link, estimate

TICKS = 50_000


@dataclass(frozen=True)
class Exact:
    """A plan, and whether the solver has proved that no plan is faster, except for rounding."""

    plan: Plan
    proven: bool


def plan_exact(graph: Graph, costs: Costs, link: Link, small_transfers: bool = True,
               known: Plan | None = None, seconds: float = 60.0, workers: int = 1) -> Exact:
    """Return the plan with the least latency.

    :param known: a valid plan from which the solver starts; it can save most of the
        solver's time.
    :param seconds: time limit of the solver; if it is reached, the plan is not proved
        optimal.
    :raises ImportError: OR-tools is not installed.
    :raises ValueError: a transfer on ``link`` has a cost besides its bytes
        (`Link.message`).
    """
    from ortools.sat.python import cp_model
    if link.message:
        raise ValueError('the exact model knows no cost per transfer')
    start = known or Plan.device_only(graph)
    model = _Model(cp_model.CpModel(), graph, costs, link, small_transfers)
    model.hint(start, estimate(graph, start, costs, link).latency)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    status = solver.solve(model.cp)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Exact(start, status == cp_model.INFEASIBLE)
    cuts = [np.array([solver.value(x) for x in model.cut[side]]) for side in (DEVICE, SERVER)]
    return Exact(Plan.of_cuts(graph, *cuts), status == cp_model.OPTIMAL)


class _Model:
    """Variables and constraints of the solver; all times are in ticks."""

    def __init__(self, cp: Any, graph: Graph, costs: Costs, link: Link,
                 small_transfers: bool) -> None:
        self.cp, self.graph, self.costs, self.link = cp, graph, costs, link
        self.small_transfers = small_transfers
        alone = Plan.device_only(graph)
        self.tick = max(estimate(graph, alone, costs, link).latency, 1e-9) / TICKS
        self.horizon = 2 * TICKS
        self.cut: list[list[Any]] = [[], []]
        for node in graph.nodes:
            self._cuts(node)
        self.needs = [self._needs(side) for side in (DEVICE, SERVER)]
        self.done: list[list[Any]] = [[], []]
        self.arrival: list[list[Any]] = [[], []]
        self.latency = cp.new_int_var(0, self.horizon, 'latency')
        self._free = [0, 0]
        self._busy = [0, 0]
        for node in graph.nodes:
            self._run(node)
        cp.minimize(self.latency)

    def hint(self, plan: Plan, latency: float) -> None:
        """Make the solver start from ``plan``, and exclude plans slower than ``latency`` (in s).

        The limit is a little higher than ``latency``, because times are rounded to ticks.
        """
        for node in self.graph.nodes:
            if node.kind is Kind.OPERATOR:
                lo, hi = plan.interval(SERVER, node.index)
                self.cp.add_hint(self.cut[DEVICE][node.index], plan.interval(DEVICE, node.index)[1])
                self.cp.add_hint(self.cut[SERVER][node.index], lo if lo < hi else node.extent)
        self.cp.add(self.latency <= int(latency / self.tick) + 2 * len(self.graph))

    def _cuts(self, node: Node) -> None:
        n = node.extent
        if node.kind is not Kind.OPERATOR:
            device = server = self.cp.new_constant(n)
        else:
            device = self.cp.new_int_var(0, n, f'device {node.index}')
            server = self.cp.new_int_var(0, n, f'server {node.index}')
            if node.is_global:
                somewhere = self.cp.new_bool_var('')
                self.cp.add(device == n * somewhere)
                self.cp.add(server == device)
            else:
                self.cp.add(server <= device)
        self.cut[DEVICE].append(device)
        self.cut[SERVER].append(server)

    def _element(self, at: Any, table: list[int]) -> Any:
        if min(table) == max(table):
            return self.cp.new_constant(table[0])
        value = self.cp.new_int_var(min(table), max(table), '')
        self.cp.add_element(at, table, value)
        return value

    def _needs(self, side: int) -> list[tuple[Any, Any, dict[int, tuple[Any, Any]]]]:
        """Return for each node the interval of its output that one side needs.

        An entry is (lo, hi, consumers). [lo, hi) contains the needs of all consumers.
        ``consumers`` maps the index of each consumer to the interval that this consumer needs.
        """
        found: list[dict[int, tuple[Any, Any]]] = [{} for _ in self.graph.nodes]
        for node in self.graph.nodes:
            n = node.extent
            for source, footprint in zip(node.inputs, node.footprints, strict=True):
                needs = [footprint.need(0, k) if side == DEVICE else footprint.need(k, n)
                         for k in range(n + 1)]
                at = self.cut[side][node.index]
                found[source][node.index] = (
                    self._element(at, [a if a < b else footprint.extent for a, b in needs]),
                    self._element(at, [b for _, b in needs]))
        hulls = []
        for node, consumers in zip(self.graph.nodes, found, strict=True):
            lo = self.cp.new_int_var(0, node.extent, '')
            hi = self.cp.new_int_var(0, node.extent, '')
            self.cp.add_min_equality(lo, [a for a, _ in consumers.values()] or [node.extent])
            self.cp.add_max_equality(hi, [b for _, b in consumers.values()] or [0])
            hulls.append((lo, hi, consumers))
        return hulls

    def _time(self) -> Any:
        return self.cp.new_int_var(0, self.horizon, '')

    def _run(self, node: Node) -> None:
        v, n = node.index, node.extent
        for side in (DEVICE, SERVER):
            if node.kind is not Kind.OPERATOR:
                self.done[side].append(0)
                continue
            lengths = range(n + 1) if side == DEVICE else range(n, -1, -1)
            fixed, share = self.costs.fixed[side, v], self.costs.per_share[side, v]
            seconds = self._element(self.cut[side][v], [
                round((fixed + share * k / n) / self.tick) if k else 0 for k in lengths])
            begin, end = self._time(), self._time()
            self.cp.add(begin >= self._free[side])
            self.cp.add(end == begin + seconds)
            self._wait(node, side, begin)
            self.done[side].append(end)
            self._free[side] = end
        if node.kind is Kind.OUTPUT:
            self._wait(node, DEVICE, self.latency)
            for u in node.inputs:
                self.cp.add(self.latency >= self.done[DEVICE][u]).only_enforce_if(
                    self._holds(self.cut[DEVICE][u], 1))
        for side in (DEVICE, SERVER):
            self._send(node, side)

    def _holds(self, value: Any, least: int) -> Any:
        """Return a boolean variable that is true if value >= least, and false otherwise."""
        truth = self.cp.new_bool_var('')
        self.cp.add(value >= least).only_enforce_if(truth)
        self.cp.add(value < least).only_enforce_if(~truth)
        return truth

    def _wait(self, node: Node, side: int, begin: Any) -> None:
        """Let an operator start only after the arrival of each transfer that it needs."""
        for u in node.inputs:
            lo, hi = self.needs[side][u][2][node.index]
            short = hi - self.cut[DEVICE][u] if side == DEVICE else self.cut[SERVER][u] - lo
            self.cp.add(begin >= self.arrival[1 - side][u]).only_enforce_if(
                self._holds(short, 1))

    def _send(self, node: Node, source: int) -> None:
        v, n = node.index, node.extent
        lo, hi, _ = self.needs[1 - source][v]
        begin, end = self.cp.new_int_var(0, n, ''), self.cp.new_int_var(0, n, '')
        if source == DEVICE:
            self.cp.add(begin == lo)
            self.cp.add_min_equality(end, [hi, self.cut[SERVER][v]])
        else:
            self.cp.add_max_equality(begin, [lo, self.cut[DEVICE][v]])
            self.cp.add(end == hi)
        length = self.cp.new_int_var(0, n, '')
        self.cp.add_max_equality(length, [0, end - begin])
        barred = self.small_transfers and node.bytes > self.graph.input_bytes
        if barred or not (self.link.up if source == DEVICE else self.link.down):
            self.cp.add(length == 0)
        per_row = self.link.seconds(source, node.bytes_per_index)
        ticks = [round(min(k * per_row / self.tick, self.horizon)) if k else 0
                 for k in range(n + 1)]
        start, finish = self._time(), self._time()
        self.cp.add(start >= self._busy[source])
        self.cp.add(start >= self.done[source][v]).only_enforce_if(self._holds(length, 1))
        self.cp.add(finish == start + self._element(length, ticks))
        self._busy[source] = finish
        self.arrival[source].append(finish + round(self.link.latency / self.tick))
