"""The link in virtual time: all of it is used, little is sent in vain, it always goes on."""

import math
import random
from pathlib import Path

import numpy as np
import pytest
from air import HEADERS, Direction, World, fixed
from fleet_link.arrivals import HISTORY, MASK_BITS, WIRE, Ack, Arrivals, expanded
from fleet_link.errors import PeerError
from fleet_link.estimate import LONGEST_OUTAGE
from fleet_link.link import Link
from hypothesis import given, settings
from hypothesis import strategies as st

TRACES = Path(__file__).parents[5] / 'shared/data/traces'
PACKET = 1396 * 8e-6  # Mbit on the air


def always(item):
    return True


def world(mbit, *, back=None, delay=0.02, loss=0.0, **options):
    """Return a world with constant rates in Mbit/s; ``back``: of the way back, like ``mbit``."""
    return World(Direction(fixed(mbit), lambda now: delay, loss),
                 Direction(fixed(back or mbit), lambda now: delay, loss), **options)


# seconds of running -> the share is of a link that is known already
@pytest.mark.parametrize(('mbit', 'delay', 'seconds', 'least'), [
    (0.02, 0.02, 200, 0.98), (0.05, 0.02, 200, 0.98), (0.1, 0.001, 100, 0.98),
    (0.2, 0.3, 100, 0.97), (2, 0.02, 40, 0.97), (2, 0.1, 40, 0.95), (20, 0.02, 10, 0.95),
    (200, 0.001, 3, 0.95), (0.03, 0.6, 200, 0.88), (20, 0.6, 30, 0.7)])
def test_the_whole_link_is_used_and_nothing_sent_twice(mbit, delay, seconds, least):
    there = world(mbit, delay=delay)
    there.run(seconds)
    assert there.share(mbit, seconds) > least
    assert there.twice <= 2  # a round trip of more than a second is not known before the first
    queue = np.array(there.up.waits)
    assert queue.mean() < max(0.1, 2 * PACKET / mbit) + 0.5 * delay


@pytest.mark.parametrize(('mbit', 'loss', 'least'), [
    (0.1, 0.05, 0.9), (0.1, 0.2, 0.65), (2, 0.05, 0.9), (20, 0.05, 0.9), (20, 0.2, 0.7)])
def test_loss_is_not_taken_for_a_slow_link(mbit, loss, least):
    there = World(Direction(fixed(mbit), loss=loss), Direction(fixed(mbit)))
    there.run(max(10, 20 / mbit))
    assert there.share(mbit, there.now) > least
    assert there.twice <= 0.01 * len(there.got)


