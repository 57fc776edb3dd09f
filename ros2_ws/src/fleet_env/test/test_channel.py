"""The shared radio channel gives equal shares of air time, and keeps the order of items.

It is never faster than the links.
"""

import math

import numpy as np
import pytest
from fleet_env.links.bucket import TokenBucket
from fleet_env.links.channel import Channel
from fleet_env.links.trace import LinkTrace
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import traces

BYTE = 8e-6
NAMES = ('a', 'b', 'c')
fleets = st.lists(traces(), min_size=1, max_size=3).map(
    lambda found: dict(zip(NAMES, found, strict=False)))
# (seconds since the previous offer, robot, uplink, bytes)
offers = st.lists(st.tuples(st.floats(0, 2), st.sampled_from(NAMES), st.booleans(),
                            st.floats(1, 2e5)), min_size=1, max_size=20)
modes = st.booleans()


def arrivals_of(fleet, gaps):
    """Return (time, robot, uplink, bytes) of each offer; 'a' replaces robots not in ``fleet``."""
    now, out = 0.0, []
    for gap, robot, uplink, nbytes in gaps:
        now += gap
        out.append((now, robot if robot in fleet else 'a', uplink, nbytes))
    return out


def play(fleet, arrivals, shared=True, until=1e3):
    """Offer ``arrivals`` to a channel; return (time, robot, uplink, index) as each item leaves."""
    channel, out = Channel(fleet, shared), []

    def drain(limit):
        while channel.deadline <= limit:
            now = channel.deadline
            out.extend((now, *left) for left in channel.pop(now))
    for index, (now, robot, uplink, nbytes) in enumerate(arrivals):
        drain(now)
        assert channel.offer(robot, uplink, nbytes, index, now)
    drain(until)
    return out


def naive(fleet, arrivals, shared, until):
    """Return the result of `play`, computed in a simple way.

    One step of the computation lasts until the next change: a change of a rate, an offer or a
    departure. During a step all rates are constant.
    """
    queues = {(robot, uplink): [] for robot in fleet for uplink in (True, False)}
    edges = sorted({float(t) + n * trace.period for trace in fleet.values() for t in trace.times
                    for n in range(int(until / trace.period) + 1)} | {a[0] for a in arrivals})
    out, now, coming = [], 0.0, [(*a, i) for i, a in enumerate(arrivals)]
    for edge in [*(edge for edge in edges if edge < until), until]:
        while True:
            middle = (now + edge) / 2
            live = {flow: float(fleet[flow[0]].rate_at(middle)) for flow, queue in queues.items()
                    if queue and fleet[flow[0]].rate_at(middle) > 0}
            rates = {flow: rate / sum(shared or other[0] == flow[0] for other in live)
                     for flow, rate in live.items()}
            steps = {flow: queues[flow][0][0] / rate for flow, rate in rates.items()}
            step = min([edge - now, *steps.values()])
            for flow, rate in rates.items():
                queues[flow][0][0] -= rate * step
            now += step
            gone = [flow for flow, needed in steps.items() if needed <= step]
            out += [(now, *flow, queues[flow].pop(0)[1]) for flow in gone]
            if not gone:
                break
        while coming and coming[0][0] <= edge:
            _, robot, uplink, nbytes, index = coming.pop(0)
            queues[robot, uplink].append([nbytes * BYTE, index])
        now = edge
    return out


@given(fleets, offers, modes)
def test_channel_agrees_with_a_naive_integration(fleet, gaps, shared):
    arrivals = arrivals_of(fleet, gaps)
    until = arrivals[-1][0] + 20
    found = {left[3]: left[0] for left in play(fleet, arrivals, shared, until)}
    expected = {left[3]: left[0] for left in naive(fleet, arrivals, shared, until)}
    # Rounding decides whether an item that leaves at the time `until` is in a result.
    for index in set(found) ^ set(expected):
        assert {**found, **expected}[index] == pytest.approx(until, abs=1e-6)
    for index in set(found) & set(expected):
        assert found[index] == pytest.approx(expected[index], rel=1e-6, abs=1e-6)


@given(traces(), st.lists(st.tuples(st.floats(0, 3), st.integers(1, 200_000)), min_size=1,
                          max_size=30), modes)
