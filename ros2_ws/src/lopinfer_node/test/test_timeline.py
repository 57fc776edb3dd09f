from dataclasses import replace

import numpy as np
import pytest
from fleet_env.settings.power_model import PowerModel
from fleet_testing import examples
from graphs import Builder, random_costs, random_graph, random_plan_bounds
from hypothesis import given
from hypothesis import strategies as st
from lopinfer_node.planning import compiled
from lopinfer_node.planning.plan import DEVICE, SERVER, Plan, check
from lopinfer_node.planning.timeline import Costs, Link, estimate

SEEDS = st.integers(0, 10**6)
PROFILE = examples(300)


def settled(graph, costs, link, seed, small_transfers=False):
    """Derive the cuts, and the intervals that each side needs, from random bounds.

    Return the problem, the working arrays with the cuts, and whether the cuts are valid.
    """
    p = compiled.problem(graph, costs, link, small_transfers=small_transfers)
    w = compiled.work(len(graph))
    valid = compiled.settle(p, w, *random_plan_bounds(graph, seed))
    return p, w, valid


@PROFILE
@given(SEEDS)
def test_the_kernels_say_what_the_estimate_says(seed):
    graph = random_graph(seed)
    costs, link = random_costs(graph, seed)
    link = replace(link, message=0.01 * (seed % 3))
    p, w, _ = settled(graph, costs, link, seed)
    plan = Plan.of_cuts(graph, *w.cut)
    timeline = estimate(graph, plan, costs, link)
    latency, crossed, computing = compiled.schedule(p, w)
    assert latency == pytest.approx(timeline.latency, rel=1e-12)
    assert crossed == timeline.bytes
    assert computing == pytest.approx(timeline.computing(DEVICE) + timeline.computing(SERVER))
    assert compiled.energy(p, w, latency) == pytest.approx(timeline.energy, rel=1e-9)
    again = compiled.evaluate_cuts(p, compiled.work(len(graph)), *w.cut)
    assert again[3] == latency


@PROFILE
@given(SEEDS, st.booleans())
def test_any_bounds_give_a_valid_plan_or_are_refused(seed, small_transfers):
    graph = random_graph(seed)
    costs, link = random_costs(graph, seed)
    _, w, valid = settled(graph, costs, link, seed, small_transfers)
    if valid:
        check(Plan.of_cuts(graph, *w.cut), small_transfers)


@PROFILE
@given(SEEDS)
def test_the_critical_path_has_no_gaps_and_lasts_as_long_as_the_inference(seed):
    graph = random_graph(seed)
    costs, link = random_costs(graph, seed)
    _, w, _ = settled(graph, costs, link, seed)
    timeline = estimate(graph, Plan.of_cuts(graph, *w.cut), costs, link)
    path = timeline.critical_path
    assert path[0].start == 0 and path[-1].end == timeline.latency
    assert all(a.end == b.start for a, b in zip(path, path[1:], strict=False))


@PROFILE
@given(SEEDS)
def test_the_schedule_respects_processors_links_and_data(seed):
    graph = random_graph(seed)
    costs, link = random_costs(graph, seed)
    _, w, _ = settled(graph, costs, link, seed)
    plan = Plan.of_cuts(graph, *w.cut)
    t = estimate(graph, plan, costs, link)
    for side in (DEVICE, SERVER):
        operators = [n.index for n in graph.nodes
                     if n.kind.value == 'operator' and not np.isnan(t.start[side, n.index])]
        assert all(t.end[side, a] <= t.start[side, b] for a, b in zip(operators, operators[1:]))
        sent = [t.transfers[x.index] for x in plan.transfers if x.source == side]
        assert all(a[2] <= b[1] for a, b in zip(sent, sent[1:]))
        for node in graph.nodes:
            for source, footprint in zip(node.inputs, node.footprints):
                lo, hi = footprint.need(*plan.interval(side, node.index))
                for x in plan.transfers:
                    if x.node == source and x.source != side and x.lo < hi and lo < x.hi:
                        assert t.transfers[x.index, 3] <= t.start[side, node.index]
                own = plan.interval(side, source)
                if lo < own[1] and own[0] < hi:
                    assert t.end[side, source] <= t.start[side, node.index]
    for x in plan.transfers:
        queued, start, end, arrival = t.transfers[x.index]
        assert queued == t.end[x.source, x.node] <= start
        assert end - start == pytest.approx(link.seconds(x.source, x.bytes))
        assert arrival == pytest.approx(end + link.latency)


def two_operators():
    b = Builder()
    b.output(b.pointwise([b.pointwise([b.input(1, 10, 10)])]))
    graph = b.graph('two')
    return graph, Costs(np.array([[0, 1, 1, 0], [0, 0, 0, 0.]]),
                        np.array([[0, 4, 4, 0], [0, 1, 1, 0.]]))


def test_a_small_case_by_hand():
    # Every tensor has 10 rows of 40 bytes. The device computes 6 rows of both operators, and the
    # server receives the 4 other rows of the input.
    graph, costs = two_operators()
    cut = np.array([0, 6, 6, 0])
    t = estimate(graph, Plan.of_cuts(graph, cut, cut), costs, Link(80, 40, 0.25))
    assert t.end[SERVER, 2] == pytest.approx(2 + 0.25 + 0.4 + 0.4)
    assert t.end[DEVICE, 2] == pytest.approx(2 * (1 + 2.4))
    assert t.transfers.tolist()[1] == pytest.approx([3.05, 3.05, 7.05, 7.3])
    assert t.latency == pytest.approx(7.3)
    assert t.overlap == pytest.approx(2 + 0.8 + (6.8 - 3.05))
    assert t.hidden == pytest.approx((2 + 6.8 - 3.05) / 6)
    power = PowerModel()
    assert t.energy == pytest.approx(6.8 * power.computing + 0.25 * power.communicating
                                     + 0.25 * power.stalled)
    assert [(s.side, s.node, s.transfer) for s in t.critical_path] \
        == [(DEVICE, 0, 0), (SERVER, 1, -1), (SERVER, 2, -1), (SERVER, 2, 1)]


def test_nothing_crosses_a_dead_link():
    graph, costs = two_operators()
    alone = estimate(graph, Plan.device_only(graph), costs, Link(0, 0))
    assert alone.latency == pytest.approx(10)
    away = estimate(graph, Plan.server_only(graph), costs, Link(0, 1e6))
    assert away.latency == away.energy == float('inf')
    assert away.critical_path == ()


@pytest.mark.parametrize('fixed', [[[0.0]], [[0.0], [-1.0]], [[0.0], [np.nan]], [[0.0, 0.0]] * 2])
def test_costs_that_make_no_sense_are_refused(fixed):
    with pytest.raises(ValueError):
        Costs(np.array(fixed), np.zeros((2, 1)))


def test_costs_of_another_graph_are_refused():
    graph, _ = two_operators()
    with pytest.raises(ValueError, match='4 operators'):
        estimate(graph, Plan.device_only(graph), Costs(np.zeros((2, 3)), np.zeros((2, 3))),
                 Link(1, 1))
