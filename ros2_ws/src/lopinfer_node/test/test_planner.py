"""Tests of the plan tables that a client makes."""

import numpy as np
import pytest
import torch
from lopinfer_node.model.graph import Kind
from lopinfer_node.model.traced import trace
from lopinfer_node.planning import table as tables
from lopinfer_node.planning.objective import Objective
from lopinfer_node.planning.plan import Plan
from lopinfer_node.planning.profile import Profile
from lopinfer_node.planning.table import PlanTable
from lopinfer_node.planning.timeline import Costs, Link, estimate
from lopinfer_node.runtime import planner
from lopinfer_node.runtime.measure import encoded_shares, measure
from lopinfer_node.runtime.planner import MARGIN, MESSAGE, TRANSFER, TablePlanner
from runtime_models import Small


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Search for a short time: what is tested holds for any plans that a search finds."""
    monkeypatch.setattr(tables, 'EFFORT', 0)     # so `tables.LEAST` counts


@pytest.mark.long
def test_without_a_profile_a_first_table_needs_no_search_and_a_searched_one_follows():
    traced = trace(Small().eval(), torch.rand(1, 3, 32, 40))
    graph = traced.graph
    server = np.full(len(graph), 1e-9)      # the server is much faster than this machine
    first, final = TablePlanner()(traced, server, server)
    assert set(first.plans) <= {Plan.device_only(graph), Plan.server_only(graph)}
    assert first.plans[0] == Plan.device_only(graph)         # at rate 0, the robot works alone
    assert len(final.bandwidths) > len(first.bandwidths)
    assert np.isfinite(first.estimates).all()


def test_with_a_profile_there_is_one_table():
    traced = trace(Small().eval(), torch.rand(1, 3, 32, 40))
    costs = np.full(len(traced.graph), 1e-4)
    profile = measure(traced, 1, 0, (0.5, 1.0))
    assert len(list(TablePlanner('server-only', profile)(traced, costs, costs))) == 1


def of_a_slow_robot(monkeypatch, shares):
    """Return a conv and ReLU, their costs, and the plans where the link has different rates."""
    monkeypatch.setattr(planner, 'encoded_shares', lambda traced: np.array(shares))
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU()).eval()
    traced = trace(model, torch.rand(1, 3, 32, 40))      # 15 kB of input, 328 kB of output
    graph, rates = traced.graph, (0.0, 1e6, 10e6, 100e6)
    none = np.zeros(len(graph))
    slow = np.array([0.025 * (n.kind is Kind.OPERATOR) for n in graph.nodes])
    profile = Profile(graph.digest, 'conv', 'robot', torch.__version__,
                      tuple(n.name for n in graph.nodes), none, slow)
    here, there = Plan.device_only(graph), Plan.server_only(graph)
    table = PlanTable(graph, rates, 0.0, [here, here, there, there])
    (made,) = TablePlanner(profile=profile, table=table, latency=0.001)(traced, none, none)
    costs = Costs(np.stack([none, none]), np.stack([slow, none]), np.array(shares))
    return made, costs, [[made.plans[k] for k in row] for row in made.chosen], here, there


def test_where_one_direction_is_slower_another_plan_is_better_and_its_latency_is_that_links(
        monkeypatch):
    made, costs, chosen, here, there = of_a_slow_robot(monkeypatch, [1.0] * 4)
    wanted = [[here, here, here, here], [here, here, here, there],
              [here, here, there, there], [here, here, there, there]]
    assert chosen == wanted
    for i, up in enumerate(made.bandwidths):
        for j, down in enumerate(made.bandwidths):
            link = Link(up, down, 0.001, MESSAGE)
            assert made.estimates[i, j] == pytest.approx(
                estimate(made.plans[0].graph, wanted[i][j], costs, link).latency)


def test_what_is_sent_in_fewer_bytes_is_sent_over_slower_links(monkeypatch):
    made, _, chosen, here, there = of_a_slow_robot(monkeypatch, [.15, .5, .1, 1.0])
    assert chosen == [[here, here, here, here], [here, there, there, there],
                      [here, there, there, there], [here, there, there, there]]


def test_what_crosses_the_link_is_found_once_for_all_servers(monkeypatch):
    asked = []

    def shares(traced):
        asked.append(traced)
        return np.ones(len(traced.graph))

    monkeypatch.setattr(planner, 'encoded_shares', shares)
    traced = trace(Small().eval(), torch.rand(1, 3, 32, 40))
    costs = np.full(len(traced.graph), 1e-4)
    profile = measure(traced, 1, 0, (0.5, 1.0))
    for method in ('server-only', 'dsccs'):
        assert len(list(TablePlanner(method, profile)(traced, costs, costs))) == 1
    assert asked == [traced]


def test_the_shares_are_those_of_the_example_and_random_inputs_are_not_believed():
    torch.manual_seed(0)
    traced = trace(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval(),
                   torch.zeros(1, 3, 64, 64))
    x, conv, relu, out = encoded_shares(traced)
    assert x == out == 1 and relu < .6 and conv > .7
    traced.example = [torch.randint(0, 9, (1, 3, 64, 64)) / 9]
    assert encoded_shares(traced)[0] < .3


def test_a_baselines_plan_is_that_of_the_up_link():
    traced = trace(Small().eval(), torch.rand(1, 3, 32, 40))
    costs = np.full(len(traced.graph), 1e-4)
    (made,) = TablePlanner('server-only', measure(traced, 1, 0, (0.5, 1.0)))(traced, costs, costs)
    assert (made.chosen == made.chosen[:, :1]).all()


def test_a_plan_must_gain_more_than_a_margin_over_the_robot_and_the_server_alone():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(layer for _ in range(6) for layer in (
        torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.ReLU()))).eval()
    traced = trace(model, torch.rand(1, 3, 64, 64))
    graph = traced.graph
    operators = np.array([n.kind is Kind.OPERATOR for n in graph.nodes])
    profile = Profile(graph.digest, 'convs', 'robot', torch.__version__,
                      tuple(n.name for n in graph.nodes), np.zeros(len(graph)), 0.01 * operators)
    made = list(TablePlanner(profile=profile, latency=0.001)(
        traced, np.zeros(len(graph)), 0.004 * operators))[0]
    simple = [Plan.device_only(graph), Plan.server_only(graph)]
    costs = Costs(np.zeros((2, len(graph))), np.stack([0.01 * operators, 0.004 * operators]))
    for i, up in enumerate(made.bandwidths):
        link = Link(up, up, 0.001, MESSAGE)
        plan = made.plans[made.chosen[i, i]]
        best = min(simple, key=lambda p, link=link: estimate(graph, p, costs, link).latency)
        if plan not in simple:
            least = estimate(graph, best, costs, link).latency
            more = len(plan.transfers) - len(best.transfers)
            assert least - made.estimates[i, i] > MARGIN * least + TRANSFER * max(more, 0)
        assert [made.plans[k] for k in made.others[-2:, i, i]] == simple
    # the test needs at least one plan that saves more than `MARGIN` and so replaces a simple plan
    assert {made.plans[k] for k in made.chosen.ravel()} - set(simple)


def test_where_energy_counts_a_plan_is_not_left_for_a_faster_one():
    traced = trace(Small().eval(), torch.rand(1, 3, 32, 40))
    costs = np.full(len(traced.graph), 1e-4)
    profile = measure(traced, 1, 0, (0.5, 1.0))
    (made,) = TablePlanner(profile=profile, objective=Objective(deadline=0.5))(
        traced, costs, costs)
    assert not len(made.others) and len(made.ways(20, 20)) == 1
