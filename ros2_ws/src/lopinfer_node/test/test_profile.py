"""Tests of profiles: saving, loading and fitting of costs.

An operator's cost is fitted as ``a + b * share``. ``share`` is the computed fraction of its result.
"""

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from lopinfer_node.errors import ProfileError
from lopinfer_node.model.footprint import identity
from lopinfer_node.model.graph import Graph, Kind, Node
from lopinfer_node.planning.profile import Profile, fit

COSTS = st.lists(st.floats(0, 10), min_size=1, max_size=8)


def made(fixed, per_share, digest='d' * 64):
    names = tuple(f'op{i}' for i in range(len(fixed)))
    return Profile(digest, 'net', 'board', '2.13', names, np.array(fixed), np.array(per_share))


@given(COSTS)
@examples(50)
def test_a_saved_profile_is_read_back_exactly(tmp_path_factory, costs):
    path = tmp_path_factory.mktemp('profile') / 'a.json'
    profile = made(costs, costs[::-1])
    profile.save(path)
    read = Profile.load(path)
    assert (read.digest, read.model, read.machine, read.torch, read.names) \
        == (profile.digest, 'net', 'board', '2.13', profile.names)
    assert np.array_equal(read.fixed, profile.fixed)
    assert np.array_equal(read.per_share, profile.per_share)


def test_whole_is_the_cost_of_the_whole_extent():
    assert np.array_equal(made([1.0, 0.0], [0.5, 2.0]).whole, [1.5, 2.0])


BROKEN = {
    'format': 'onnx', 'version': 2, 'digest': 7, 'machine': None, 'names': 'conv',
    'fixed': [1.0], 'per_share': [1.0, -1.0]}


@pytest.mark.parametrize('field', BROKEN)
def test_a_wrong_field_is_named_with_the_file(tmp_path, field):
    path = tmp_path / 'p.json'
    made([1.0, 2.0], [0.0, 0.0]).save(path)
    state = json.loads(path.read_text())
    state[field] = BROKEN[field]
    path.write_text(json.dumps(state))
    with pytest.raises(ProfileError, match=rf'p\.json: {field}: '):
        Profile.load(path)


@pytest.mark.parametrize('value', [float('nan'), float('inf'), True, 'x', None, 10 ** 400])
def test_a_cost_that_is_not_finite_is_refused(tmp_path, value):
    path = tmp_path / 'p.json'
    made([1.0], [0.0]).save(path)
    state = json.loads(path.read_text())
    state['fixed'] = [value]
    path.write_text(json.dumps(state))
    with pytest.raises(ProfileError, match=r'p\.json'):
        Profile.load(path)


@pytest.mark.parametrize('content', ['', '[]', '{', '[' * 100_000, '\xff'])
def test_an_invalid_profile_is_refused(tmp_path, content):
    path = tmp_path / 'p.json'
    path.write_bytes(content.encode('latin-1'))
    with pytest.raises(ProfileError, match=r'p\.json.*lopinfer profile'):
        Profile.load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ProfileError, match='none'):
        Profile.load(tmp_path / 'none.json')


def test_a_profile_of_another_graph_is_refused():
    nodes = [Node(0, 'x', Kind.INPUT, 'input', (), (), (1, 4), axis=1),
             Node(1, 'y', Kind.OUTPUT, 'output', (0,), (identity(4),), (1, 4), axis=1)]
    graph = Graph(nodes, 'small')
    made([0.0, 0.0], [0.0, 0.0], graph.digest).check(graph)
    with pytest.raises(ProfileError, match='does not belong to small'):
        made([0.0, 0.0], [0.0, 0.0]).check(graph)


def cost_of(shares, seconds, a, b):
    return float(((a + b * shares - seconds) ** 2).sum())


@given(st.lists(st.tuples(st.floats(0.05, 1), st.floats(0, 1)), min_size=1, max_size=6),
       st.floats(0, 1), st.floats(0, 2))
@examples(300)
def test_no_other_pair_of_non_negative_costs_fits_better(samples, a, b):
    shares, seconds = np.array(samples).T
    fixed, per_share = fit(shares[:, None], seconds[:, None])
    assert fixed[0] >= 0 and per_share[0] >= 0
    best = cost_of(shares, seconds, fixed[0], per_share[0])
    assert best <= cost_of(shares, seconds, a, b) + 1e-9
    assert best <= cost_of(shares, seconds, fixed[0] + 0.01, per_share[0]) + 1e-9
    assert best <= cost_of(shares, seconds, fixed[0], per_share[0] + 0.01) + 1e-9


@given(COSTS)
@examples(50)
def test_exact_lines_are_found_for_all_nodes_at_once(costs):
    fixed, per_share = np.array(costs), np.array(costs[::-1])
    shares = np.array([[0.25], [0.5], [1.0]])
    found = fit(shares, fixed + per_share * shares)
    assert np.allclose(found, (fixed, per_share))


def test_each_node_may_have_its_own_shares():
    shares = np.array([[1 / 3, 0.5], [1.0, 1.0]])
    fixed, per_share = fit(shares, 2 + 3 * shares)
    assert np.allclose(fixed, 2) and np.allclose(per_share, 3)


def test_a_node_measured_at_one_share_is_all_fixed():
    fixed, per_share = fit(np.ones((3, 1)), np.array([[1.0], [2.0], [3.0]]))
    assert (fixed[0], per_share[0]) == (2.0, 0.0)


@pytest.mark.parametrize(('shares', 'seconds'), [
    (np.ones(2), np.ones((2, 1))), (np.ones((2, 3)), np.ones((2, 2))),
    (np.ones((0, 1)), np.ones((0, 1))), (np.zeros((2, 1)), np.ones((2, 1))),
    (np.ones((2, 1)), -np.ones((2, 1))), (np.ones((2, 1)), np.full((2, 1), np.nan))])
def test_samples_that_make_no_sense_are_refused(shares, seconds):
    with pytest.raises(ValueError, match='shares'):
        fit(shares, seconds)


def test_a_slowed_robot_pauses_for_what_it_computed_and_not_for_what_others_did(monkeypatch):
    from lopinfer_node.runtime import slow
    clocks = {'thread_time': 0.0, 'perf_counter': 0.0}
    slept = []

    class Run:
        deliver = piece = outputs = None

        def compute(self, steps):
            for _ in steps:
                clocks['thread_time'] += 0.01
                clocks['perf_counter'] += 0.5   # 0.49 s of it, another process used the CPU

        def finish_alone(self):
            self.compute(range(1))
            return 'outputs'

    class Program:
        steps = [SimpleNamespace(sends=())] * 3

        def start(self, inputs):
            return Run()

    def sleep(seconds):
        slept.append(seconds)
        clocks['perf_counter'] += seconds
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(slow, 'time', SimpleNamespace(
        sleep=sleep, **{name: partial(clocks.get, name) for name in clocks}))
    try:
        run = slow.slowed(Program(), 3.0).start(None)
        run.compute(range(3))
        assert sum(slept) == pytest.approx(3 * 0.01 * 2)
        assert run.finish_alone() == 'outputs'
    finally:
        torch.set_num_threads(threads)
    assert sum(slept) == pytest.approx(4 * 0.01 * 2)
