"""Messages arrive whole, once and in order, whatever the link does with frames and answers."""

import heapq
import itertools
import math
import random

import pytest
from fleet_link.arrivals import WIRE
from fleet_link.errors import PeerError
from fleet_link.stream import (
    FRAME,
    HOLD,
    MOST_BYTES,
    WINDOW,
    Ack,
    Frame,
    Receiver,
    Sender,
    Stream,
)
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st

HEADERS = 200    # bytes of a packet on the air besides the data


class End:
    """One end, and what has come to it. `waiting`: messages that its owner has not taken yet."""

    def __init__(self, first):
        self.stream = Stream(1 << 30)
        self.sender, self.receiver = self.stream.sender, self.stream.receiver
        self.sender.next = self.sender._taken = self.receiver.next = first
        self.sender._limit = self.receiver.limit = first + WINDOW
        self.came, self.waiting, self.most, self.pings, self.frames, self.acks = [], [], 0, 0, 0, 0
        self.alarm = math.inf    # deadline for which the world will call last

    @property
    def quiet(self):
        """Whether nothing is left to send, to answer or to join."""
        sender, receiver = self.sender, self.receiver
        return sender.link.quiet and self.stream.deadline == math.inf and not (
            sender.busy or sender._unknown or sender.waiting or receiver._early or receiver._parts)


class World:
    """Two ends in virtual time, and a link that loses, repeats and reorders packets.

    `rate`: bytes/s, a function of time; `loss`, `twice`: shares of the packets. `queue`: number of
    messages that the owner of the second end lets wait; it takes one each `work` seconds. `first`:
    number of the first frame.
    """

    def __init__(self, rate=lambda now: 1e6, delay=0.02, loss=0.0, twice=0.0, jitter=0.0, seed=0,
                 queue=math.inf, work=0.0, first=0):
        self.ends = self.here, self.there = End(first), End(first)
        self.rate, self.delay, self.loss, self.twice, self.jitter = rate, delay, loss, twice, jitter
        self.queue, self.work, self.free = queue, work, 0.0
        self.chance = random.Random(seed)
        self.now, self.busy = 0.0, [0.0, 0.0]
        self.events, self.count = [], itertools.count()

    def later(self, at, call, *arguments):
        heapq.heappush(self.events, (at, next(self.count), call, arguments))

    def carry(self, way, packet):
        """Bring a packet over the link, to the second end (way 0) or to the first (way 1)."""
        rate = self.rate(self.now)
        if not rate or self.chance.random() < self.loss:
            return
        nbytes = HEADERS + (len(packet.data) if isinstance(packet, Frame) else 0)
        self.busy[way] = max(self.now, self.busy[way]) + nbytes / rate
        for _ in range(1 + (self.chance.random() < self.twice)):
            at = self.busy[way] + self.delay + self.chance.random() * self.jitter
            self.later(at, self.receive, 1 - way, packet)

    def receive(self, number, packet):
        end, clock = self.ends[number], self.now + number * 1e6   # their clocks differ
        if isinstance(packet, Ack):
            end.sender.on_ack(packet, clock)
            return
        end.waiting += end.stream.take(packet, clock)
        assert end.receiver.next <= end.receiver.limit <= end.receiver.next + WINDOW
        end.most = max(end.most, len(end.receiver._early) + len(end.waiting))
        if end is self.here:
            end.came, end.waiting = end.came + end.waiting, []
        elif end.waiting:
            self.free = max(self.free, self.now)
            self.later(self.free, self.execute)

    def execute(self):
        there = self.there
        if there.waiting and self.now >= self.free:
            there.came.append(there.waiting.pop(0))
            self.free = self.now + self.work
            if len(there.waiting) == self.queue:
                there.receiver.due = self.now
            self.later(self.free, self.execute)

    def transmit(self):
        for number, end in enumerate(self.ends):
            clock = self.now + number * 1e6
            end.stream.more = number == 0 or len(end.waiting) <= self.queue
            for packet in end.stream.poll(clock):
                frame = isinstance(packet, Frame)
                end.frames += frame
                end.acks += not frame
                end.pings += frame and not packet.data and not packet.last
                self.carry(number, packet)
            assert end.sender.next <= end.sender._limit
            assert end.sender.link.in_flight <= MOST_BYTES + 2 * FRAME
            assert end.stream.deadline > clock
            if end.stream.deadline not in (math.inf, end.alarm):
                end.alarm = end.stream.deadline
                self.later(end.alarm - number * 1e6 + 1e-9, lambda: None)

    def run(self, seconds=math.inf):
        """Run for a time, or until nothing happens."""
        end = self.now + seconds
        self.transmit()
        while self.events and self.events[0][0] <= end:
            self.now, _, call, arguments = heapq.heappop(self.events)
            call(*arguments)
            self.transmit()
        self.now = self.now if end == math.inf else end


