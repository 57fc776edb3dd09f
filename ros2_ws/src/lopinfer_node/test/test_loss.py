import json
import threading

import numpy as np
import pytest
from fleet_testing import examples
from graphs import Builder, chain, dense, random_costs, random_graph, residual, work_costs
from hypothesis import given
from hypothesis import strategies as st
from lopinfer_node.errors import PlanError, ProfileError
from lopinfer_node.planning import compiled
from lopinfer_node.planning.baselines import BASELINES
from lopinfer_node.planning.loss import Search, bounds, plan_loss, positions
from lopinfer_node.planning.objective import Objective
from lopinfer_node.planning.plan import DEVICE, SERVER, Plan, check
from lopinfer_node.planning.table import PlanTable, plan_table
from lopinfer_node.planning.timeline import Costs, Link, estimate

SEEDS = st.integers(0, 10**6)
PROFILE = examples(40)


def slow_link(rate=10e6):
    graph = chain()
    return graph, work_costs(graph, 0.087, 0.008, 2e-5), Link(rate, rate, 0.005)


@PROFILE
@given(SEEDS)
def test_plans_are_valid_and_never_worse_than_a_baseline(seed):
    graph = random_graph(seed)
    costs, link = random_costs(graph, seed)
    for objective in (Objective(), Objective(weight=0.1), Objective(deadline=2e-3)):
        search = Search(graph, costs, link, objective)
        search.construct()
        search.refine(seed, 300)
        plan = search.plan()
        check(plan)
        check(search.plan(exempt=False), small_transfers=True)
        for baseline in BASELINES.values():
            other = search.score(baseline(graph, costs, link))[0]
            assert search.score(plan)[0] <= other * (1 + 1e-9)


@PROFILE
@given(SEEDS)
def test_any_cuts_are_bettered_by_their_bounds(seed):
    """Check that the plan made from a random plan's bounds is at least as good as the random plan.

    So the search misses no better plan, although it looks only at bounds.
    """
    graph = random_graph(seed)
    costs, link = random_costs(graph, seed)
    rng = np.random.default_rng(seed)
    device_to = rng.integers(0, graph.extents + 1)
    server_from = rng.integers(0, device_to + 1)
    for node in graph.nodes:
        if node.is_global:
            device_to[node.index] = server_from[node.index] = node.extent * rng.integers(2)
    plan = Plan.of_cuts(graph, device_to, server_from)
    check(plan)
    p = compiled.problem(graph, costs, link, small_transfers=False)
    w = compiled.work(len(graph))
    as_is = compiled.evaluate_cuts(p, w, *bounds(plan))
    settled = compiled.evaluate(p, w, *bounds(plan))
    assert all(b <= a * (1 + 1e-9) for a, b in zip(as_is[:3], settled[:3], strict=True))
    check(Plan.of_cuts(graph, *w.cut))


def test_transmission_hides_behind_computation():
    graph, costs, link = slow_link()
    base = min(estimate(graph, b(graph, costs, link), costs, link).latency
               for b in BASELINES.values())
    timeline = estimate(graph, plan_loss(graph, costs, link), costs, link)
    assert timeline.latency < 0.93 * base
    assert timeline.hidden > 0.8
    split = timeline.plan.own[DEVICE, :, 1] > 0
    split &= timeline.plan.own[SERVER, :, 1] > 0
    assert split.sum() > 20


def test_a_plan_in_steps_is_found_on_a_dense_network():
    graph = dense()
    costs, link = work_costs(graph, 0.05, 0.01, 5e-5), Link(20e6, 20e6, 0.005)
    base = min(estimate(graph, b(graph, costs, link), costs, link).latency
               for b in BASELINES.values())
    plan = plan_loss(graph, costs, link, evaluations=4000)
    assert estimate(graph, plan, costs, link).latency < 0.88 * base
    assert len({t.node for t in plan.transfers if t.source == DEVICE}) > 2


def test_the_same_seed_gives_the_same_plan_and_more_evaluations_no_worse_one():
    graph, costs, link = slow_link()
    assert plan_loss(graph, costs, link, seed=5, evaluations=500) \
        == plan_loss(graph, costs, link, seed=5, evaluations=500)
    search = Search(graph, costs, link)
    search.construct()
    found = [search.score(search.plan())]
    for seed in range(4):
        search.refine(seed, 400)
        found.append(search.score(search.plan()))
    assert found == sorted(found, reverse=True)


