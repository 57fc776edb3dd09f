"""Statuses are as rare as a slow link needs, and as frequent as the heartbeat limit needs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rog_ros.heartbeat import EARLY, OFTEN, SHARE, is_due


@given(st.floats(0, 10), st.floats(1, 1e4), st.floats(1, 1e9), st.floats(0.1, 60))
def test_statuses_take_a_twentieth_of_the_link_and_three_fit_into_the_limit(since, size, rate,
                                                                           limit):
    due = is_due(since, size, rate, limit)
    if since >= limit / OFTEN:
        assert due
    elif since + EARLY < limit / OFTEN:
        assert due == (since + EARLY >= size / (SHARE * rate)) \
            or since + EARLY == pytest.approx(size / (SHARE * rate))


@pytest.mark.parametrize(('mbit', 'pause'), [(20, 0.0036), (2, 0.036), (0.1, 0.72), (0.02, 1.0)])
def test_on_a_fast_link_statuses_are_as_frequent_as_ever(mbit, pause):
    assert is_due(pause, 450, mbit * 125e3, 3.0)
    assert not is_due(pause - EARLY - 1e-3, 450, mbit * 125e3, 3.0)
