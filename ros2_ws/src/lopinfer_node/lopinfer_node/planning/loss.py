"""LOSS, the local operation scheduling strategy: Algorithm 5 of the thesis (4.4.3).

The search starts from the baselines. A beam search over the operators in topological
order finds where to cross the link. A large-neighbourhood search around the critical path
refines the plan. The search can stop at any time, and its random choices depend only on
its seed. The plan is never worse than a baseline if the search's own timeline estimates both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from fleet_env.settings.power_model import PowerModel

from ..model.graph import Graph
from . import compiled, search
from .baselines import device_only, dsccs, neurosurgeon, server_only, spso_ga
from .compiled import Problem
from .objective import Objective
from .plan import DEVICE, SERVER, Plan
from .timeline import Costs, Link

# at each position the beam search keeps at most this many of the plans that get no new boundary
# there
WIDTH = 6
POSITIONS = 24         # maximum number of positions at which the beam search may put a boundary
# A position can have a boundary only if all tensors that are alive there have together at most
# ALIVE times the bytes of the model's inputs. A tensor is alive from its operator to its last use.
ALIVE = 4
# the refinement may continue from a plan that is worse than its present plan by about this share
HEAT = 0.03
PATIENCE = 100         # HEAT is used only if there are at least this many evaluations per operator
ROUND = 500            # number of evaluations after which the refinement reads the clock
DEADLINE = 1.0         # deadline of SPSO-GA in seconds if the objective has no deadline


def plan_loss(graph: Graph, costs: Costs, link: Link, objective: Objective | None = None,
              seed: int = 0, evaluations: int = 20_000, seconds: float | None = None,
              power: PowerModel | None = None, small_transfers: bool = True,
              known: Sequence[Plan] = ()) -> Plan:
    """Return the best plan that the search finds.

    :param evaluations: number of evaluations of the refinement.
    :param seconds: maximum time of the refinement; None: no limit.
    :param known: plans to start from besides the baselines, such as plans for other bandwidths.
    :param small_transfers: whether a plan must obey the transmission-efficiency rule (see
        `plan.check`); baselines need not obey the rule.
    """
    search_ = Search(graph, costs, link, objective, power, small_transfers)
    search_.construct(known)
    stop = None if seconds is None else time.monotonic() + seconds
    search_.refine(seed, evaluations, stop)
    return search_.plan()


class Search:
    """One search, which runs in steps; `table.py` runs many searches in parallel."""

    def __init__(self, graph: Graph, costs: Costs, link: Link, objective: Objective | None = None,
                 power: PowerModel | None = None, small_transfers: bool = True) -> None:
        self.graph = graph
        objective = objective or Objective()
        deadline = objective.deadline or np.inf
        self.problem = compiled.problem(graph, costs, link, power, objective.weight, deadline,
                                        small_transfers)
        self._work = compiled.work(len(graph))
        self._positions = positions(self.problem)
        energy_optimal = spso_ga(graph, costs, link, objective.deadline or DEADLINE, power)
        self.baselines = [device_only(graph, costs, link), server_only(graph, costs, link),
                          neurosurgeon(graph, costs, link), dsccs(graph, costs, link),
                          energy_optimal]
        self._beams = sorted((bounds(b) for b in self.baselines), key=self._value)[:1]

    @property
    def best(self) -> tuple[np.ndarray, np.ndarray]:
        """Return bounds (most, least) of the best plan that obeys the rule of `small_transfers`."""
        return self._beams[0]

    def construct(self, known: Sequence[Plan] = ()) -> None:
        """Run phase I, the beam search, from the baselines and the plans ``known``."""
        starts = [bounds(p) for p in (*self.baselines, *known)]
        most, least = search.beam_search(
            self.problem, self._work, self._positions, WIDTH,
            np.stack([m for m, _ in starts]), np.stack([s for _, s in starts]))
        self._beams = [(m.copy(), s.copy()) for m, s in zip(most, least, strict=True)]

    def offer(self, candidates: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        """Keep only the best bounds among the ``candidates`` and the bounds found so far."""
        most, least = min([*self._beams, *candidates], key=self._value)
        self._beams = [(most.copy(), least.copy())]

    def refine(self, seed: int, evaluations: int, stop: float | None = None) -> None:
        """Run phase II: improve all plans of phase I, then with equal effort only the best plan."""
        generator = np.random.default_rng(seed)
        patient = evaluations >= PATIENCE * len(self.graph)
        for heat in (HEAT if patient else 0.0, 0.0):
            each = evaluations // (2 * len(self._beams))
            for most, least in self._beams:
                self._improve(most, least, generator, each, heat, stop)
            self._beams = sorted(self._beams, key=self._value)[:1]

    def _improve(self, most: np.ndarray, least: np.ndarray, generator: np.random.Generator,
                 evaluations: int, heat: float, stop: float | None) -> None:
        while evaluations > 0 and (stop is None or time.monotonic() < stop):
            some = evaluations if stop is None else min(evaluations, ROUND)
            search.improve(self.problem, self._work, self._positions, most, least, generator, some,
                           heat)
            evaluations -= some

    def _value(self, candidate: tuple[np.ndarray, np.ndarray]) -> tuple[float, int, float]:
        return compiled.evaluate(self.problem, self._work, *candidate)[:3]

    def score(self, plan: Plan) -> tuple[float, int, float]:
        """Return the value of a plan that has two cuts per operator (`Plan.of_cuts`).

        The value is (objective, bytes that cross, seconds of computing), for the link and the
        objective of this search; lower is better.
        """
        return compiled.evaluate_cuts(self.problem, self._work, *bounds(plan))[:3]

    def plan(self, exempt: bool = True) -> Plan:
        """Return the best plan so far.

        `exempt`: if a baseline is better than this plan, return the baseline, even if the
        baseline breaks the rule of `small_transfers`.
        """
        best = min(self._beams, key=self._value)
        value = self._value(best)
        found = Plan.of_cuts(self.graph, *self._work.cut)
        for baseline in self.baselines if exempt else ():
            other = self.score(baseline)
            if other[0] < value[0]:
                value, found = other, baseline
        return found


def bounds(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds (most, least) that give this plan, or a better plan with equal transfers."""
    most = plan.own[DEVICE, :, 1].copy()
    own = plan.own[SERVER]
    return most, np.where(own[:, 0] < own[:, 1], own[:, 0], plan.graph.extents)


