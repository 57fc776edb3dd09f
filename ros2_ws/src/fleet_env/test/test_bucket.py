"""The emulated link keeps the order of packets, and is never faster than its trace.

It is never idle while bytes wait.
"""

import math

import pytest
from fleet_env.links.bucket import TokenBucket
from fleet_env.links.trace import LinkTrace
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import traces

BYTE = 8e-6

offers = st.lists(st.tuples(st.floats(0, 3), st.integers(0, 200_000)), min_size=1, max_size=30)


def play(trace, arrivals, start=0.0):
    bucket, now, out = TokenBucket(trace, start), start, []
    for gap, nbytes in arrivals:
        now += gap
        out.append((now, nbytes, bucket.offer(nbytes, now)))
    return bucket, out


@given(traces(), offers)
def test_no_interval_carries_more_than_the_rate_allows_and_one_packet(trace, arrivals):
    _, out = play(trace, arrivals)
    done = [(left, nbytes) for _, nbytes, left in out if math.isfinite(left)]
    for i, (begin, first) in enumerate(done):
        for j in range(i, len(done)):
            moved = sum(nbytes for _, nbytes in done[i:j + 1]) * BYTE
            allowed = trace.carried(done[j][0]) - trace.carried(begin) + first * BYTE
            assert moved <= allowed + 1e-6 * max(1, moved)


@given(traces(), offers)
def test_order_is_kept_and_nothing_leaves_before_it_came(trace, arrivals):
    _, out = play(trace, arrivals, start=100.0)
    assert all(left >= now for now, _, left in out)
    assert [left for *_, left in out] == sorted(left for *_, left in out)


@given(traces(), offers)
def test_bucket_is_never_idle_while_a_packet_waits(trace, arrivals):
    _, out = play(trace, arrivals)
    free = 0.0
    for now, nbytes, left in out:
        if nbytes and math.isfinite(left):
            begin = max(now, free)
            assert trace.carried(left) - trace.carried(begin) == pytest.approx(
                nbytes * BYTE, rel=1e-6, abs=1e-7)
            free = left


@given(traces(), offers, st.floats(0, 100))
def test_backlog_counts_the_bytes_that_still_wait(trace, arrivals, later):
    bucket, out = play(trace, arrivals)
    now = out[-1][0]
    total = sum(nbytes for _, nbytes, _ in out)
    assert -1e-6 <= bucket.backlog_bytes(now) <= total + 1
    if math.isfinite(left := out[-1][2]):
        assert bucket.backlog_bytes(left) == 0
    else:
        assert bucket.backlog_bytes(now + later) == pytest.approx(total)


def test_a_packet_waits_for_a_dead_link_to_come_back():
    bucket = TokenBucket(LinkTrace([0, 1], [0, 8], period=2), start=50)
    assert bucket.offer(1_000_000, 50) == pytest.approx(52)
    assert bucket.offer(500_000, 50) == pytest.approx(53.5)
    assert bucket.backlog_bytes(51.5) == pytest.approx(1_000_000)
    assert bucket.rate_at(50.5) == 0 and bucket.rate_at(51.5) == 8


def test_a_link_that_is_dead_for_ever_lets_nothing_through():
    bucket = TokenBucket(LinkTrace([0], [0]))
    assert bucket.offer(0, 1) == 1
    assert bucket.offer(10, 1) == math.inf
    assert bucket.offer(10, 9) == math.inf
    assert bucket.backlog_bytes(1e9) == pytest.approx(20)


def test_idle_time_is_not_saved_up():
    bucket = TokenBucket(LinkTrace([0], [8]))
    assert bucket.offer(1_000_000, 100) == pytest.approx(101)


def test_dropped_packets_do_not_delay_later_ones():
    bucket = TokenBucket(LinkTrace([0], [8]))
    bucket.offer(100_000_000, 0)
    bucket.clear(1)
    assert bucket.backlog_bytes(1) == 0
    assert bucket.offer(1_000_000, 1) == pytest.approx(2)


def test_an_earlier_time_counts_as_the_latest():
    bucket = TokenBucket(LinkTrace([0], [8]))
    bucket.offer(1, 10)
    assert bucket.offer(1_000_000, 5) == pytest.approx(11, abs=1e-4)


def test_bucket_stays_exact_after_a_day():
    bucket = TokenBucket(LinkTrace([0, .1], [100, 0], period=.2))
    day = 86_400.0
    assert bucket.offer(12_500, day) == pytest.approx(day + .001, abs=1e-6)


def test_negative_sizes_are_refused():
    with pytest.raises(ValueError, match='nbytes'):
        TokenBucket(LinkTrace([0], [8])).offer(-1, 0)
