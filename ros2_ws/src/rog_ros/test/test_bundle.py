"""Messages that share a datagram arrive as if each had come alone."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from fleet_link.arrivals import MASK_BITS, Arrivals
from fleet_link.key import Key
from fleet_link.seal import Session
from fleet_ros.channel import Channel
from hypothesis import given
from hypothesis import strategies as st
from rclpy.serialization import deserialize_message, serialize_message
from rog_core.protocol.messages import Ack, Chunk, Command, End, Kind, Receipt, TransferId
from rog_core.protocol.steps import Gradient, Local, Shards
from rog_core.transfer.link import MIN_CHUNK
from rog_msgs.msg import Bundle
from rog_ros.convert import from_ros, size_bound, to_ros
from rog_ros.transfers import FIELDS, MOST, ROOM, SERVER, WORKER, split

SECRET, LIVES = Key(bytes(range(32))).of('robot1').secret, (11, 22)
SESSION = Session(SECRET, *LIVES)
OVERHEAD = 24   # bytes of a bundle without messages, with the padding before the first ones


class Air:
    """Stands for the nodes of both sides: `deliver` hands over what was published."""

    def __init__(self):
        self.sent, self._takes = [], {}

    def create_publisher(self, kind, topic, profile):
        return SimpleNamespace(publish=lambda message: self.sent.append((topic, message)))

    def create_subscription(self, kind, topic, callback, profile):
        self._takes[topic] = callback
        return MagicMock(**{'handle.take_message.return_value': None})

    def deliver(self):
        sent, self.sent = self.sent, []
        for topic, message in sent:
            self._takes[topic](deserialize_message(serialize_message(message), type(message)))
        return [message for _, message in sent]


class Pair:
    """A robot and the server; ``got`` holds what the server takes."""

    def __init__(self, keyed):
        self.air, self.got, self.back, self.refused = Air(), [], [], []
        self.server = Channel(self.air, SERVER, '/robot1/', self.take, self.refused.append,
                              keyed=keyed)
        self.robot = Channel(self.air, WORKER, '/robot1/', self.back.append, self.refused.append,
                             keyed=keyed)
        for channel in (self.server, self.robot):
            channel.listen()
        if keyed:
            ours, theirs = (Session(SECRET, *LIVES) for _ in range(2))
            self.robot.keep(ours.to_server, ours.to_robot, ours.number)
            self.server.keep(theirs.to_robot, theirs.to_server, theirs.number)

    def take(self, message):
        self.got.append(from_ros(message))

    def send(self, values):
        for value in values:
            self.robot.send(value, 0.0)
        self.robot.flush()


u8, u16, u32, u64 = (st.integers(0, 2 ** bits - 1) for bits in (8, 16, 32, 64))
octets = st.binary(max_size=300)
arrays = octets.map(lambda data: np.frombuffer(data, np.uint8))
transfers = st.builds(TransferId, st.just(SESSION.number), st.sampled_from(Kind), st.just(1),
                      st.integers(1, 2))
steps = st.one_of(st.builds(Gradient, st.booleans()), st.builds(Local, u32), st.builds(
    Shards, u32, st.lists(u32).map(tuple), st.lists(st.floats(allow_nan=False)).map(tuple)))
commands = st.builds(Command, next_iteration=u32, sync=st.sampled_from(['', 'rsp:4']), step=steps)
chunks = st.builds(Chunk, transfers, u32, u8, u16, arrays, arrays, u32)
acks = st.builds(Ack, u32, u64, st.floats(allow_nan=False), st.just(SESSION.number))
receipts = st.builds(Receipt, transfers, u32, octets, u32)
ends = st.builds(End, transfers, u32, command=st.just(Command()) | commands,
                 switched=st.lists(u32, max_size=9).map(tuple))
values = st.lists(st.one_of(chunks, acks, receipts, ends), max_size=40)


@pytest.mark.parametrize('keyed', [False, True])
@given(sent=values)
def test_what_shares_a_datagram_arrives_in_an_allowed_order(keyed, sent):
    pair = Pair(keyed)
    sent = [replace(value, packet=number) if isinstance(value, Chunk) else value
            for number, value in enumerate(sent)]
    pair.send(sent)
    datagrams = pair.air.deliver()
    assert not pair.refused
    for kind in (Chunk, Receipt, End):
        assert [to_ros(v) for v in pair.got if isinstance(v, kind)] == [
            to_ros(v) for v in sent if isinstance(v, kind)]
    left = [to_ros(v) for v in pair.got]
    for at, end in enumerate(sent):
        if isinstance(end, End):
            before = [v for v in sent[:at] if isinstance(v, Chunk) and v.transfer == end.transfer]
            last = len(left) - 1 - left[::-1].index(to_ros(end))
            assert all(left.index(to_ros(chunk)) < last for chunk in before)
    heard = [v for v in pair.got if isinstance(v, Ack)]
    for ack in (v for v in sent if isinstance(v, Ack)):
        assert any(other == ack or other.mask >> (other.packet - ack.packet) % 2 ** 32 - 1 & 1
                   for other in heard if other == ack or other.packet != ack.packet)
    for bundle in (d for d in datagrams if isinstance(d, Bundle)):
        assert 0 < len(split(bundle)) <= MOST
        assert len(serialize_message(bundle)) <= ROOM + OVERHEAD


@pytest.mark.parametrize('keyed', [False, True])
@given(value=st.one_of(chunks, acks, receipts, ends))
def test_no_message_takes_more_bytes_than_its_bound(keyed, value):
    pair = Pair(keyed)
    pair.send([value])
    (_, message), = pair.air.sent
    bundle = Bundle(**{FIELDS[type(message)]: [message]})
    assert len(serialize_message(bundle)) <= size_bound(message) + OVERHEAD


def test_small_messages_share_a_datagram_and_large_ones_go_alone():
    transfer, pair = TransferId(SESSION.number, Kind.PUSH, 1, 1), Pair(False)
    small, large = (Chunk(transfer, k, 1, 1, np.zeros(1, np.uint8), np.zeros(n, np.uint8), k)
                    for k, n in enumerate((99, MIN_CHUNK)))
    receipt, end = Receipt(transfer, 1, b'\1'), End(transfer, 2)
    pair.send([receipt, small, end])
    assert [type(m) for m in pair.air.deliver()] == [Bundle]
    pair.send([receipt, small, large, end])
    assert [topic for topic, _ in pair.air.sent] == [
        '/robot1/push_bundle', '/robot1/push', '/robot1/push_end']


def test_one_acknowledgement_tells_of_all_chunks_of_a_bundle():
    pair, arrivals = Pair(False), Arrivals()
    acks = [Ack(packet, arrivals.note(packet), float(packet), 33) for packet in range(5)]
    pair.send(acks)
    pair.air.deliver()
    assert pair.got == acks[-1:]
    del pair.got[:]
    far = Ack(4 + MASK_BITS + 1, 2 ** MASK_BITS - 1, 0.0, 33)   # does not reach back to the others
    pair.send([acks[-1], far])
    pair.air.deliver()
    assert pair.got == [acks[-1], far]


def test_a_message_in_a_bundle_that_is_not_sealed_is_refused_and_the_others_are_taken():
    transfer, pair = TransferId(SESSION.number, Kind.PULL, 1, 1), Pair(True)
    receipt, end = Receipt(transfer, 1, b'\1'), End(transfer, 2)
    pair.send([Ack(1, 0, 0.0, SESSION.number), receipt, end])
    (_, bundle), = pair.air.sent
    bundle.receipts[0].refused = 9
    pair.air.deliver()
    assert len(pair.refused) == 1
    assert [type(value) for value in pair.got] == [Ack, End]
    pair.air.sent = [('/robot1/push_bundle', Bundle(ends=[to_ros(End(
        TransferId(9, Kind.PUSH, 1, 1), 0))]))]
    pair.air.deliver()
    assert len(pair.refused) == 1 and len(pair.got) == 2, 'a former session is no fault'


def test_the_answers_to_a_bundle_leave_together():
    pair = Pair(False)
    transfer = TransferId(SESSION.number, Kind.PUSH, 1, 1)

    def answer(message):
        pair.server.send(Receipt(transfer, len(pair.back), b''), 0.0)
        pair.server.flush()

    pair.server._take = answer
    pair.send([Receipt(transfer, 1, b'\1'), End(transfer, 2), Ack(1, 0, 0.0, 33)])
    pair.air.deliver()
    (topic, bundle), = pair.air.sent
    assert topic == '/robot1/pull_bundle' and len(bundle.receipts) == 3


def test_a_bundle_of_more_messages_than_one_may_hold_is_refused():
    pair = Pair(False)
    end = to_ros(End(TransferId(SESSION.number, Kind.PUSH, 1, 1), 0))
    for count, taken in ((8, 16), (9, 0)):
        pair.air.sent = [('/robot1/push_bundle', Bundle(
            ends=[end] * count, acks=[to_ros(Ack(1, 0, 0.0, SESSION.number))] * 8))]
        pair.air.deliver()
        assert len(pair.got) == taken
        del pair.got[:]
    assert len(pair.refused) == 1


@pytest.mark.parametrize('at_robot', [False, True])
def test_a_session_that_is_opened_again_goes_on_where_it_was(at_robot):
    """Nothing that was heard before can be said again, and what follows does not look repeated."""
    pair, again = Pair(True), Session(SECRET, *LIVES)
    acks = [Ack(k, 0, 0.5, SESSION.number) for k in range(4)]
    for ack in acks[:2]:
        pair.send([ack])
        first = pair.air.sent[0]
        pair.air.deliver()
    if at_robot:
        pair.robot.keep(again.to_server, again.to_robot, again.number)
    else:
        pair.server.keep(again.to_robot, again.to_server, again.number)
    pair.send(acks[2:3])
    pair.air.deliver()
    assert not pair.refused and len(pair.got) == 3
    pair.air.sent.append(first)
    pair.air.deliver()
    assert len(pair.refused) == 1 and len(pair.got) == 3