def made(seed, sizes):
    chance = random.Random(seed)
    return [chance.randbytes(size) for size in sizes]


def test_messages_of_any_size_arrive_and_nothing_is_sent_twice_on_a_good_link():
    messages = made(1, [0, 1, FRAME - 1, FRAME, FRAME + 1, 100 * FRAME,
                        *(random.Random(2).randrange(3 * FRAME) for _ in range(20))])
    world = World(lambda now: 100e6)
    for message in messages:
        world.here.sender.offer(message)
    world.run()
    assert world.there.came == messages and world.here.quiet and world.there.quiet
    assert world.here.frames == world.here.sender.next
    assert world.here.sender.bytes == world.there.receiver.bytes
    assert world.there.acks <= world.here.frames / 2 + 5


@examples(60)
@given(st.data())
def test_every_message_arrives_once_and_in_order_whatever_the_link_does(data):
    draw = data.draw
    rate = 10 ** draw(st.floats(3.5, 8))
    begin, length = draw(st.floats(0, 3)), draw(st.floats(0, 9))
    world = World(lambda now: 0 if begin <= now < begin + length else rate,
                  draw(st.floats(0.0001, 0.4)), draw(st.floats(0, 0.3)), draw(st.floats(0, 0.2)),
                  draw(st.floats(0, 0.1)), draw(st.integers(0, 1 << 32)),
                  draw(st.sampled_from([math.inf, 0, 3, 20])), draw(st.sampled_from([0, 0, 0.01])),
                  draw(st.sampled_from([0, WIRE - 3])))
    largest = int(min(rate, 1e6))
    messages = made(0, draw(st.lists(st.one_of(st.integers(0, 100), st.integers(0, largest)),
                                     max_size=20)))
    offered = [], []
    for message in messages:
        way = draw(st.sampled_from([0, 0, 1]))
        world.ends[way].sender.offer(message)
        offered[way].append(message)
        world.run(draw(st.sampled_from([0, 0, 0.01, 1])))
    world.run(3000)
    assert (world.there.came, world.here.came) == offered
    assert world.here.quiet and world.there.quiet
    assert world.there.most <= WINDOW + min(world.queue, len(messages)) + 1


def test_a_receiver_whose_owner_is_slow_stops_the_sender_and_lets_it_go_on():
    world = World(queue=10, work=0.05)
    messages = made(3, [20] * 1000)
    for message in messages:
        world.here.sender.offer(message)
    world.run(5)
    assert len(world.there.waiting) > 10 and world.there.most <= WINDOW + 11
    assert world.here.sender.next < 1000
    world.run()
    assert world.there.came == messages


def test_a_lost_answer_with_a_higher_limit_does_not_stop_the_sender():
    world = World(queue=0)
    here, there = world.here, world.there
    for message in made(4, [20] * (WINDOW + 20)):
        here.sender.offer(message)
    world.work = math.inf   # the owner takes the first message only
    world.run(5)
    sent, pings = here.sender.next, here.pings
    assert sent < WINDOW + 20 and here.sender.link.quiet and pings > 0
    there.waiting.clear()   # and now all others, of which no acknowledgement tells
    world.run(3 * here.sender.link.timeout)
    assert here.sender.next == WINDOW + 20
    assert here.pings <= pings + 3


def test_after_an_outage_a_stream_goes_on_with_the_next_ping():
    world = World(lambda now: 0 if 1 <= now < 9 else 12500)
    message, = made(5, [40000])
    world.here.sender.offer(message)
    world.run(9.01)
    assert not world.there.came
    world.carry(0, world.here.sender.ping(world.now))
    world.run(40000 / 12500 + 1)
    assert world.there.came == [message]