def test_one_flow_agrees_with_the_token_bucket(trace, gaps, shared):
    bucket, arrivals, now, expected = TokenBucket(trace), [], 0.0, []
    for gap, nbytes in gaps:
        now += gap
        arrivals.append((now, 'a', True, nbytes))
        expected.append(bucket.offer(nbytes, now))
    out = play({'a': trace}, arrivals, shared, until=1e9 if trace.mean else 1e3)
    assert [left[3] for left in out] == [i for i, t in enumerate(expected) if t < math.inf]
    assert [left[0] for left in out] == pytest.approx(expected[:len(out)], rel=1e-7, abs=1e-6)


@given(fleets, offers, modes)
def test_no_flow_carries_more_than_its_link_and_all_no_more_than_the_air(fleet, gaps, shared):
    arrivals = arrivals_of(fleet, gaps)
    out = play(fleet, arrivals, shared)
    for robot, trace in fleet.items():
        for uplink in (True, False):
            left = [(t, arrivals[i][3] * BYTE) for t, r, u, i in out if (r, u) == (robot, uplink)]
            for i, (begin, first) in enumerate(left):
                for j in range(i, len(left)):
                    moved = sum(mbit for _, mbit in left[i:j + 1])
                    allowed = trace.carried(left[j][0]) - trace.carried(begin) + first
                    assert moved <= allowed + 1e-6 * max(1, moved)
    if shared:  # all flows together carry at most what the fastest link would carry alone
        best = max(trace.rates.max() for trace in fleet.values())
        for end in np.arange(0, 10, .5):
            moved = sum(arrivals[i][3] * BYTE for t, _, _, i in out if t <= end)
            assert moved <= best * end + 1e-6


@given(fleets, offers, modes)
def test_every_flow_keeps_its_order_and_loses_nothing(fleet, gaps, shared):
    arrivals = arrivals_of(fleet, gaps)
    until = 1e9 if all(trace.mean for trace in fleet.values()) else 1e3
    out = play(fleet, arrivals, shared, until)
    total = 2 * len(fleet) * sum(a[3] for a in arrivals) * BYTE
    assert [left[0] for left in out] == sorted(left[0] for left in out)
    for robot, trace in fleet.items():
        for uplink in (True, False):
            came = [i for i, a in enumerate(arrivals) if a[1:3] == (robot, uplink)]
            left = [i for _, r, u, i in out if (r, u) == (robot, uplink)]
            assert left == came[:len(left)]
            if not trace.mean:
                assert not left
            elif arrivals[-1][0] + total / trace.mean + 2 * trace.period < until:
                assert left == came
    assert all(t >= arrivals[i][0] for t, _, _, i in out)


@given(st.floats(.1, 300), offers)
def test_the_air_is_never_idle_with_work(rate, gaps):
    """If all links have the same rate, the last item leaves as if all items were in one queue."""
    fleet = {name: LinkTrace([0], [rate]) for name in NAMES}
    arrivals = arrivals_of(fleet, gaps)
    free = 0.0
    for now, _, _, nbytes in arrivals:
        free = max(free, now) + nbytes * BYTE / rate
    assert play(fleet, arrivals, until=1e9)[-1][0] == pytest.approx(free, rel=1e-6)


@given(traces(), st.integers(2, 6), st.floats(1, 1e5))
def test_equal_links_get_equal_shares(trace, robots, nbytes):
    fleet = {f'r{i}': trace for i in range(robots)}
    out = play(fleet, [(0.0, robot, i % 2 == 0, nbytes) for i, robot in enumerate(fleet)], until=1e9
               if trace.mean else 1e3)
    expected = trace.time_to_carry(robots * nbytes * BYTE)
    assert [left[0] for left in out] == pytest.approx(
        [expected] * robots if trace.mean else [], rel=1e-6, abs=1e-6)


@given(fleets, offers)
def test_robots_with_channels_of_their_own_do_not_see_each_other(fleet, gaps):
    arrivals = arrivals_of(fleet, gaps)
    together = play(fleet, arrivals, shared=False)
    for robot, trace in fleet.items():
        alone = play({robot: trace}, [a for a in arrivals if a[1] == robot], shared=False)
        assert [left[:3] for left in together if left[1] == robot] == [left[:3] for left in alone]


