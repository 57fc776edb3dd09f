"""Which rows travel, in which order, how many at least."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rog_core import plan as plans
from rog_core.partition import partition_of
from rog_core.sync import parse_sync

PARTITION = partition_of([('w', (700, 3)), ('long', (20000,)), ('b', (4,))])
ROWS = PARTITION.rows


def adaptive(seed, late=0.0, absent=0.0, sync='rsp:4', ties=False):
    noise = np.random.default_rng(seed)
    scores = noise.integers(0, 5, ROWS).astype(float) if ties else noise.standard_normal(ROWS)
    overdue, candidates = noise.random(ROWS) < late, noise.random(ROWS) >= absent
    plan = plans.adaptive(PARTITION, parse_sync(sync), scores, overdue, candidates, 0.5)
    return plan, scores, overdue, candidates


def flat(windows):
    return np.concatenate(windows) if windows else np.empty(0, np.int64)


shares = st.sampled_from([0.0, 0.1, 0.6, 1.0])
some = {'seed': st.integers(0, 2 ** 32), 'late': shares, 'absent': shares,
        'sync': st.sampled_from(['rsp:1', 'rsp:2', 'rsp:4', 'rsp:40']), 'ties': st.booleans()}


@given(**some)
def test_a_plan_holds_every_candidate_once_and_nothing_else(seed, late, absent, sync, ties):
    plan, _, _, candidates = adaptive(seed, late, absent, sync, ties)
    expected = np.flatnonzero(candidates[PARTITION.segment_row])
    assert np.sort(flat(plan.windows)).tolist() == expected.tolist()
    assert plan.rows == candidates.sum()
    for window in plan.windows:
        assert (np.diff(window) > 0).all()
        assert window.size <= plans.window_size(PARTITION)


@given(**some)
def test_overdue_rows_and_the_minimum_are_mandatory(seed, late, absent, sync, ties):
    plan, _, overdue, candidates = adaptive(seed, late, absent, sync, ties)
    mandatory = PARTITION.rows_complete(flat(plan.windows[:plan.mandatory]))
    assert mandatory[overdue & candidates].all()
    least = math.ceil(parse_sync(sync).minimum * ROWS)
    assert mandatory.sum() == min(max(least, (overdue & candidates).sum()), candidates.sum())


@given(**some)
def test_rows_beyond_the_minimum_go_by_descending_score(seed, late, absent, sync, ties):
    plan, scores, overdue, _ = adaptive(seed, late, absent, sync, ties)
    rank = np.where(overdue, np.inf, scores.astype(np.float32))[PARTITION.segment_row]
    mandatory = flat(plan.windows[:plan.mandatory])
    assert (np.diff(mandatory) > 0).all()
    windows = [mandatory, *plan.windows[plan.mandatory:]]
    for earlier, later in zip(windows, windows[1:]):
        assert rank[earlier].min() >= rank[later].max()


def test_equal_scores_keep_model_order_and_a_plan_is_deterministic():
    every = np.ones(ROWS, bool)
    plan = plans.adaptive(PARTITION, parse_sync('rsp:4'), np.zeros(ROWS), ~every, every, 1.0)
    assert flat(plan.windows).tolist() == list(range(PARTITION.segments))
    first, second = adaptive(3, ties=True)[0], adaptive(3, ties=True)[0]
    assert flat(first.windows).tolist() == flat(second.windows).tolist()


finite = st.floats(-2.0 ** 90, 2.0 ** 90, width=32, allow_subnormal=False)


@given(st.lists(finite, min_size=1, max_size=50), st.data())
def test_rows_are_ordered_as_by_a_stable_sort(scores, data):
    first = np.array(data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores))))
    values = np.array(scores) + 0.0  # -0.0 and 0.0 are the same score
    expected = np.lexsort((-values, ~first))
    assert plans._descending(values, first).tolist() == expected.tolist()


def test_everything_is_all_mandatory_and_has_no_budget():
    plan = plans.everything(PARTITION)
    assert plan.mandatory == len(plan.windows)
    assert plan.budget == math.inf
    assert flat(plan.windows).tolist() == list(range(PARTITION.segments))
    some_rows = plans.everything(PARTITION, np.array([2, 700]))
    assert flat(some_rows.windows).tolist() == [2, 700, 701, 702]


def test_nothing_to_send_is_an_empty_plan():
    none = np.zeros(ROWS, bool)
    plan = plans.adaptive(PARTITION, parse_sync('rsp:4'), np.zeros(ROWS), none, none, 1.0)
    assert plan.windows == []


@pytest.mark.parametrize(('f1', 'f2', 'order'), [
    (1, 0, [2, 0, 1]), (0, 1, [1, 2, 0]), (1, 9, [1, 2, 0])])
def test_importance_weighs_magnitude_and_age(f1, f2, order):
    scores = plans.importance(np.array([2.0, 1.0, 3.0]), np.array([0, 5, 1]), f1, f2)
    assert np.argsort(-scores).tolist() == order


def test_importance_does_not_depend_on_the_scale_of_the_gradient():
    magnitude, age = np.array([2.0, 1.0, 3.0]), np.array([0, 5, 1])
    assert np.allclose(plans.importance(magnitude, age, 1, 1),
                       plans.importance(1e-3 * magnitude, age, 1, 1))
    assert np.isfinite(plans.importance(np.zeros(3), age, 1, 1)).all()