def test_a_frame_takes_no_longer_than_a_short_time_of_the_link():
    world = World(lambda now: 12500)   # 0.1 Mbit/s
    message, = made(6, [100000])
    world.here.sender.offer(message)
    sizes = []
    carry = world.carry
    world.carry = lambda way, packet: (
        sizes.append(len(getattr(packet, 'data', ''))), carry(way, packet))
    world.run()
    assert world.there.came == [message] and max(sizes) <= 1300


def test_short_messages_share_acknowledgements_which_say_how_long_they_were_held():
    sender, receiver = Sender(), Receiver(100)
    for k in range(5):
        sender.offer(b'abc')
        frame, = sender.poll(k / 1000)
        assert receiver.take(frame, 7.0 + k / 1000) == [b'abc'] and receiver.due == 7.0 + HOLD
    ack = receiver.ack(7.0 + HOLD)
    assert ack.held == pytest.approx(HOLD - 0.004) and receiver.due == math.inf
    sender.on_ack(ack, 0.004 + 0.25 + ack.held)   # a round trip without this time
    assert sender.link.round_trip == pytest.approx(0.25) and sender.link.quiet


def test_a_frame_out_of_order_or_of_a_long_message_is_answered_soon():
    receiver = Receiver(100)
    receiver.take(Frame(0, 0, False, b'a'), 0.0)
    assert receiver.due == HOLD
    receiver.take(Frame(1, 1, False, b'b'), 0.001)
    assert receiver.due == 0.001
    receiver.ack(0.001)
    receiver.take(Frame(3, 3, True, b'd'), 0.002)
    assert receiver.due == 0.002


def test_a_ping_is_answered_at_once_and_is_no_message():
    sender, receiver = Sender(), Receiver(100)
    ping = sender.ping(0.0)
    assert receiver.take(ping, 5.0) == [] and receiver.next == 0 and receiver.due == 5.0
    sender.on_ack(receiver.ack(5.0), 0.25)
    assert sender.link.round_trip == 0.25 and sender.link.quiet
    sender.offer(b'abc')
    assert [receiver.take(frame, 5.0) for frame in sender.poll(0.25)] == [[b'abc']]


def test_acknowledged_bytes_are_released():
    world = World()
    message = bytearray(10 * FRAME)
    world.here.sender.offer(message)
    world.run()
    message.append(0)   # impossible while a part of it is held


@pytest.mark.parametrize(('frame', 'why'), [
    (Frame(0, 0, True, bytes(FRAME + 1)), 'a frame must have'),
    (Frame(0, WINDOW, True, b'a'), 'it sent frame 256, but was allowed only frames below 256')])
def test_a_frame_that_no_sender_sends_is_refused_and_changes_nothing(frame, why):
    receiver = Receiver(1 << 20)
    before = receiver.ack(0.0)
    with pytest.raises(PeerError, match=why):
        receiver.take(frame, 0.0)
    assert receiver.ack(0.0) == before and not receiver._early


def test_a_message_beyond_the_limit_is_refused():
    receiver = Receiver(100)
    receiver.take(Frame(0, 0, False, bytes(60)), 0.0)
    with pytest.raises(PeerError, match='a message must have at most'):
        receiver.take(Frame(1, 1, False, bytes(60)), 0.0)


@pytest.mark.parametrize('wrong', [
    {'packet': 3}, {'number': 4}, {'number': WIRE - 1}, {'number': 2, 'limit': 1},
    {'limit': WINDOW + 1}, {'arrived': math.nan}, {'arrived': math.inf}, {'held': -1.0},
    {'held': math.nan}])
def test_an_acknowledgement_that_cannot_be_true_is_refused_and_changes_nothing(wrong):
    sender = Sender()
    for message in (b'a', b'b', b'c'):
        sender.offer(message)
    assert len(sender.poll(0.0)) == 3
    fields = {'packet': 0, 'mask': 0, 'arrived': 0.0, 'held': 0.0, 'number': 0, 'limit': WINDOW}
    with pytest.raises(PeerError):
        sender.on_ack(Ack(**fields | wrong), 1.0)
    assert len(sender._unknown) == len(sender.link.items) == 3
    assert sender._limit == WINDOW and sender.link.delivered == 0
