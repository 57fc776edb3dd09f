"""Messages arrive whole, once and in order, whatever the link does with frames and answers."""

import heapq
import itertools
import math
import random

import pytest
from fleet_link.arrivals import WIRE
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rrto_bridge.protocol.errors import RemoteError
from rrto_bridge.protocol.stream import FRAME, MOST_BYTES, WINDOW, Ack, Frame, Receiver, Sender

HEADERS = 200    # bytes of a packet on the air besides the data


class World:
    """A sender and a receiver in virtual time, and a link that loses, repeats and reorders.

    `rate`: bytes/s, a function of time; `loss`, `twice`: shares of the packets. `queue`: number of
    messages that the receiver's owner lets wait; it takes one each `work` seconds. `first`: number
    of the first frame.
    """

    def __init__(self, rate=lambda now: 1e6, delay=0.02, loss=0.0, twice=0.0, jitter=0.0, seed=0,
                 queue=math.inf, work=0.0, first=0):
        self.sender, self.receiver = Sender(), Receiver(1 << 30)
        self.sender.next = self.sender._taken = self.receiver.next = first
        self.sender._limit = self.receiver.limit = first + WINDOW
        self.rate, self.delay, self.loss, self.twice, self.jitter = rate, delay, loss, twice, jitter
        self.queue, self.work, self.waiting, self.free = queue, work, [], 0.0
        self.chance = random.Random(seed)
        self.now, self.busy = 0.0, [0.0, 0.0]
        self.events, self.count = [], itertools.count()
        self.came, self.frames, self.pings, self.most = [], 0, 0, 0

    def later(self, at, call, *arguments):
        heapq.heappush(self.events, (at, next(self.count), call, arguments))

    def carry(self, way, nbytes, call, *arguments):
        """Bring a packet over the link in direction `way`."""
        rate = self.rate(self.now)
        if not rate or self.chance.random() < self.loss:
            return
        self.busy[way] = max(self.now, self.busy[way]) + nbytes / rate
        for _ in range(1 + (self.chance.random() < self.twice)):
            at = self.busy[way] + self.delay + self.chance.random() * self.jitter
            self.later(at, call, *arguments)

    def transmit(self):
        for frame in self.sender.poll(self.now):
            self.frames += 1
            self.pings += not frame.data and not frame.last
            self.carry(0, len(frame.data) + HEADERS, self.on_frame, frame)
        assert self.sender.next <= self.sender._limit
        assert self.sender.link.in_flight <= MOST_BYTES + 2 * FRAME
        if self.sender.deadline < math.inf:
            self.later(self.sender.deadline, lambda: None)

    def on_frame(self, frame):
        self.waiting += self.receiver.take(frame, self.now + 1e6)   # its clock is another one
        assert self.receiver.next <= self.receiver.limit <= self.receiver.next + WINDOW
        self.most = max(self.most, len(self.receiver._early) + len(self.waiting))
        self.answer()
        if self.waiting:
            self.free = max(self.free, self.now)
            self.later(self.free, self.execute)

    def answer(self):
        more = len(self.waiting) <= self.queue
        self.carry(1, HEADERS, self.sender.on_ack, self.receiver.ack(more), None)

    def execute(self):
        if self.waiting and self.now >= self.free:
            self.came.append(self.waiting.pop(0))
            self.free = self.now + self.work
            if len(self.waiting) == self.queue:
                self.answer()
            self.later(self.free, self.execute)

    def run(self, seconds=math.inf):
        """Run for a time, or until nothing happens."""
        end = self.now + seconds
        self.transmit()
        while self.events and self.events[0][0] <= end:
            self.now, _, call, arguments = heapq.heappop(self.events)
            if call == self.sender.on_ack:
                arguments = arguments[0], self.now
            call(*arguments)
            self.transmit()
        self.now = self.now if end == math.inf else end

    def quiet(self):
        """Whether the sender has nothing left."""
        sender = self.sender
        return sender.link.quiet and not (sender._messages or sender._lost or sender._unknown)


def made(seed, sizes):
    chance = random.Random(seed)
    return [chance.randbytes(size) for size in sizes]


def test_messages_of_any_size_arrive_and_nothing_is_sent_twice_on_a_good_link():
    messages = made(1, [0, 1, FRAME - 1, FRAME, FRAME + 1, 100 * FRAME,
                        *(random.Random(2).randrange(3 * FRAME) for _ in range(20))])
    world = World(lambda now: 100e6)
    for message in messages:
        world.sender.offer(message)
    world.run()
    assert world.came == messages and world.quiet()
    assert world.frames == world.sender.next and world.sender.bytes == world.receiver.bytes


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
    for message in messages:
        world.sender.offer(message)
        world.run(draw(st.sampled_from([0, 0, 0.01, 1])))
    world.run(3000)
    assert world.came == messages and world.quiet()
    assert world.sender.waiting == 0 and world.sender.deadline == math.inf
    assert not world.receiver._early and not world.receiver._parts
    assert world.most <= WINDOW + min(world.queue, len(messages)) + 1


