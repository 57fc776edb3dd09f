"""Statuses are as rare as a slow link needs, and heartbeats as frequent as their limit needs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rog_ros.heartbeat import EARLY, OFTEN, RARELY, SHARE, beats_after, is_due


@given(st.floats(0, 10), st.floats(1, 1e4), st.floats(1, 1e9))
def test_statuses_take_a_twentieth_of_the_link_but_never_stop(since, size, rate):
    due = is_due(since, size, rate)
    if since >= RARELY:
        assert due
    elif since + EARLY < RARELY:
        assert due == (since + EARLY >= size / (SHARE * rate)) \
            or since + EARLY == pytest.approx(size / (SHARE * rate))


@pytest.mark.parametrize(('mbit', 'pause'), [(20, 0.0036), (2, 0.036), (0.1, 0.72), (0.02, 3.6),
                                             (0.002, RARELY)])
def test_on_a_fast_link_statuses_are_as_frequent_as_ever(mbit, pause):
    assert is_due(pause, 450, mbit * 125e3)
    assert not is_due(pause - EARLY - 1e-3, 450, mbit * 125e3)


@given(st.floats(0.1, 60))
def test_three_messages_fit_into_the_heartbeat_limit(limit):
    assert beats_after(limit / OFTEN, limit)
    assert not beats_after(limit / OFTEN - 2 * EARLY, limit)