@given(fleets, offers, modes)
def test_equal_offers_give_equal_departures_bit_for_bit(fleet, gaps, shared):
    arrivals = arrivals_of(fleet, gaps)
    assert play(fleet, arrivals, shared) == play(fleet, arrivals, shared)


@given(fleets, offers, modes)
def test_calling_pop_more_often_changes_nothing(fleet, gaps, shared):
    arrivals = arrivals_of(fleet, gaps)
    channel, out = Channel(fleet, shared), []
    for index, (now, robot, uplink, nbytes) in enumerate(arrivals):
        channel.offer(robot, uplink, nbytes, index, now)  # no call of `pop` between the offers
    out = [item for _, _, item in channel.pop(1e3)]
    assert out == [left[3] for left in play(fleet, arrivals, shared)]


def test_a_dead_link_takes_no_air_and_comes_back():
    fleet = {'a': LinkTrace([0, 2], [0, 8], period=100), 'b': LinkTrace([0], [8])}
    out = play(fleet, [(0.0, 'a', True, 1e6), (0.0, 'b', True, 1e6), (0.0, 'b', True, 2e6)])
    # For the first 2 s, only b sends: its first item and half of its second item. From 2 s
    # on, both share the air. At 4 s the items of a and b have left.
    assert [(round(t, 9), robot, i) for t, robot, _, i in out] == [
        (1, 'b', 1), (4, 'a', 0), (4, 'b', 2)]


def test_a_link_that_is_dead_for_ever_holds_nobody_up():
    channel = Channel({'a': LinkTrace([0, 1], [0, 0]), 'b': LinkTrace([0], [8])})
    channel.offer('a', True, 1, 'never', 0)
    assert channel.deadline == math.inf and channel.pop(1e6) == []
    channel.offer('b', False, 1e6, 'soon', 1e6)
    assert channel.deadline == pytest.approx(1e6 + 1)
    assert channel.pop(math.inf) == [('b', False, 'soon')]
    assert channel.backlog_bytes('a', True) == 1


def test_both_directions_of_a_robot_share_its_air():
    for shared in (True, False):
        out = play({'a': LinkTrace([0], [8])}, [(0.0, 'a', True, 1e6), (0.5, 'a', False, 1e5)],
                   shared)
        assert [(left[2], round(left[0], 9)) for left in out] == [(False, .7), (True, 1.1)]


def test_a_full_queue_drops():
    channel = Channel({'a': LinkTrace([0], [8])}, max_items=2)
    assert [channel.offer('a', True, nbytes, nbytes, 0) for nbytes in (1e6, 1, 2)] == [1, 1, 0]
    assert channel.offer('a', False, 1, 3, 0)
    assert channel.pop(1.1) == [('a', False, 3), ('a', True, 1e6), ('a', True, 1)]
    assert channel.offer('a', True, 4, 4, 1.1)
    assert channel.pop(2) == [('a', True, 4)]


def test_rates_and_times_count_from_the_start():
    channel = Channel({'a': LinkTrace([0, 1], [0, 8], period=2)}, start=50)
    assert channel.rate_at('a', 50.5) == 0 and channel.rate_at('a', 51.5) == 8
    channel.offer('a', True, 1_000_000, 'x', 0)
    assert channel.deadline == pytest.approx(52)


def test_a_departure_beyond_very_many_samples_is_approached_in_steps():
    channel = Channel({'a': LinkTrace([0, 1], [1e-6, 2e-6], period=2)})
    channel.offer('a', True, 5000, 'x', 0)  # 0.04 Mbit at 1.5e-6 Mbit/s
    looks = 0
    while not (left := channel.pop(channel.deadline)):
        looks += 1
    assert left == [('a', True, 'x')] and looks == 2


def test_invalid_offers_are_refused():
    channel = Channel({'a': LinkTrace([0], [8])})
    with pytest.raises(ValueError, match='nbytes'):
        channel.offer('a', True, -1, None, 0)
    with pytest.raises(ValueError, match="no link to 'b'; there are a"):
        channel.offer('b', True, 1, None, 0)
