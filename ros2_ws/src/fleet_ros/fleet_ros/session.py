"""A session between a server and a robot: a stream of messages over a channel."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from fleet_env.emulated.shaped import ShapedLink
from fleet_link.errors import PeerError
from fleet_link.seal import Seal
from fleet_link.stream import Ack, Frame, Stream
from fleet_msgs import msg
from rclpy.node import Node

from .channel import Channel, Topics
from .frames import ack_of, ack_to_ros, frame_of, frame_to_ros
from .qos import STREAM

LEASE = 20.0      # seconds of silence after which a session ends
ENDS = 'it ends'


class Borrowed(ShapedLink):
    """An emulated link of another channel of this process, which releases what this one sends.

    :param touched: called after each message that was given to the link.
    """

    def __init__(self, link: ShapedLink, touched: Callable[[], None]) -> None:
        super().__init__()
        self._link, self._touched = link, touched
        self.left: Callable[[], None] = lambda: None    # called when a message has left the link

    def send(self, nbytes: int, publish: Callable[[], None], now: float, lossy: bool = False
             ) -> None:
        """Give a message to the other channel's link."""
        def leave() -> None:
            publish()
            self.left()
        self._link.send(nbytes, leave, now, lossy)
        self._touched()


class Session:
    """One end of a session; the node's executor calls all methods.

    :param base: beginning of the topics' names.
    :param take: called with each message of the peer. If it raises a PeerError, the session ends.
    :param woken: called when the session has ended, or `deadline` is earlier than before.
    :param most: maximum bytes of a message of the peer.
    """

    def __init__(self, node: Node, base: str, incarnation: int, is_server: bool,
                 take: Callable[[bytes], None], woken: Callable[[], None], most: int,
                 link: ShapedLink | None = None, keyed: bool = False) -> None:
        self.incarnation, self.ended = incarnation, ''   # `ended`: why it is over; '' if it is not
        self._take, self._woken = take, woken
        self.begin()
        self._stream = Stream(most)
        ours, theirs = ('down', 'up') if is_server else ('up', 'down')
        acks = msg.FrameAck, f'{theirs}_ack'
        topics = Topics({Frame: (msg.Frame, ours), Ack: acks, str: acks},
                        {msg.Frame: theirs, msg.FrameAck: f'{ours}_ack'},
                        partial(_to_ros, incarnation), _payload, STREAM)
        self._channel = Channel(node, topics, base, self._on_message, lambda error: None, link,
                                keyed)
        if isinstance(link, Borrowed):
            link.left = self._channel.flush
        self._channel.listen()

    def begin(self) -> None:
        """Count the silence of the peer from now on."""
        self._heard = time.monotonic()
        self._ping_at = self._heard + LEASE / 4

    def keep(self, sends: Seal, takes: Seal) -> None:
        """Seal what is sent, and take only what the peer has sealed, from now on."""
        self._channel.keep(sends, takes, self.incarnation)

    @property
    def waiting(self) -> int:
        """Bytes of messages that wait to be sent."""
        return self._stream.sender.waiting

    def send(self, message: Any) -> None:
        """Send a message; its bytes must not change until the peer has them."""
        self._stream.sender.offer(message)
        self._poll()

    def on_time(self) -> None:
        """Send what is due; end the session after `LEASE` seconds of silence."""
        now = time.monotonic()
        self._channel.release(now)
        if now - self._heard > LEASE:
            self.end(f'nothing was heard for {LEASE:g} s')
        if now >= self._ping_at and not self.ended:
            self._ping_at = now + LEASE / 4
            self._channel.send(self._stream.sender.ping(now), now, lossy=True)
        self._poll()

    @property
    def deadline(self) -> float:
        """Time at which to call `on_time`, by the monotonic clock."""
        return min(self._stream.deadline, self._channel.deadline, self._ping_at,
                   self._heard + LEASE)

    def end(self, reason: str) -> None:
        """End the session; tell the peer once."""
        if not self.ended:
            self.ended = reason
            self._channel.say(reason)

    def close(self) -> None:
        """Remove the topics."""
        self._channel.close()

    def _poll(self) -> None:
        if not self.ended:
            now = time.monotonic()
            for packet in self._stream.poll(now):
                self._channel.send(packet, now, lossy=True)
        self._channel.flush()

    def _on_message(self, message: Any) -> None:
        if message.incarnation != self.incarnation or self.ended:
            return
        now = self._heard = time.monotonic()
        try:
            if isinstance(message, msg.Frame):
                for complete in self._stream.take(frame_of(message), now):
                    self._take(complete)
            elif message.error:
                self.ended = f'the other side has ended it: {message.error[:200]}'
            else:
                self._stream.sender.on_ack(ack_of(message), now)
        except PeerError as error:
            self.end(str(error))
        self._poll()
        self._woken()


def _to_ros(incarnation: int, value: Frame | Ack | str) -> Any:
    if isinstance(value, Frame):
        return frame_to_ros(value, incarnation)
    if isinstance(value, str):
        return ack_to_ros(None, incarnation, value)
    return ack_to_ros(value, incarnation)


def _payload(value: Frame | Ack | str) -> int:
    return len(value.data) if isinstance(value, Frame) else 0
