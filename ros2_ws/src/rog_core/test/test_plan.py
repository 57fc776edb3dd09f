"""The plan of a transfer: which rows it sends, in which order, and how many at least."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rog_core.codecs import get_codec
from rog_core.methods import create
from rog_core.model.partition import partition_of
from rog_core.protocol.messages import Sending
from rog_core.transfer import plan as plans
from rog_core.transfer.plan import minimum_transmission

PARTITION = partition_of([('w', (700, 3)), ('long', (20000,)), ('b', (4,))])
ROWS = PARTITION.rows
ONEBIT, TERNARY = get_codec('onebit'), get_codec('ternary')


def plan_of(sync, scores, overdue, candidates, time):
    """Return the plan of a method with early transmission.

    ``time``: seconds that the transfer may take beyond the mandatory rows.
    """
    method = create(sync)
    assert method.early and method.by_row
    # The overdue rows are as old as the bound, or older; the other rows are younger.
    age = np.where(overdue, method.bound + np.arange(ROWS) % 3, method.bound - 1).astype(int)
    return plans.by_importance(PARTITION, method.sending(), scores, age, candidates,
                               time if method.time_limited else math.inf)


def adaptive(seed, late=0.0, absent=0.0, sync='rsp:4', ties=False):
    noise = np.random.default_rng(seed)
    scores = noise.integers(0, 5, ROWS).astype(float) if ties else noise.standard_normal(ROWS)
    overdue, candidates = noise.random(ROWS) < late, noise.random(ROWS) >= absent
    plan = plan_of(sync, scores, overdue, candidates, 0.5)
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
    least = math.ceil(create(sync).sending().minimum * ROWS)
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
    plan = plan_of('rsp:4', np.zeros(ROWS), ~every, every, 1.0)
    assert flat(plan.windows).tolist() == list(range(PARTITION.segments))
    first, second = adaptive(3, ties=True)[0], adaptive(3, ties=True)[0]
    assert flat(first.windows).tolist() == flat(second.windows).tolist()


finite = st.floats(-2.0 ** 90, 2.0 ** 90, width=32, allow_subnormal=False)


@given(st.lists(finite, min_size=1, max_size=50), st.data())
def test_rows_are_ordered_as_by_a_stable_sort(scores, data):
    first = np.array(data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores))))
    values = np.array(scores) + 0.0  # turns -0.0 into 0.0, because both are the same score
    expected = np.lexsort((-values, ~first))
    assert plans._descending(values, first).tolist() == expected.tolist()


# -- ATP with one of its parts switched off: order, time-out or minimum


def test_without_order_rows_go_in_model_order_but_for_those_overdue():
    plan, _, overdue, candidates = adaptive(1, late=0.1, sync='rsp:4-order')
    least = plan.windows[:plan.mandatory]
    rest = flat(plan.windows[plan.mandatory:])
    assert (np.diff(rest) > 0).all()
    assert PARTITION.rows_complete(flat(least))[overdue & candidates].all()
    with_order = adaptive(1, late=0.1, sync='rsp:4')[0]
    assert (np.diff(flat(with_order.windows[with_order.mandatory:])) < 0).any()
    assert (plan.mandatory, plan.budget) == (with_order.mandatory, with_order.budget)


def test_without_time_out_a_transfer_goes_on_until_all_rows_are_there():
    plan, with_timeout = (adaptive(1, sync=sync)[0] for sync in ('rsp:4-timeout', 'rsp:4'))
    assert (plan.budget, with_timeout.budget) == (math.inf, 0.5)
    assert flat(plan.windows).tolist() == flat(with_timeout.windows).tolist()
    assert plan.mandatory == with_timeout.mandatory


@pytest.mark.parametrize('late', [0.0, 0.02])
def test_without_minimum_only_overdue_rows_are_mandatory_and_one_at_least(late):
    plan, _, overdue, _ = adaptive(1, late=late, sync='rsp:4-minimum')
    mandatory = PARTITION.rows_complete(flat(plan.windows[:plan.mandatory])).sum()
    assert mandatory == max(overdue.sum(), 1)
    assert (overdue.sum() == 0) == (late == 0)
    # The reported MTA time is still the time that the whole MTA needs.
    assert plan.mta_factor * mandatory == pytest.approx(minimum_transmission(4) * ROWS)
    assert adaptive(1, late=late, sync='rsp:4')[0].mta_factor == 1


def test_without_any_part_every_row_travels():
    assert not create('rsp:4-early').early and create('rsp:4-early').sending() == Sending()
    assert create('rsp:4-order-timeout-minimum').options == create('rsp:4-early').options


# -- a worker gets the smaller codec if other robots would wait for it


@pytest.mark.parametrize(('rate', 'patience', 'smaller'), [
    (1e6, 10.0, False), (1e3, 0.01, True), (1e6, math.inf, False), (1.0, math.inf, False)])
def test_the_smaller_code_is_taken_when_the_minimum_has_no_time_in_the_ordinary_one(
        rate, patience, smaller):
    plan = adaptive(1)[0]
    codec = plans.affordable(plan, PARTITION, ONEBIT, TERNARY, rate, patience)
    assert codec is (TERNARY if smaller else ONEBIT)


def test_what_has_time_is_counted_in_the_bytes_of_the_mandatory_rows():
    plan = adaptive(1)[0]
    ids = flat(plan.windows[:plan.mandatory])
    nbytes = int(ONEBIT.sizes(PARTITION.lengths[ids]).sum()) + ids.size
    for rate, codec in ((nbytes / 2 + 1, ONEBIT), (nbytes / 2 - 1, TERNARY)):
        assert plans.affordable(plan, PARTITION, ONEBIT, TERNARY, rate, 2.0) is codec


def test_where_nothing_is_mandatory_the_ordinary_code_stays():
    plan = plans.by_score(PARTITION, np.zeros(ROWS), np.arange(ROWS), 1.0)
    assert plans.affordable(plan, PARTITION, ONEBIT, TERNARY, 1e3, 0.0) is ONEBIT


def test_everything_is_all_mandatory_and_has_no_budget():
    plan = plans.everything(PARTITION)
    assert plan.mandatory == len(plan.windows)
    assert plan.budget == math.inf
    assert flat(plan.windows).tolist() == list(range(PARTITION.segments))
    some_rows = plans.everything(PARTITION, np.array([2, 700]))
    assert flat(some_rows.windows).tolist() == [2, 700, 701, 702]


def test_nothing_to_send_is_an_empty_plan():
    none = np.zeros(ROWS, bool)
    plan = plan_of('rsp:4', np.zeros(ROWS), none, none, 1.0)
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