def test_no_time_is_enough_for_a_valid_plan():
    graph, costs, link = slow_link()
    plan = plan_loss(graph, costs, link, seconds=0.0)
    check(plan, small_transfers=True)


def test_a_known_plan_is_not_forgotten():
    graph, costs, link = slow_link()
    good = plan_loss(graph, costs, link)
    again = plan_loss(graph, costs, link, evaluations=2, known=[good])
    assert estimate(graph, again, costs, link).latency \
        <= estimate(graph, good, costs, link).latency * (1 + 1e-12)


def test_objectives_trade_latency_for_energy():
    graph, costs, link = slow_link(20e6)
    fast, frugal, late = (
        estimate(graph, plan_loss(graph, costs, link, objective, evaluations=3000), costs, link)
        for objective in (Objective(), Objective(weight=1.0), Objective(deadline=0.2)))
    assert fast.latency <= frugal.latency and fast.energy >= frugal.energy
    assert late.energy <= frugal.energy * (1 + 1e-6) and late.latency <= 0.2
    missed = estimate(graph, plan_loss(graph, costs, link, Objective(deadline=1e-4)), costs, link)
    assert missed.latency == pytest.approx(fast.latency, rel=0.02)


@pytest.mark.parametrize('arguments', [{'weight': -1}, {'weight': float('nan')}, {'deadline': 0},
                                       {'deadline': float('inf')}, {'weight': 1, 'deadline': 1}])
def test_objectives_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ValueError):
        Objective(**arguments)


def test_without_a_link_everything_stays_on_the_device():
    graph, costs, _ = slow_link()
    assert plan_loss(graph, costs, Link(0, 0), evaluations=200) == Plan.device_only(graph)


def test_large_tensors_do_not_cross_unless_allowed():
    graph = residual((3, 4, 6, 3))
    costs, link = work_costs(graph, 0.2, 0.02), Link(30e6, 30e6, 0.001)
    check(plan_loss(graph, costs, link, evaluations=2000), small_transfers=True)
    free = plan_loss(graph, costs, link, evaluations=2000, small_transfers=False)
    check(free)


def test_boundaries_are_tried_where_nothing_is_barred():
    graph, costs, link = slow_link()
    problem = compiled.problem(graph, costs, link)
    found = positions(problem)
    assert len(found) > 1 and (np.diff(found) > 0).all()
    for position in found:
        alive = [n for n in graph.nodes[1:position + 1] if problem.last_use[n.index] > position]
        assert alive and all(n.bytes <= graph.input_bytes for n in alive)


@pytest.fixture(scope='module')
def table():
    graph, costs, _ = slow_link()
    return costs, plan_table(graph, costs, latency=0.005, evaluations=1000)


def test_every_bin_of_a_table_is_as_good_as_its_baselines_and_its_neighbours(table):
    costs, plans = table
    graph = plans.graph
    assert len(plans) == 31 and plans[0] == Plan.device_only(graph)
    for bandwidth, plan in zip(plans.bandwidths, plans, strict=True):
        check(plan)
        link = Link(bandwidth, bandwidth, 0.005)
        latency = estimate(graph, plan, costs, link).latency * (1 - 1e-9)
        others = [b(graph, costs, link) for b in BASELINES.values()]
        for other in dict.fromkeys([*others, *plans]):
            assert latency <= estimate(graph, other, costs, link).latency
    latencies = [estimate(graph, p, costs, Link(b, b, 0.005)).latency
                 for b, p in zip(plans.bandwidths, plans, strict=True)]
    assert latencies == sorted(latencies, reverse=True) and latencies[-1] < latencies[0] / 2


def test_the_number_of_workers_does_not_change_a_table():
    graph, costs, _ = slow_link()
    one, two = (plan_table(graph, costs, (0, 5e6, 1e7, 2e7), evaluations=300, workers=k)
                for k in (1, 3))
    assert list(one) == list(two)


def test_an_interruption_does_not_wait_for_what_still_compiles(monkeypatch):
    begun, may_end, ended = (threading.Event() for _ in range(3))

    def search(graph, costs, link, *options):
        if link.up == 1e6:
            begun.wait()
            raise KeyboardInterrupt
        begun.set()
        may_end.wait()
        ended.set()
        raise RuntimeError

    monkeypatch.setattr('lopinfer_node.planning.table.Search', search)
    graph, costs, _ = slow_link()
    with pytest.raises(KeyboardInterrupt):
        plan_table(graph, costs, (1e6, 2e6), workers=2)
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(60)


