"""LOSS: the local operation scheduling strategy of the thesis (4.4.3, Algorithm 5).

Baselines seed and bound the search, a beam search over the operators in topological order finds
where to cross the link, a large-neighbourhood search around the critical path refines it. Anytime,
and deterministic for a seed; never worse than a baseline under the same estimate.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from fleet_env.power import PowerModel

from ..model.graph import Graph
from . import compiled, search
from .baselines import device_only, dsccs, neurosurgeon, server_only, spso_ga
from .compiled import Problem
from .objective import Objective
from .plan import DEVICE, SERVER, Plan
from .timeline import Costs, Link

WIDTH = 6              # beams kept besides those that have just got a boundary
POSITIONS = 24         # positions at which the beam may put a boundary
ALIVE = 4              # times the inputs' bytes that may be alive at such a position
HEAT = 0.03            # share by which the refinement may go on from a worse plan
PATIENCE = 100         # evaluations per operator from which on that pays
ROUND = 500            # evaluations between two looks at the clock
DEADLINE = 1.0         # s, of SPSO-GA where the objective has none


def plan_loss(graph: Graph, costs: Costs, link: Link, objective: Objective | None = None,
              seed: int = 0, evaluations: int = 20_000, seconds: float | None = None,
              power: PowerModel | None = None, small_transfers: bool = True,
              known: Sequence[Plan] = ()) -> Plan:
    """The best plan found within `evaluations` of the refinement, and `seconds` if given.

    :param known: plans to start from besides the baselines, such as a neighbouring bandwidth's.
    :param small_transfers: the transmission-efficiency rule, `plan.check`; baselines are exempt.
    """
    search_ = Search(graph, costs, link, objective, power, small_transfers)
    search_.construct(known)
    stop = None if seconds is None else time.monotonic() + seconds
    search_.refine(seed, evaluations, stop)
    return search_.plan()


class Search:
    """One search, in steps; `table.py` does many side by side."""

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
        """Bounds (most, least) of the best plan that keeps to the rules."""
        return self._beams[0]

    def construct(self, known: Sequence[Plan] = ()) -> None:
        """Phase I, from the baselines and plans that are known."""
        starts = [bounds(p) for p in (*self.baselines, *known)]
        most, least = search.beam_search(
            self.problem, self._work, self._positions, WIDTH,
            np.stack([m for m, _ in starts]), np.stack([s for _, s in starts]))
        self._beams = [(m.copy(), s.copy()) for m, s in zip(most, least, strict=True)]

    def offer(self, candidates: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        """Go on from the best of these bounds and its own."""
        most, least = min([*self._beams, *candidates], key=self._value)
        self._beams = [(most.copy(), least.copy())]

    def refine(self, seed: int, evaluations: int, stop: float | None = None) -> None:
        """Phase II: half of the evaluations on all beams, half on what is then the best."""
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

    def _value(self, candidate: tuple[np.ndarray, np.ndarray],
               as_is: bool = False) -> tuple[float, int, float]:
        return compiled.evaluate(self.problem, self._work, *candidate, as_is)[:3]

    def score(self, plan: Plan) -> tuple[float, int, float]:
        """Value of any plan of cuts under this search's link and objective; lower is better.

        The objective, then bytes that cross, then seconds of computing.
        """
        return self._value(bounds(plan), as_is=True)

    def plan(self, exempt: bool = True) -> Plan:
        """The best plan so far; if `exempt`, or a baseline that breaks the rule and is better."""
        best = min(self._beams, key=self._value)
        value = self._value(best)
        found = Plan.of_cuts(self.graph, *self._work.cut)
        for baseline in self.baselines if exempt else ():
            other = self.score(baseline)
            if other[0] < value[0]:
                value, found = other, baseline
        return found


def bounds(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Bounds (most, least) that give this plan, or a better one with the same transfers."""
    most = plan.own[DEVICE, :, 1].copy()
    own = plan.own[SERVER]
    return most, np.where(own[:, 0] < own[:, 1], own[:, 0], plan.graph.extents)


def positions(problem: Problem) -> np.ndarray:
    """Where a boundary may pay: positions at which little is alive, spread over the costs.

    int64, in topological order; at most POSITIONS. After position i everything that is made at or
    before i and used later is alive; none of it may be barred from crossing.
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
