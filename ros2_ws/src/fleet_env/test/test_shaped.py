"""The emulated link keeps the order of messages and the rate of its trace.

A real link is not changed.
"""

import math

import pytest
from fleet_env.emulated.shaped import ShapedLink
from fleet_env.links.trace import LinkTrace
from fleet_env.settings.fleet import LinkConfig
from hypothesis import given
from hypothesis import strategies as st

# 1 MB in the first second, nothing in the second, 0.5 MB in the third
TRACE = LinkTrace([0.0, 1.0, 2.0], [8.0, 0.0, 4.0])


def drain(link, until=1e9):
    """Release messages until the time ``until``; return the times of release."""
    while link.deadline <= until:
        link.release(link.deadline)


def test_a_real_link_publishes_at_once_and_has_no_rate():
    link, out = ShapedLink.from_config(LinkConfig(emulate=False), 0.0), []
    link.send(10 ** 9, lambda: out.append(1), 0.0)
    assert out == [1] and math.isinf(link.deadline) and math.isnan(link.rate(0.0))


@given(st.lists(st.integers(0, 50_000), min_size=1, max_size=50), st.floats(0, 3))
def test_messages_leave_in_order_and_no_faster_than_the_rate(sizes, latency):
    link, out = ShapedLink(TRACE, latency), []
    now = link.start
    for number, size in enumerate(sizes):
        link.send(size, lambda number=number: out.append((number, link.deadline)), now)
    drain(link)
    assert [number for number, _ in out] == list(range(len(sizes)))


def test_a_message_takes_the_time_of_its_bytes_and_waits_while_the_link_is_dead():
    link, out = ShapedLink(TRACE), []
    start = link.start
    for _ in range(3):
        link.send(500_000, lambda: out.append(link.deadline), start)
    link.release(start + 0.49)
    assert not out
    assert link.deadline == pytest.approx(start + 0.5)
    link.release(start + 1.5)
    # the third message waits, because the link carries only two in the first second
    assert len(out) == 2
    assert link.deadline == pytest.approx(start + 3.0)
    link.release(link.deadline)
    assert len(out) == 3 and math.isinf(link.deadline)


def test_latency_is_added_to_what_the_link_takes():
    link, out = ShapedLink(TRACE, latency=0.2), []
    link.send(1000, lambda: out.append(1), link.start)
    assert link.deadline == pytest.approx(link.start + 0.2 + 0.001)


def test_what_may_be_lost_is_lost_on_a_dead_link_and_does_not_wait():
    link, out = ShapedLink(TRACE), []
    assert not link.is_dead(link.start + 0.5) and link.is_dead(link.start + 1.5)
    link.send(10, lambda: out.append('lost'), link.start + 1.5, lossy=True)
    assert math.isinf(link.deadline)
    link.send(10, lambda: out.append('late'), link.start + 1.5)
    drain(link, link.start + 3)
    assert out == ['late']


def test_a_link_that_is_held_is_unlimited_until_its_trace_begins():
    link, out = ShapedLink(TRACE), []
    link.hold()
    link.send(10 ** 9, lambda: out.append(1), 0.0, lossy=True)
    assert out == [1] and math.isnan(link.rate(0.0))
    link.begin(100.0)
    link.begin(200.0)  # a second call does not start the trace again
    assert link.rate(100.5) == 8.0 and link.is_dead(101.5) and link.rate(102.5) == 4.0