@pytest.mark.parametrize('mbit', [0.03, 0.1, 2, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize('length', [1, 5, 25, 90, 120, 600])
@pytest.mark.parametrize('delay', [0.002, 0.2])
def test_after_any_outage_the_link_goes_on_within_two_seconds(mbit, length, delay):
    for seed in range(2):
        begin = 15 + 0.37 * seed
        dead = World(*(Direction(lambda now: 0.0 if begin <= now < begin + length else mbit * 1e6,
                                 lambda now: delay) for _ in range(2)), seed=seed)
        dead.run(begin + length + 5)
        back = min(t for t in dead.got.values() if t >= begin + length) - begin - length
        assert back < 2 + 2 * delay
        assert dead.link.again < 12 + length  # at most a probe for each other message of the peer


def test_without_a_word_of_the_peer_a_dead_link_is_tried_every_25_seconds():
    dead = World(Direction(lambda now: 0.0 if 5 <= now < 605 else 1e6), Direction(fixed(1)),
                 heartbeat=math.inf)
    dead.run(5)
    sent = dead.link.sent
    dead.run(605)
    assert 600 / LONGEST_OUTAGE <= dead.link.sent - sent < 600 / LONGEST_OUTAGE + 100
    dead.run(605 + LONGEST_OUTAGE)
    assert max(dead.got.values()) > 605


@pytest.mark.parametrize('delays', [(0.001, 0.6), (0.02, 0.3), (0.6, 0.001), (0.3, 0.05)])
@pytest.mark.parametrize('mbit', [0.1, 2, pytest.param(20, marks=pytest.mark.long)])
def test_a_delay_that_jumps_costs_little(delays, mbit):
    there = World(Direction(fixed(mbit), lambda now: delays[now > 20]), Direction(fixed(mbit)))
    there.run(100)
    after = sum(t > 50 for t in there.got.values()) * PACKET / (mbit * 50)
    assert after > 0.9
    # when the delay falls, packets overtake all that are in flight
    assert there.twice < 10 + 2 * mbit * max(delays) / PACKET


@pytest.mark.parametrize(('name', 'scale'), [
    ('rog_outdoors_record', 0.02), ('rog_outdoors_record', 0.2), ('lop_indoors', 0.1),
    ('lop_outdoors', 0.1), ('rog_outdoors_record', 1.0)])
def test_the_published_records_are_used_and_little_waits(name, scale):
    if not (TRACES / f'{name}.txt').exists():
        pytest.skip('the records are not here')
    times, mbit = np.loadtxt(TRACES / f'{name}.txt', unpack=True)

    def rate(now):
        return 1e6 * scale * mbit[np.searchsorted(times, now + times[0], side='right') - 1]

    there, seconds = World(Direction(rate), Direction(rate)), 60 if scale < 1 else 30
    there.run(seconds)
    carried = sum(rate(k / 10) / 10 for k in range(10 * seconds))
    assert len(there.got) * (there.size + HEADERS) * 8 > 0.95 * carried
    assert there.twice <= 0.005 * len(there.got)
    assert np.percentile(there.up.waits, 99) < 2


@settings(max_examples=30)
@given(st.data())
def test_everything_arrives_whatever_the_link_does(data):
    draw = data.draw
    mbit = 10 ** draw(st.floats(-1.7, 2.3))
    directions = [Direction(
        fixed(mbit * draw(st.sampled_from([1, 0.1, 10]))),
        (lambda low, high, period: lambda now: low if now % period < period / 2 else high)(
            draw(st.floats(0.001, 0.6)), draw(st.floats(0.001, 0.6)), draw(st.floats(0.5, 20))),
        draw(st.floats(0, 0.4)), draw(st.floats(0, 0.3)), draw(st.floats(0, 0.3)))
        for _ in range(2)]
    largest = min(20000, int(mbit * 0.1e6 / 8 * 5) - HEADERS)  # 5 s on the slowest of these links
    there = World(*directions, data=draw(st.integers(1, 200)), size=draw(st.integers(1, largest)),
                  seed=draw(st.integers(0, 2 ** 32)), skew=draw(st.floats(-1e9, 1e9)))
    there.run(2000 + 60 * there.data * (there.size + 1000) * 8e-6 / mbit)
    assert len(there.known) == len(there.got) == there.data
    link = there.link
    assert link.in_flight == sum(sent.nbytes for sent in link._flight.values())
    assert 0 < link.rate < math.inf and 0 <= link.trip.base < math.inf


@given(st.lists(st.integers(0, 400), max_size=60), st.integers(0, 2 * WIRE))
def test_an_acknowledgement_says_what_has_arrived(packets, first):
    inbox, known = Arrivals(), set()
    if first:
        inbox.note(first % WIRE)
    for packet in packets:
        mask = inbox.note((first + packet) % WIRE)
        known.add(packet)
        if packet > max(known) - HISTORY + MASK_BITS:
            said = {packet - 1 - k for k in range(MASK_BITS) if mask >> k & 1}
            zero = {0} if first else set()
            assert said == {p for p in known | zero if packet - MASK_BITS <= p < packet}


@given(st.integers(0, 10 * WIRE), st.integers(-WIRE // 2 + 1, WIRE // 2 - 1))
def test_a_number_on_the_wire_is_the_nearest(near, apart):
    assert expanded((near + apart) % WIRE, near) == near + apart


def test_numbers_go_on_beyond_those_of_the_wire():
    there = world(10, data=2000, first=WIRE - 1000)
    there.run(10)
    assert len(there.known) == 2000 and there.link.sent >= WIRE + 1000


@pytest.mark.parametrize('ack', [Ack(2, 0, 0.0), Ack(WIRE - 1, 1, 0.0), Ack(0, 0, math.nan),
                                 Ack(1, 0, math.inf)])
def test_an_acknowledgement_that_cannot_be_true_changes_nothing(ack):
    link = Link()
    link.send('a', 100, 0.0), link.send('b', 100, 0.0)
    before = link.deadline, link.in_flight, link.rate
    with pytest.raises(PeerError, match='below 2 and have a finite time'):
        link.on_ack(ack, 0.1)
    assert (link.deadline, link.in_flight, link.rate) == before
    assert link.on_ack(Ack(1, 1, 5.0), 0.1) == (['b', 'a'], [])


def test_two_packets_begin_and_a_time_out_allows_one_more():
    link = Link()
    for item in 'ab':
        assert link.room(1300)
        link.send(item, 1300, 0.0)
    assert not link.room(1300)
    assert link.deadline == 0.333
    assert link.poll(0.3, always) == [] and link.poll(0.333, always) == ['a']
    assert link.room(1300)
    assert link.send('a', 1300, 0.4) == 2
    assert not link.room(1300) and link.deadline == 0.4 + 2 * 0.333
    arrived, lost = link.on_ack(Ack(2, 0, 7.0), 0.42)  # the first two were sent long before it
    assert arrived == ['a'] and lost == ['a', 'b'] and link.quiet and link.deadline == math.inf
    assert link.on_ack(Ack(1, 0, 7.0), 0.43) == (['b'], [])  # it was not lost after all


def test_a_peer_that_speaks_is_tried_at_once_but_not_before_a_round_trip():
    link = Link()
    link.send('a', 1000, 0.0)
    link.on_ack(Ack(0, 0, 0.0), 0.1)
    link.send('b', 1000, 1.0)
    now = 1.0
    while now < 40:
        now = link.deadline
        assert link.poll(now, always) == ['b']
        link.send('b', 1000, now)
    assert link.deadline > now + 20
    link.on_heard(now + 5.0)
    assert link.deadline == now + 5.0
    link.poll(now + 5.0, always)
    link.send('b', 1000, now + 5.0)
    link.on_heard(now + 5.0)
    assert link.deadline == now + 5.0 + 2 * link.trip.smoothed


def test_what_is_forgotten_is_neither_in_flight_nor_sent_again():
    link = Link()
    link.send('a', 1000, 0.0), link.send('b', 1000, 0.0)
    link.forget()
    assert link.quiet and link.in_flight == 0 and link.deadline == math.inf
    assert link.poll(100.0, always) == []
    link.send('c', 1000, 100.0)
    assert link.on_ack(Ack(2, 0, 1.0), 100.1) == (['c'], [])
    assert link.on_ack(Ack(1, 0, 1.0), 100.2) == (['b'], [])


def test_what_comes_after_it_counted_as_lost_says_nothing_of_the_round_trip():
    """A packet that was held up for an outage of a minute must not make the time-out as long."""
    link = Link()
    for _ in range(4):
        link.on_ack(Ack(link.send('early', 1300, 1.0), 0, 1.02), 1.04)
    before, held = link.timeout, link.send('held up', 1300, 2.0)
    link.forget()       # the peer is new
    assert link.on_ack(Ack(held, 0, 70.0), 70.0) == (['held up'], []) and link.timeout == before


def test_only_what_is_gone_is_forgotten():
    link = Link()
    for item in 'abab':
        link.send(item, 1000, 0.0)
    link.forget(lambda item: item == 'a')
    assert link.items == ['b', 'b'] and link.in_flight == 2000 and link.deadline < math.inf
    assert link.poll(link.deadline, lambda item: item == 'a') == []
    assert link.quiet  # nothing is wanted any more


def test_without_a_train_the_rate_is_at_most_what_has_certainly_arrived():
    link, now = Link(), 0.0
    for _ in range(50):  # one small packet in each second, over a round trip of 0.4 s
        number = link.send(0, 400, now)
        link.on_ack(Ack(number, 0, now + 7.2), now + 0.4)
        now += 1.0
    assert not link.known and link.rate > 1e5  # not measured
    assert link.speed.careful == pytest.approx(1000, rel=0.01)


def test_a_receiver_that_reads_all_packets_at_once_does_not_look_like_a_fast_link():
    link = Link()
    now = 0.0
    last = link.send(0, 1250, now)
    for _ in range(300):  # 10 Mbit/s, always two in flight
        number = link.send(0, 1250, now)
        now += 0.001
        link.on_ack(Ack(last, 0, now), now)
        last = number
    numbers = [link.send(0, 1250, now) for _ in range(40)]
    for k, number in enumerate(numbers):  # 40 ms of air, then all within a millisecond
        link.on_ack(Ack(number, 0, now + 0.04 + k * 2e-5), now + 0.041)
    assert link.rate < 2.1 * 1.25e6


def test_random_numbers_of_a_test_are_its_own():
    first, second = (world(1, seed=3, loss=0.1) for _ in range(2))
    random.seed(5)
    first.run(5)
    second.run(5)
    assert first.got == second.got
