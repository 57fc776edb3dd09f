"""The queue of chunks: actions that arrive late, twice or in another order do no harm."""

import numpy as np
from fleet_policy.core.chunks import LATE, MOST, REPEATED, TAKEN, ActionQueue, Chunk
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from virtual_policy import chunk_of

firsts = st.lists(st.integers(0, 40), min_size=1, max_size=12, unique=True)


def chunk(first, length=20, observed=None):
    return Chunk(first, first / 30 if observed is None else observed, chunk_of(first, length))


def filled(order, half_life=0.0, tick=0):
    queue = ActionQueue(half_life)
    for first in order:
        queue.add(chunk(first), tick)
    return queue


@examples(300)
@given(firsts, st.data(), st.sampled_from([0.0, 0.1, 2.0]))
def test_the_order_of_arrival_and_repetitions_change_no_action(order, data, half_life):
    other = data.draw(st.permutations(order + order[:3]))
    one, two = filled(order, half_life), filled(other, half_life)
    for tick in range(70):
        a, b = one.action(tick), two.action(tick)
        assert (a is None) == (b is None)
        if a is not None:
            assert np.array_equal(a.values, b.values) and a.observed == b.observed
            # The second number of each action is the tick at which the action is executed.
            np.testing.assert_allclose(a.values[1], tick)


@examples(300)
@given(firsts, st.integers(0, 60))
def test_the_latest_observation_counts(order, tick):
    covering = [first for first in order if first <= tick < first + 20]
    found = filled(order).action(tick)
    assert (found is None) == (not covering)
    if covering:
        assert found.values.tolist() == [max(covering), tick]


def test_an_observation_older_by_the_half_life_counts_half():
    queue = filled([0, 3], half_life=0.1)
    assert queue.action(2).values.tolist() == [0, 2]  # tick 2 has an action only in the first chunk
    np.testing.assert_allclose(queue.action(5).values, [3 * 2 / 3, 5])
    np.testing.assert_allclose(queue.action(5).observed, 0.1 * 2 / 3)


def test_late_and_repeated_chunks_are_told_from_others():
    queue = ActionQueue()
    assert queue.add(chunk(0), 0) == TAKEN and queue.add(chunk(0), 5) == REPEATED
    assert queue.add(chunk(1), 21) == LATE and queue.add(chunk(1), 20) == TAKEN


@examples(200)
@given(firsts, st.integers(0, 60))
def test_cover_ends_at_the_first_tick_without_an_action(order, tick):
    queue = filled(order)
    covered = queue.covered(tick)
    assert all(queue.action(k) is not None for k in range(tick, tick + covered))
    assert queue.action(tick + covered) is None
    planned = queue.planned(tick, 7)
    assert (0 if planned is None else len(planned)) == min(7, covered)


def test_what_has_ended_is_forgotten_and_the_queue_is_bounded():
    queue = filled(range(3 * MOST))
    assert queue.action(5) is None and queue.action(3 * MOST + 5) is not None
    queue.forget(10 * MOST)
    assert queue.latest is None and queue.covered(0) == 0


@examples(300)
@given(firsts, st.integers(0, 60), st.sampled_from([0.0, 0.3]))
def test_forgetting_changes_no_action_that_is_still_to_come(order, tick, half_life):
    queue, whole = filled(order, half_life), filled(order, half_life)
    queue.forget(tick)
    for k in range(tick, 70):
        got, want = queue.action(k), whole.action(k)
        assert (got is None) == (want is None)
        assert got is None or np.array_equal(got.values, want.values)
    assert queue.covered(tick) == whole.covered(tick)