def test_a_bin_is_the_greatest_bandwidth_that_is_reached(table):
    plans = table[1]
    assert [plans.bin(b) for b in (0, 0.9e6, 1e6, 19.99e6, 30e6, 1e9)] == [0, 0, 1, 19, 30, 30]


def test_a_table_survives_its_file(table, tmp_path):
    plans = table[1]
    plans.save(tmp_path / 'table.json')
    again = PlanTable.load(plans.graph, tmp_path / 'table.json')
    assert list(again) == list(plans)
    assert (again.bandwidths, again.latency) == (plans.bandwidths, plans.latency)
    assert [p.name for p in tmp_path.iterdir()] == ['table.json']


def damaged(state):
    """Yield tuples (fault, content) of invalid files; each file must be refused."""
    yield 'format', {**state, 'format': 'something'}
    yield 'another model', {**state, 'graph': '0' * 64}
    yield 'damaged', {k: v for k, v in state.items() if k != 'plans'}
    yield 'damaged', {**state, 'plans': [p[:-1] for p in state['plans']]}
    yield 'damaged', {**state, 'plans': [[0] * len(p) for p in state['plans']]}
    yield 'damaged', {**state, 'plans': [[float(x) for x in p] for p in state['plans']]}
    yield 'damaged', {**state, 'plans': [[2**70] * len(p) for p in state['plans']]}
    yield 'damaged', {**state, 'plans': 3}
    yield 'damaged', {**state, 'bins': [len(state['plans'])] * len(state['bins'])}
    yield 'damaged', {**state, 'bins': [-1] * len(state['bins'])}
    yield 'damaged', {**state, 'bins': state['bins'][:-1]}
    yield 'damaged', {**state, 'bandwidths': state['bandwidths'][::-1]}
    yield 'damaged', {**state, 'bandwidths': ['x'] * len(state['bandwidths'])}
    yield 'damaged', {**state, 'latency': float('nan')}


def test_a_damaged_or_foreign_table_is_refused(table, tmp_path):
    plans = table[1]
    path = tmp_path / 'table.json'
    plans.save(path)
    state = json.loads(path.read_text())
    for message, other in damaged(state):
        path.write_text(json.dumps(other))
        with pytest.raises(ProfileError, match=message):
            PlanTable.load(plans.graph, path)
    for text in ('', '[]', path.read_text()[:100]):
        path.write_text(text)
        with pytest.raises(ProfileError, match='not a plan table'):
            PlanTable.load(plans.graph, path)
    with pytest.raises(ProfileError, match='not a plan table'):
        PlanTable.load(plans.graph, tmp_path / 'missing.json')


def test_a_table_has_one_plan_per_bandwidth():
    graph, _, _ = slow_link()
    plan = Plan.device_only(graph)
    for bandwidths, plans in (((), ()), ((1.0,), ()), ((2.0, 1.0), (plan, plan)),
                              ((-1.0,), (plan,))):
        with pytest.raises(PlanError):
            PlanTable(graph, bandwidths, 0.0, plans)


def test_an_output_larger_than_the_input_may_still_come_from_the_server_as_a_baseline_does():
    b = Builder()
    b.output(b.window(b.input(1, 8, 8), 4, 3, 1, 1))
    graph = b.graph('growing')
    costs = Costs(np.array([[0, 1, 0], [0, 0.1, 0]]), np.zeros((2, 3)))
    plan = plan_loss(graph, costs, Link(1e9, 1e9))
    assert plan == Plan.server_only(graph)
    with pytest.raises(PlanError):
        check(plan, small_transfers=True)


def test_search_continues_past_a_large_global_tensor():
    b = Builder()
    b.output(b.softmax(b.window(b.input(1, 8, 8), 4, 3, 1, 1)))
    graph = b.graph('large and global')
    costs = Costs(np.array([[0, 1, 1, 0], [0, 0.1, 0.1, 0]]), np.zeros((2, 4)))
    search = Search(graph, costs, Link(1e9, 1e9))
    search.construct([Plan.server_only(graph)])
    search.refine(0, 100)
    assert search.plan() == Plan.server_only(graph)
    check(search.plan(exempt=False), small_transfers=True)