def test_a_receiver_whose_owner_is_slow_stops_the_sender_and_lets_it_go_on():
    world = World(queue=10, work=0.05)
    messages = made(3, [20] * 1000)
    for message in messages:
        world.sender.offer(message)
    world.run(5)
    assert len(world.waiting) > 10 and world.most <= WINDOW + 11
    assert world.sender.next < 1000
    world.run()
    assert world.came == messages


def test_a_lost_answer_with_a_higher_limit_does_not_stop_the_sender():
    world = World(queue=0)
    for message in made(4, [20] * (WINDOW + 2)):
        world.sender.offer(message)
    world.work = math.inf   # the owner takes the first message only
    world.run(5)
    assert world.sender.next == WINDOW + 1 and world.sender.link.quiet
    pings = world.pings
    assert pings > 0
    world.waiting.clear()   # and now all others, of which no acknowledgement tells
    world.run(3 * world.sender.link.timeout)
    assert world.sender.next == WINDOW + 2
    assert world.pings <= pings + 3


def test_after_an_outage_a_stream_goes_on_with_the_next_ping():
    world = World(lambda now: 0 if 1 <= now < 9 else 12500)
    message, = made(5, [40000])
    world.sender.offer(message)
    world.run(9.01)
    assert not world.came
    frame = world.sender.ping(world.now)
    world.carry(0, HEADERS, world.on_frame, frame)
    world.run(40000 / 12500 + 1)
    assert world.came == [message]


def test_a_frame_takes_no_longer_than_a_short_time_of_the_link():
    world = World(lambda now: 12500)   # 0.1 Mbit/s
    message, = made(6, [100000])
    world.sender.offer(message)
    sizes = []
    take = world.receiver.take
    world.receiver.take = lambda frame, now: (sizes.append(len(frame.data)), take(frame, now))[1]
    world.run()
    assert world.came == [message] and max(sizes) <= 1300


def test_a_ping_is_answered_and_is_no_message():
    sender, receiver = Sender(), Receiver(100)
    ping = sender.ping(0.0)
    assert receiver.take(ping, 5.0) == [] and receiver.next == 0
    sender.on_ack(receiver.ack(), 0.25)
    assert sender.link.round_trip == 0.25 and sender.link.quiet
    sender.offer(b'abc')
    assert [receiver.take(frame, 5.0) for frame in sender.poll(0.25)] == [[b'abc']]


def test_acknowledged_bytes_are_released():
    world = World()
    message = bytearray(10 * FRAME)
    world.sender.offer(message)
    world.run()
    message.append(0)   # impossible while a part of it is held


@pytest.mark.parametrize(('frame', 'why'), [
    (Frame(0, 0, True, bytes(FRAME + 1)), 'a frame must have'),
    (Frame(0, WINDOW, True, b'a'), 'it sent frame 256, but was allowed only frames below 256')])
def test_a_frame_that_no_sender_sends_is_refused_and_changes_nothing(frame, why):
    receiver = Receiver(1 << 20)
    before = receiver.ack()
    with pytest.raises(RemoteError, match=why):
        receiver.take(frame, 0.0)
    assert receiver.ack() == before and not receiver._early


def test_a_message_beyond_the_limit_is_refused():
    receiver = Receiver(100)
    receiver.take(Frame(0, 0, False, bytes(60)), 0.0)
    with pytest.raises(RemoteError, match='a message must have at most'):
        receiver.take(Frame(1, 1, False, bytes(60)), 0.0)


@pytest.mark.parametrize('wrong', [
    {'packet': 3}, {'number': 4}, {'number': WIRE - 1}, {'number': 2, 'limit': 1},
    {'limit': WINDOW + 1}, {'arrived': math.nan}, {'arrived': math.inf}])
def test_an_acknowledgement_that_cannot_be_true_is_refused_and_changes_nothing(wrong):
    sender = Sender()
    for message in (b'a', b'b', b'c'):
        sender.offer(message)
    assert len(sender.poll(0.0)) == 3
    fields = {'packet': 0, 'mask': 0, 'arrived': 0.0, 'number': 0, 'limit': WINDOW} | wrong
    with pytest.raises(RemoteError):
        sender.on_ack(Ack(**fields), 1.0)
    assert len(sender._unknown) == len(sender.link.items) == 3
    assert sender._limit == WINDOW and sender.link.delivered == 0
