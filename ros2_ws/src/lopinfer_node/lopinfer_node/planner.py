"""The client's plan table: its own profile and the server's, and a planning method."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from fleet_env.power import PowerModel

from .baselines import BASELINES
from .client import PlannedTable
from .errors import ProfileError
from .graph import Graph
from .measure import measure
from .model import Traced
from .objective import Objective
from .profile import Profile
from .table import BANDWIDTHS, PlanTable, plan_table
from .timeline import Costs, Link, estimate

LOSS = 'lopinfer'
METHODS = (LOSS, *BASELINES)
MESSAGE = 0.001   # s: threads that wake each other at both ends; measured on loopback


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

    def __call__(self, traced: Traced, fixed: np.ndarray, per_share: np.ndarray) -> PlannedTable:
        """Plan for a server with this profile, seconds per operator."""
        graph = traced.graph
        own = self.profile or measure(traced, slowdown=self.slowdown)
        if own.digest != graph.digest or len(fixed) != len(graph) or len(per_share) != len(graph):
            raise ProfileError(f'a profile is not one of {traced.name}')
        costs = Costs(np.stack([own.fixed, fixed]), np.stack([own.per_share, per_share]))
        table = self.table or self._plan(graph, costs)
        links = [self._link(rate) for rate in table.bandwidths]
        estimates = [estimate(graph, plan, costs, link, self.power).latency
                     for link, plan in zip(links, table.plans, strict=True)]
        return PlannedTable(table.bandwidths, table.plans, estimates)

    def _link(self, rate: float) -> Link:
        return Link(rate, rate, self.latency, self.message)

    def _plan(self, graph: Graph, costs: Costs) -> PlanTable:
        if self.method == LOSS:
            return plan_table(graph, costs, BANDWIDTHS, self.latency, self.objective,
                              power=self.power, message=self.message)
        plans = [BASELINES[self.method](graph, costs, self._link(rate)) for rate in BANDWIDTHS]
        return PlanTable(graph, BANDWIDTHS, self.latency, plans)
