"""A plan for every bandwidth, made before the robot drives (thesis 4.4.4).

The table has one entry, called a *bin*, for each bandwidth. A plan for one bandwidth helps to plan
for other bandwidths. So only every third bin runs a beam search. Then every bin tries the best
plans of all bins, and refines the best of these plans for its own bandwidth.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, overload

import numpy as np
from fleet_env.durable import write_text
from fleet_env.settings.power_model import PowerModel

from ..errors import PlanError, ProfileError
from ..model.graph import Graph
from .loss import Search
from .objective import Objective
from .plan import Plan, check
from .timeline import Costs, Link

FORMAT = 'lopinfer plan table 1'
# Only every ANCHORS-th bin (entry of the table) runs a beam search. The other bins start from the
# plans that these searches find.
ANCHORS = 3
BANDWIDTHS = tuple(k * 1e6 for k in range(31))   # default bandwidths of a table, bytes/s
# EFFORT / (number of operators) evaluations refine a bin (entry of the table) that runs a beam
# search, and half as many evaluations refine any other bin; this takes about 0.1 s
EFFORT = 1_500_000
LEAST = 5000           # minimum of EFFORT / (number of operators), for large graphs


class PlanTable(Sequence[Plan]):
    """The plans of one model for ascending bandwidths, in bytes/s.

    A measured rate below the second bandwidth gets the first plan.

    The file is JSON with these fields:

    - `format`;
    - `graph`: digest of the graph;
    - `bandwidths`: bytes/s;
    - `latency`: seconds;
    - `plans`: the distinct plans. Each plan is `Plan.own`, of shape (2, nodes, 2), as a flat list
      of integers in row-major order;
    - `bins`: for each bandwidth, the position of its plan in `plans`.
    """

    def __init__(self, graph: Graph, bandwidths: Sequence[float], latency: float,
                 plans: Sequence[Plan]) -> None:
        if not len(bandwidths) or len(bandwidths) != len(plans) or bandwidths[0] < 0 \
                or not all(a < b for a, b in zip(bandwidths, bandwidths[1:], strict=False)):
            raise PlanError(f'{graph.name}: a table must have one plan per bandwidth, ascending')
        self.graph = graph
        self.bandwidths = tuple(float(b) for b in bandwidths)
        self.latency = latency
        self.plans = tuple(plans)

    def __len__(self) -> int:
        return len(self.plans)

    @overload
    def __getitem__(self, index: int) -> Plan: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Plan]: ...

    def __getitem__(self, index: int | slice) -> Plan | Sequence[Plan]:
        return self.plans[index]

    def bin(self, bandwidth: float) -> int:
        """Return the last bin whose bandwidth is not above a measured bandwidth (bytes/s)."""
        return max(0, int(np.searchsorted(self.bandwidths, bandwidth, 'right')) - 1)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically."""
        different = list(dict.fromkeys(self.plans))
        number = {plan: k for k, plan in enumerate(different)}
        text = json.dumps({
            'format': FORMAT, 'graph': self.graph.digest, 'bandwidths': self.bandwidths,
            'latency': self.latency, 'plans': [p.own.ravel().tolist() for p in different],
            'bins': [number[p] for p in self.plans]}, separators=(',', ':'))
        unfinished = Path(f'{os.fspath(path)}.tmp')
        write_text(unfinished, text)
        unfinished.replace(path)

    @classmethod
    def load(cls, graph: Graph, path: str | os.PathLike[str]) -> PlanTable:
        """Read a file, and check that every plan is valid for `graph`.

        :raises ProfileError: the file cannot be read, is damaged, or belongs to another model.
        """
        try:
            state = json.loads(Path(path).read_text(encoding='utf-8'))
        except (OSError, ValueError) as error:
            raise ProfileError(f'{path}: not a plan table: {error}') from error
        if not isinstance(state, dict) or state.get('format') != FORMAT:
            raise ProfileError(f'{path}: not a plan table: its format must be "{FORMAT}"')
        if state.get('graph') != graph.digest:
            raise ProfileError(f'{path}: belongs to another model than {graph.name}; plan again')
        try:
            return cls._of_state(graph, state)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise ProfileError(f'{path}: a damaged plan table: {error!r}') from error

    @classmethod
    def _of_state(cls, graph: Graph, state: dict[str, Any]) -> PlanTable:
        plans = []
        for own in state['plans']:
            if not all(type(x) is int for x in own):
                raise ValueError('intervals are integers')
            plan = Plan(graph, np.array(own, np.int64).reshape(2, len(graph), 2))
            check(plan)
            plans.append(plan)
        bins = state['bins']
        if not all(type(k) is int and 0 <= k < len(plans) for k in bins):
            raise ValueError('every bin must have a plan')
        latency = float(state['latency'])
        if not 0 <= latency < float('inf'):
            raise ValueError(f'latency must be finite and at least 0 s, got {latency}')
        return cls(graph, [float(b) for b in state['bandwidths']], latency,
                   [plans[k] for k in bins])


def plan_table(graph: Graph, costs: Costs, bandwidths: Sequence[float] = BANDWIDTHS,
               latency: float = 0.0, objective: Objective | None = None, seed: int = 0,
               evaluations: int | None = None, power: PowerModel | None = None,
               small_transfers: bool = True, workers: int | None = None,
               message: float = 0.0) -> PlanTable:
    """Make a plan for each of `bandwidths`: bytes/s in both directions, ascending.

    The same seed gives the same table for any number of `workers` (threads; default: one per core).
    `latency` and `message` of the link are in seconds, see `Link`. `evaluations`: number of
    evaluations that refine each bin; by default higher for a smaller graph. No plan is worse than a
    baseline at its bandwidth.
    """
    workers = workers or len(os.sched_getaffinity(0))
    half = (evaluations or max(LEAST, EFFORT // len(graph))) // 2
    bins = range(len(bandwidths))
    pool = ThreadPoolExecutor(workers)
    try:

        def start(k: int) -> Search:
            found = Search(graph, costs, Link(bandwidths[k], bandwidths[k], latency, message),
                           objective, power, small_transfers)
            if k % ANCHORS == 0:
                found.construct()
                found.refine(seed, half)
            return found

        searches = list(pool.map(start, bins))
        bests = [s.best for s in searches]

        def finish(k: int) -> Plan:
            searches[k].offer(bests)
            searches[k].refine(seed + 1, half)
            return searches[k].plan()

        plans = list(pool.map(finish, bins))
        different = list(dict.fromkeys(plans))
        chosen = pool.map(lambda k: min((plans[k], *different), key=searches[k].score), bins)
        return PlanTable(graph, bandwidths, latency, list(chosen))
    finally:
        # Do not wait: after an error or Ctrl+C, threads may compile the kernels for a minute.
        pool.shutdown(wait=False, cancel_futures=True)


def warm_up(graph: Graph) -> None:
    """Compile what makes plans, the first time after an installation, else load it from the disk.

    Compiling takes half a minute of a core.
    """
    ones = np.ones((2, len(graph)))
    plan_table(graph, Costs(ones, ones), (1e6,), evaluations=2, workers=1)
