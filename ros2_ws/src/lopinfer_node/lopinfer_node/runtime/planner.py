"""Make the client's plan tables from its profile, the server's profile and a planning method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
from fleet_env.settings.power_model import PowerModel

from ..errors import ProfileError
from ..model.graph import Graph
from ..model.traced import Traced
from ..planning.baselines import BASELINES, dsccs, neurosurgeon
from ..planning.evaluate import estimates
from ..planning.objective import Objective
from ..planning.plan import Plan
from ..planning.profile import Profile
from ..planning.table import BANDWIDTHS, PlanTable, plan_table
from ..planning.timeline import Costs, Link, estimate
from .choice import PlannedTable
from .measure import encoded_shares, measure

LOSS = 'lopinfer'
METHODS = (LOSS, *BASELINES)
# Seconds that each transfer takes in addition to the time for its bytes: threads at both ends
# must wake each other. The value was measured on a loopback connection.
MESSAGE = 0.001
# A plan replaces a simpler plan only if its latency is lower by this share of the simpler plan's
# latency, plus TRANSFER seconds for each additional transfer.
MARGIN = 0.05
TRANSFER = 0.5e-3
# bandwidths in bytes/s of the first table, which is made from a short measurement
FIRST = tuple(k * 1e6 for k in (0, 1, 2, 4, 8, 12, 20, 30))

# By model: what `encoded_shares` has found, which takes longer than an inference.
_found: WeakKeyDictionary[Traced, np.ndarray] = WeakKeyDictionary()


@dataclass
class TablePlanner:
    """Makes a plan table with one of `METHODS`, or estimates the latencies of a given table.

    ``profile``: profile of this machine. If it is None, the planner measures this machine, and
    emulates a machine that is ``slowdown`` times slower. ``latency``: delay of the link in each
    direction, in seconds. ``message``: seconds that each transfer takes in addition to the time
    for its bytes.
    """

    method: str = LOSS
    profile: Profile | None = None
    table: PlanTable | None = None
    latency: float = 0.002
    message: float = MESSAGE
    objective: Objective | None = None
    power: PowerModel = field(default_factory=PowerModel)
    slowdown: float = 1.0

    def __call__(self, traced: Traced, fixed: np.ndarray, per_share: np.ndarray
                 ) -> Iterator[PlannedTable]:
        """Plan for one server, from the server's profile; yield one table or two.

        The profile is ``fixed`` (seconds of each operator) and ``per_share`` (additional seconds
        for the whole result). Measuring this machine and searching for plans take seconds, or
        minutes on a busy machine. So if the method is LOSS, and this planner has neither a profile
        nor a table, a first table comes from a short measurement, without the search of LOSS. In
        the plans of the first table each operator runs whole on one side.
        """
        if (sent := _found.get(traced)) is None:
            sent = _found[traced] = encoded_shares(traced)
        if self.profile is None and self.table is None and self.method == LOSS:
            own = measure(traced, 1, 1, (0.5, 1.0), slowdown=self.slowdown)
            yield self._table(traced, own, fixed, per_share, sent, first=True)
        own = self.profile or measure(traced, slowdown=self.slowdown)
        yield self._table(traced, own, fixed, per_share, sent)

    def _table(self, traced: Traced, own: Profile, fixed: np.ndarray, per_share: np.ndarray,
               sent: np.ndarray, first: bool = False) -> PlannedTable:
        graph = traced.graph
        if own.digest != graph.digest or len(fixed) != len(graph) or len(per_share) != len(graph):
            raise ProfileError(f'a profile does not belong to {traced.name}')
        costs = Costs(np.stack([own.fixed, fixed]), np.stack([own.per_share, per_share]),
                      sent)

        def latency(plan: Plan, rate: float) -> float:
            return estimate(graph, plan, costs, self._link(rate), self.power).latency
        if first:
            plans = []
            for rate in FIRST:
                there = BASELINES['server-only'](graph, costs, self._link(rate))
                here = Plan.device_only(graph)
                plans.append(there if latency(there, rate) < latency(here, rate) else here)
            table = PlanTable(graph, FIRST, self.latency, plans)
        else:
            table = self.table or self._plan(graph, costs)
        return self._by_rates(table, costs)

    def _by_rates(self, table: PlanTable, costs: Costs) -> PlannedTable:
        """Return the plan and its alternatives for each pair of bandwidths, up and down.

        The search assumes links with equal rates in both directions. For other links, a plan that
        was made for another bandwidth may be better than the plan for the uplink's bandwidth. There
        are three kinds of plans:

        - A simple plan runs the whole model on one side.
        - A layer plan runs each operator whole, on one side or the other. It must be better than
          both simple plans by a margin.
        - A plan of LOSS must be better by a margin than the plan chosen from the first two kinds.

        The margin allows for the error of the estimates (`_margin`). A baseline chooses only among
        its own plans: it uses the plan of the uplink's bandwidth.
        """
        graph, bins = table.graph, len(table)
        searched = list(dict.fromkeys(table.plans))
        if self.method != LOSS:      # a baseline must not use the plans of other methods
            plans = searched
            seconds, _ = self._grids(graph, plans, costs, table.bandwidths)
            chosen = np.repeat([plans.index(p) for p in table.plans], bins).reshape(bins, bins)
            return PlannedTable(table.bandwidths, plans, chosen, _at(seconds, chosen))
        simple = [Plan.device_only(graph), Plan.server_only(graph)]
        links = [self._link(rate) for rate in table.bandwidths if rate > 0]
        layers = [plan(graph, costs, link) for plan in (dsccs, neurosurgeon) for link in links]
        plans = list(dict.fromkeys([*simple, *layers, *searched]))
        kinds = np.array([0 if p in simple else 1 if p in layers else 2 for p in plans])
        seconds, joules = self._grids(graph, plans, costs, table.bandwidths)
        score = (self.objective or Objective()).score(seconds, joules)
        sent = np.array([len(plan.transfers) for plan in plans])
        best = [np.where((kinds == k)[:, None, None], score, np.inf).argmin(0) for k in range(3)]
        chosen = best[0]
        for other in best[1:]:
            with np.errstate(invalid='ignore'):   # over a dead link both scores can be infinite
                gain = _at(score, chosen) - _at(score, other)
            chosen = np.where((kinds[other] > 0) & (gain > self._margin(
                _at(score, chosen), sent[other] - sent[chosen])), other, chosen)
        others = np.stack([np.where(kinds[chosen] == 2, best[1], chosen),
                           *(np.full((bins, bins), k) for k in range(len(simple)))])
        # For each request the latency is measured, but not the energy. So alternatives help only if
        # the objective is the latency alone.
        if not self._fastest:
            others = others[:0]
        used, positions = np.unique(np.stack([chosen, *others]), return_inverse=True)
        position = positions.reshape(1 + len(others), bins, bins)
        return PlannedTable(
            table.bandwidths, [plans[k] for k in used], position[0], _at(seconds, chosen),
            position[1:], np.take_along_axis(seconds, others, 0))

    def _margin(self, score: np.ndarray, more: np.ndarray) -> np.ndarray:
        """Return by how much a plan must be better to replace a simpler plan.

        ``score``: score of the simpler plan; ``more``: additional transfers of the new plan.
        """
        if not self._fastest:
            return np.zeros_like(score)
        return MARGIN * score + TRANSFER * np.maximum(more, 0)

    @property
    def _fastest(self) -> bool:
        """Return whether the objective is the latency alone."""
        return self.objective in (None, Objective())

    def _grids(self, graph: Graph, plans: Sequence[Plan], costs: Costs, rates: Sequence[float]
               ) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds and the joules of each plan for each pair of bandwidths.

        Both arrays have the shape (plans, up, down).
        """
        pairs = np.stack(np.meshgrid(rates, rates, indexing='ij'), -1).reshape(-1, 2)
        found = [estimates(graph, plan, costs, pairs, self.latency, self.message, self.power)
                 for plan in plans]
        seconds, joules = np.array(found).reshape(len(plans), 2, len(rates), -1).swapaxes(0, 1)
        return seconds, joules

    def _link(self, rate: float) -> Link:
        return Link(rate, rate, self.latency, self.message)

    def _plan(self, graph: Graph, costs: Costs) -> PlanTable:
        if self.method == LOSS:
            return plan_table(graph, costs, BANDWIDTHS, self.latency, self.objective,
                              power=self.power, message=self.message)
        plans = [BASELINES[self.method](graph, costs, self._link(rate)) for rate in BANDWIDTHS]
        return PlanTable(graph, BANDWIDTHS, self.latency, plans)


def _at(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the value of the chosen plan for each pair of bandwidths."""
    return np.take_along_axis(values, chosen[None], 0)[0]
