"""The client's plan tables: its own profile and the server's, and a planning method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from fleet_env.power import PowerModel

from ..errors import ProfileError
from ..model.graph import Graph
from ..model.traced import Traced
from ..planning.baselines import BASELINES
from ..planning.evaluate import estimates
from ..planning.objective import Objective
from ..planning.plan import Plan
from ..planning.profile import Profile
from ..planning.table import BANDWIDTHS, PlanTable, plan_table
from ..planning.timeline import Costs, Link, estimate
from .client import PlannedTable
from .measure import measure

LOSS = 'lopinfer'
METHODS = (LOSS, *BASELINES)
MESSAGE = 0.001   # s: threads that wake each other at both ends; measured on loopback
FIRST = tuple(k * 1e6 for k in (0, 1, 2, 4, 8, 12, 20, 30))  # bytes/s: bins of the first table


@dataclass
class TablePlanner:
    """Makes a table by one of `METHODS`, or estimates one that is given.

    ``profile``: of this machine, measured when it is None, as ``slowdown`` times as slow.
    ``latency`` of the link per direction, and what a transfer costs beyond its bytes, s.
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
        """Plan for a server with this profile, seconds per operator; yield one table or two.

        To measure and to search takes seconds, on a busy machine minutes. So without a profile the
        first of two tables is made of a short measurement: all of the model on the robot, or all of
        it on the server.
        """
        if self.profile is None and self.table is None and self.method == LOSS:
            own = measure(traced, 1, 1, (0.5, 1.0), slowdown=self.slowdown)
            yield self._table(traced, own, fixed, per_share, first=True)
        own = self.profile or measure(traced, slowdown=self.slowdown)
        yield self._table(traced, own, fixed, per_share)

    def _table(self, traced: Traced, own: Profile, fixed: np.ndarray, per_share: np.ndarray,
               first: bool = False) -> PlannedTable:
        graph = traced.graph
        if own.digest != graph.digest or len(fixed) != len(graph) or len(per_share) != len(graph):
            raise ProfileError(f'a profile is not one of {traced.name}')
        costs = Costs(np.stack([own.fixed, fixed]), np.stack([own.per_share, per_share]))

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
        """The plan for each pair of bandwidths, up and down.

        Plans are searched for links that are as fast in both directions. Where they are not, a plan
        made for another bandwidth may be better than that for the up link's.
        """
        bins = len(table)
        pairs = np.stack(np.meshgrid(table.bandwidths, table.bandwidths, indexing='ij'), -1)
        first = [table.plans.index(plan) for plan in table.plans]
        found = {k: np.stack(estimates(table.graph, table.plans[k], costs, pairs.reshape(-1, 2),
                                       self.latency, self.message, self.power))
                 for k in set(first)}
        seconds, joules = np.stack([found[k].reshape(2, bins, bins) for k in first], 1)
        chosen = np.repeat(first, bins).reshape(bins, bins)
        if self.method == LOSS:                      # a baseline's plan is the baseline's
            score = (self.objective or Objective()).score(seconds, joules)
            own = np.take_along_axis(score, chosen[None], 0)[0]
            chosen = np.where(score.min(0) < own, score.argmin(0), chosen)
        return PlannedTable(table.bandwidths, table.plans, chosen,
                            np.take_along_axis(seconds, chosen[None], 0)[0])

    def _link(self, rate: float) -> Link:
        return Link(rate, rate, self.latency, self.message)

    def _plan(self, graph: Graph, costs: Costs) -> PlanTable:
        if self.method == LOSS:
            return plan_table(graph, costs, BANDWIDTHS, self.latency, self.objective,
                              power=self.power, message=self.message)
        plans = [BASELINES[self.method](graph, costs, self._link(rate)) for rate in BANDWIDTHS]
        return PlanTable(graph, BANDWIDTHS, self.latency, plans)
