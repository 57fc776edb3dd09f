"""Tests of `evaluate`, which estimates the requests of each method over a recorded link."""

from pathlib import Path

import numpy as np
import pytest
from fleet_env.errors import TraceError
from fleet_env.links.trace import LinkTrace
from fleet_testing import examples
from graphs import Builder
from hypothesis import given
from hypothesis import strategies as st
from lopinfer_node.errors import ProfileError
from lopinfer_node.planning import evaluate
from lopinfer_node.planning.baselines import BASELINES, neurosurgeon
from lopinfer_node.planning.plan import Plan
from lopinfer_node.planning.profile import Profile
from lopinfer_node.planning.table import BANDWIDTHS
from lopinfer_node.planning.timeline import Costs, Link, estimate

SHARED = Path(__file__).resolve().parents[5] / 'shared/data'


def small_graph():
    builder = Builder()
    last = builder.input(3, 16, 16)
    for channels in (8, 2):
        last = builder.pointwise([builder.window(last, channels, 3, 1, 1)])
    last = builder.whole(last, 10)
    builder.output(last)
    return builder.graph('small')


GRAPH = small_graph()
COSTS = Costs(np.full((2, len(GRAPH)), [[1e-4], [1e-5]]),
              np.full((2, len(GRAPH)), [[4e-3], [2e-4]]))
DEVICE, SERVER = Plan.device_only(GRAPH), Plan.server_only(GRAPH)


def profile(scale, digest=GRAPH.digest):
    names = tuple(n.name for n in GRAPH.nodes)
    cost = np.full(len(GRAPH), scale)
    return Profile(digest, 'small', 'board', '', names, cost, 2 * cost)


def test_costs_have_the_device_first():
    costs = evaluate.costs_of(GRAPH, profile(3.0), profile(1.0))
    assert (costs.fixed[0] == 3).all() and (costs.fixed[1] == 1).all()
    assert (costs.per_share[0] == 6).all() and (costs.per_share[1] == 2).all()


def test_a_profile_of_another_model_is_refused():
    with pytest.raises(ProfileError, match='does not belong to small'):
        evaluate.costs_of(GRAPH, profile(1.0), profile(1.0, 'f' * 64))


@given(st.lists(st.integers(0, 16), min_size=len(GRAPH), max_size=len(GRAPH)),
       st.lists(st.floats(1e3, 1e8), min_size=1, max_size=4), st.floats(0, 0.1))
def test_many_rates_at_once_agree_with_the_timeline(cuts, rates, latency):
    cuts = np.minimum(cuts, GRAPH.extents)
    for node in GRAPH.nodes:     # a global operator cannot be divided
        if node.is_global:
            cuts[node.index] = node.extent * (cuts[node.index] > 0)
    plan = Plan.of_cuts(GRAPH, cuts, cuts)
    seconds, joules = evaluate.estimates(GRAPH, plan, COSTS, np.array(rates), latency)
    for rate, s, j in zip(rates, seconds, joules, strict=True):
        timeline = estimate(GRAPH, plan, COSTS, Link(rate, rate, latency))
        assert s == pytest.approx(timeline.latency, rel=1e-9)
        assert j == pytest.approx(timeline.energy, rel=1e-9)


def test_a_plan_that_is_not_made_of_cuts_is_refused():
    own = DEVICE.own.copy()
    own[:, 1] = [[4, 16], [0, 4]]     # the server computes the first rows
    with pytest.raises(ValueError, match='cuts'):
        evaluate.estimates(GRAPH, Plan(GRAPH, own), COSTS, np.ones(1))


def table_from(first_server_bin):
    return [SERVER if k >= first_server_bin else DEVICE for k in range(len(BANDWIDTHS))]


def test_the_plan_is_that_of_the_bandwidth_measured_before():
    # The efficiency of the link reduces both rates. Then 40 Mbit/s falls into bin 4 of the
    # plan table, and 80 Mbit/s into bin 9.
    trace = LinkTrace([0.0, 10.0, 20.0], [40.0, 80.0, 40.0], 30.0)
    outcome = evaluate.replay(GRAPH, table_from(6), COSTS, trace)
    device = evaluate.estimates(GRAPH, DEVICE, COSTS, np.array([1.0]))[0][0]
    late = evaluate.estimates(GRAPH, SERVER, COSTS, np.array([40e6 / 8 * evaluate.EFFICIENCY]))[0]
    # The plan always comes from the rate of the preceding sample. So in the second sample (fast)
    # the device computes, as the first sample (slow) demands. In the third sample (slow) the server
    # computes, as the second sample demands.
    assert set(outcome.latency) == {device, late[0]}
    assert outcome.latency[0] == device and outcome.latency[-1] == late[0]
    assert (outcome.latency == late[0]).sum() == pytest.approx(10 / late[0], abs=2)


@given(st.lists(st.floats(1, 200), min_size=2, max_size=6))
@examples(50)
def test_requests_follow_each_other_without_a_pause(rates):
    trace = LinkTrace(np.arange(len(rates)) * 0.5, rates, 0.5 * len(rates))
    outcome = evaluate.replay(GRAPH, table_from(1), COSTS, trace)
    begun = outcome.latency[:-1].sum()      # start of the last request, in seconds
    assert begun < trace.period <= begun + outcome.latency[-1]
    assert len(outcome.energy) == len(outcome.latency)


@given(st.lists(st.floats(1, 200), min_size=2, max_size=6), st.integers(0, 31))
@examples(50)
def test_foresight_is_never_slower(rates, first_server_bin):
    trace = LinkTrace(np.arange(len(rates)) * 2.0, rates, 2.0 * len(rates))
    table = table_from(first_server_bin)
    foreseen = evaluate.replay(GRAPH, table, COSTS, trace, foresight=True)
    blind = evaluate.replay(GRAPH, table, COSTS, trace)
    # with foresight, at least as many requests fit into the trace as without foresight
    assert len(foreseen.latency) >= len(blind.latency)
    device = evaluate.estimates(GRAPH, DEVICE, COSTS, np.array([1.0]))[0][0]
    if 0 < first_server_bin < 31:
        assert foreseen.latency.max() <= device


def test_statistics_of_an_outcome():
    outcome = evaluate.Outcome(np.arange(101.0), np.array([1.0, 3.0]))
    assert (outcome.mean, outcome.p95, outcome.joules) == (50.0, 95.0, 2.0)
    assert outcome.std == pytest.approx(np.sqrt(850))


def test_a_table_of_another_size_is_refused():
    with pytest.raises(ValueError, match='30 plans for 31'):
        evaluate.replay(GRAPH, [DEVICE] * 30, COSTS, LinkTrace([0.0], [10.0]))


def test_a_link_that_fails_is_refused():
    trace = LinkTrace([0.0, 1.0], [100.0, 0.0])
    with pytest.raises(TraceError, match='fails'):
        evaluate.replay(GRAPH, table_from(1), COSTS, trace)


def test_there_is_a_plan_for_every_method_and_bandwidth(monkeypatch):
    few = BANDWIDTHS[:6]
    monkeypatch.setattr(evaluate, 'BANDWIDTHS', few)
    tables = evaluate.tables(GRAPH, COSTS)
    assert list(tables) == [*BASELINES, 'lopinfer']
    assert all(len(table) == len(few) for table in tables.values())
    link = Link(few[5], few[5], evaluate.LATENCY)
    assert tables['neurosurgeon'][5] == neurosurgeon(GRAPH, COSTS, link)
    latency = {name: estimate(GRAPH, table[5], COSTS, link).latency
               for name, table in tables.items()}
    assert latency['lopinfer'] == min(latency.values())