def positions(problem: Problem) -> np.ndarray:
    """Return the positions, int64, in topological order, at which a boundary may help.

    A tensor is alive after position i if it is made at or before i and used after i. The function
    returns at most POSITIONS positions with about equal amounts of computing between them. At each
    of these positions few bytes are alive, and all tensors that are alive may cross the link.
    """
    nodes = len(problem.kind)
    alive = np.zeros(nodes + 1)
    barred = np.zeros(nodes + 1)
    size = (problem.row_bytes * problem.extent).astype(np.float64)
    for v in np.flatnonzero(problem.kind == compiled.OPERATOR):
        end = max(int(problem.last_use[v]), int(v))
        alive[v] += size[v]
        alive[end] -= size[v]
        barred[v] += problem.stays[v]
        barred[end] -= problem.stays[v]
    alive, barred = np.cumsum(alive)[:nodes], np.cumsum(barred)[:nodes]
    most = ALIVE * size[problem.kind == compiled.INPUT].sum()
    usable = np.flatnonzero((barred == 0) & (alive > 0) & (alive <= most))
    cost = np.cumsum((problem.fixed + problem.slope * problem.extent)[DEVICE])
    part = np.minimum(cost / max(float(cost[-1]), 1e-12) * POSITIONS, POSITIONS - 1).astype(int)
    groups = [usable[part[usable] == k] for k in range(POSITIONS)]
    return np.array([g[np.argmin(alive[g])] for g in groups if len(g)], np.int64)
