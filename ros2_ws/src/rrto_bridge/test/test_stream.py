"""Messages arrive whole and in order, in bounded frames and a bounded window."""

import random

import pytest
from rrto_bridge.protocol.errors import LinkError, RemoteError
from rrto_bridge.protocol.stream import FRAME, WINDOW, Frame, Receiver, Sender


def carry(sender, receiver):
    """Deliver frames and acknowledgements until none is left; return the messages that arrived."""
    came = []
    while frames := sender.poll():
        assert len(frames) <= WINDOW and all(len(f.data) <= FRAME for f in frames)
        for frame in frames:
            message, acknowledge = receiver.take(frame)
            if message is not None:
                came.append(message)
            if acknowledge:
                sender.on_ack(receiver.next)
    return came


def test_messages_of_any_size_arrive():
    chance = random.Random(1)
    sizes = [0, 1, FRAME - 1, FRAME, FRAME + 1, 100 * FRAME,
             *(chance.randrange(3 * FRAME) for _ in range(20))]
    messages = [chance.randbytes(size) for size in sizes]
    sender, receiver = Sender(), Receiver(1 << 30)
    for message in messages:
        sender.offer(message)
    assert carry(sender, receiver) == messages


def test_the_window_stops_a_sender_that_gets_no_acknowledgement():
    sender = Sender()
    sender.offer(bytes(3 * WINDOW * FRAME))
    assert len(sender.poll()) == WINDOW
    assert sender.poll() == []
    sender.on_ack(10)
    assert len(sender.poll()) == 10


def test_a_ping_is_answered_and_is_no_message():
    sender, receiver = Sender(), Receiver(100)
    assert receiver.take(sender.ping()) == (None, True)
    sender.offer(b'abc')
    assert carry(sender, receiver) == [b'abc']


def test_a_missing_frame_ends_the_stream():
    receiver = Receiver(100)
    receiver.take(Frame(0, True, b'a'))
    with pytest.raises(LinkError, match='expected frame 1, got 2'):
        receiver.take(Frame(2, True, b'b'))


def test_a_message_beyond_the_limit_is_refused():
    receiver = Receiver(100)
    receiver.take(Frame(0, False, bytes(60)))
    with pytest.raises(RemoteError):
        receiver.take(Frame(1, False, bytes(60)))


def test_an_acknowledgement_of_what_was_never_sent_is_refused():
    with pytest.raises(RemoteError):
        Sender().on_ack(1)
