import itertools
from importlib.util import find_spec

import numpy as np
import pytest
from exact import plan_exact
from graphs import random_costs, random_graph
from lopinfer_node.planning.loss import Search
from lopinfer_node.planning.plan import Plan, check
from lopinfer_node.planning.timeline import Costs, Link, estimate

# Do not use importorskip: with launch_testing's plugin it skips every file of the folder.
pytestmark = pytest.mark.skipif(find_spec('ortools') is None, reason='ortools is not installed')


def all_cuts(graph):
    """Return every combination of cuts, as one pair (device_to, server_from) for each node.

    A global operator is not divided: one side computes all of it. Inputs and outputs are whole on
    the device.
    """
    choices = []
    for node in graph.nodes:
        n = node.extent
        if node.kind.value != 'operator':
            choices.append([(n, n)])
        elif node.is_global:
            choices.append([(n, n), (0, 0)])
        else:
            choices.append([(d, s) for d in range(n + 1) for s in range(d + 1)])
    return itertools.product(*choices)


@pytest.mark.parametrize('seed', range(400, 404))
def test_the_exact_solver_finds_the_best_of_all_plans(seed):
    graph = random_graph(seed, operators=2)
    costs, link = random_costs(graph, seed)
    best = float('inf')
    for cuts in all_cuts(graph):
        plan = Plan.of_cuts(graph, *np.array(cuts).T)
        best = min(best, estimate(graph, plan, costs, link).latency)
    found = plan_exact(graph, costs, link, small_transfers=False)
    assert found.proven
    check(found.plan)
    assert estimate(graph, found.plan, costs, link).latency == pytest.approx(best, rel=1e-3)


@pytest.mark.long
def test_loss_is_within_one_percent_of_the_optimum_in_95_of_100():
    close = 0
    for seed in range(40):
        graph = random_graph(seed)
        costs, link = random_costs(graph, seed)
        search = Search(graph, costs, link)
        search.construct()
        search.refine(0, 20_000)
        plan = search.plan(exempt=False)
        exact = plan_exact(graph, costs, link, known=plan, seconds=20)
        assert exact.proven
        check(exact.plan, small_transfers=True)
        latency, optimum = (estimate(graph, p, costs, link).latency for p in (plan, exact.plan))
        assert latency >= optimum * (1 - 1e-3)
        close += latency <= optimum * 1.01
    assert close >= 38


def test_nothing_crosses_a_dead_link():
    graph = random_graph(3)
    costs, _ = random_costs(graph, 3)
    found = plan_exact(graph, costs, Link(0, 0))
    assert found.proven and found.plan.transfers == ()


def test_a_solver_without_time_says_that_nothing_is_proven():
    graph = random_graph(5)
    costs, link = random_costs(graph, 5)
    found = plan_exact(graph, costs, link, seconds=1e-6)
    check(found.plan)
    assert not found.proven


def test_a_free_server_takes_what_pays():
    graph = random_graph(7)
    costs, _ = random_costs(graph, 7)
    free = Costs(costs.fixed * [[1], [0]], costs.per_share * [[1], [0]])
    fast = Link(1e12, 1e12)
    found = plan_exact(graph, free, fast, small_transfers=False)
    assert estimate(graph, found.plan, free, fast).latency < 1e-6
