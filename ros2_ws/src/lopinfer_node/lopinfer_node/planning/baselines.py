"""Baselines, in which each operator runs whole on one side.

LOPInfer is compared with the baselines, and its search starts from them. Each baseline takes the
same graph, costs and link as LOPInfer's planner (`loss.py`) and returns a `Plan` for the same
runtime. If the link is dead, every baseline computes everything on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from fleet_env.settings.power_model import PowerModel

from ..model.graph import Graph, Kind
from . import compiled
from .compiled import Problem, Work, kernel, part
from .mincut import Network
from .objective import Objective
from .plan import DEVICE, SERVER, Plan
from .timeline import Costs, Link

Baseline = Callable[[Graph, Costs, Link], Plan]


def device_only(graph: Graph, costs: Costs, link: Link) -> Plan:
    """Return the plan in which the robot computes everything."""
    return Plan.device_only(graph)


def server_only(graph: Graph, costs: Costs, link: Link) -> Plan:
    """Return the plan in which the server computes everything, unless the link is dead."""
    return Plan.server_only(graph) if link.up and link.down else Plan.device_only(graph)


def _layers(graph: Graph, on_server: np.ndarray) -> Plan:
    cuts = np.where(on_server, 0, graph.extents)
    return Plan.of_cuts(graph, cuts, cuts)


def neurosurgeon(graph: Graph, costs: Costs, link: Link) -> Plan:
    """Return the fastest plan with a single cut.

    The operators before the cut run on the device, all others on the server. The function tries
    every position in topological order, so the graph need not be a chain.
    """
    problem = compiled.problem(graph, costs, link, small_transfers=False)
    position = _best_prefix(problem, compiled.work(len(graph)))
    return _layers(graph, np.arange(len(graph)) >= position)


@kernel
def _best_prefix(p: Problem, w: Work) -> int:
    cuts = p.extent.copy()
    best, position = compiled.evaluate_cuts(p, w, cuts, cuts)[0], len(cuts)
    for v in range(len(cuts) - 1, -1, -1):
        cuts[v] = 0
        score = compiled.evaluate_cuts(p, w, cuts, cuts)[0]
        if score < best:
            best, position = score, v
    return position


def dsccs(graph: Graph, costs: Costs, link: Link) -> Plan:
    """Return the latency-optimal layer partition of a DAG, by minimum cut (DADS, DSCCS).

    As in the literature, the weight of a cut is the sum of the times of all computation and
    transmission, as if they ran one after the other. A tensor crosses once, even if several
    consumers need it.
    """
    n = len(graph)
    source, sink, sent, fetched = 3 * n, 3 * n + 1, n, 2 * n
    network = Network(3 * n + 2)
    seconds = costs.fixed + costs.per_share
    whole, rows = Plan.device_only(graph).needs[DEVICE], costs.row_bytes(graph)
    for node in graph.nodes:
        v = node.index
        if node.kind is Kind.OPERATOR:
            network.add(source, v, float(seconds[SERVER, v]))
            network.add(v, sink, float(seconds[DEVICE, v]))
        else:
            network.add(source, v, float('inf'))
        size = int(whole[v, 1] - whole[v, 0]) * int(rows[v])
        network.add(v, sent + v, link.seconds(DEVICE, size) + link.latency)
        network.add(fetched + v, v, link.seconds(SERVER, size) + link.latency)
        for consumer in graph.consumers[v]:
            network.add(sent + v, consumer, float('inf'))
            network.add(consumer, fetched + v, float('inf'))
    return _layers(graph, ~network.source_side(source, sink)[:n])


def spso_ga(graph: Graph, costs: Costs, link: Link, deadline: float = 1.0,
            power: PowerModel | None = None, seed: int = 0, particles: int = 40,
            iterations: int = 60) -> Plan:
    """Return the layer partition with the least energy under a deadline in seconds.

    The search is a particle swarm with operators of a genetic algorithm (SPSO-GA). A
    particle assigns each operator to a side. In each iteration a particle mutates, crosses
    with its own best state, and crosses with the best state of the swarm. At the start each
    particle has the first k operators on the device; k is drawn for each particle. Equal
    seeds give equal plans.
    """
    objective = Objective(deadline=deadline)
    problem = compiled.problem(graph, costs, link, power, deadline=objective.deadline or np.inf,
                               small_transfers=False)
    on_server = _swarm(problem, compiled.work(len(graph)), np.random.default_rng(seed),
                       particles, iterations)
    return _layers(graph, on_server)


@kernel
def _swarm(p: Problem, w: Work, rng: np.random.Generator, particles: int,
           iterations: int) -> np.ndarray:
    nodes = len(p.kind)
    now = np.zeros((particles, nodes), np.bool_)
    # at the start, particle 0 is device-only and particle 1 is server-only
    for k in range(1, particles):
        now[k, 0 if k == 1 else rng.integers(0, nodes):] = True
    best = now.copy()
    score = np.array([_layer_score(p, w, now[k]) for k in range(particles)])
    leader = best[np.argmin(score)].copy()
    for i in range(iterations):
        done = i / iterations
        for k in range(particles):
            if rng.random() < 0.9 - 0.5 * done:
                v = rng.integers(0, nodes)
                now[k, v] = not now[k, v]
            if rng.random() < 0.9 - 0.7 * done:
                _cross(now[k], best[k], rng)
            if rng.random() < 0.4 + 0.5 * done:
                _cross(now[k], leader, rng)
            value = _layer_score(p, w, now[k])
            if value < score[k]:
                score[k] = value
                best[k] = now[k]
        leader = best[np.argmin(score)].copy()
    return leader


@part
def _layer_score(p, w, on_server):
    cuts = np.where(on_server, 0, p.extent)
    return compiled.evaluate_cuts(p, w, cuts, cuts)[0]


@part
def _cross(particle, other, rng):
    """Copy a random range of the operators' sides from the particle `other` to `particle`."""
    a, b = rng.integers(0, len(particle)), rng.integers(0, len(particle))
    particle[min(a, b):max(a, b) + 1] = other[min(a, b):max(a, b) + 1]


BASELINES: Mapping[str, Baseline] = {
    'device-only': device_only, 'server-only': server_only, 'neurosurgeon': neurosurgeon,
    'dsccs': dsccs, 'spso-ga': spso_ga}
