"""A session between a server and a robot, over a channel."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fleet_env.emulated.shaped import ShapedLink
from fleet_link import session
from fleet_link.errors import PeerError
from fleet_link.seal import Seal
from rclpy.node import Node

from .channel import Channel
from .frames import packet_of, topics

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
        self.incarnation = incarnation
        self._take, self._woken = take, woken
        self._session = session.Session(most, LEASE, not is_server, time.monotonic())
        self._channel = Channel(node, topics(is_server, incarnation), base, self._on_message,
                                lambda error: None, link, keyed)
        if isinstance(link, Borrowed):
            link.left = self._channel.flush
        self._channel.listen()

    def begin(self) -> None:
        """Count the silence of the peer from now on."""
        self._session.begin(time.monotonic())

    def keep(self, sends: Seal, takes: Seal) -> None:
        """Seal what is sent, and take only what the peer has sealed, from now on."""
        self._channel.keep(sends, takes, self.incarnation)

    @property
    def ended(self) -> str:
        """Why the session is over; '' if it is not."""
        ended = self._session.ended
        return ended if self._session.ours or not ended else f'the other side has ended it: {ended}'

    @property
    def waiting(self) -> int:
        """Bytes of messages that wait to be sent."""
        return self._session.stream.sender.waiting

    def send(self, message: Any) -> None:
        """Send a message; its bytes must not change until the peer has them."""
        self._session.stream.sender.offer(message)
        self._poll()

    def on_time(self) -> None:
        """Send what is due; end the session after `LEASE` seconds of silence."""
        self._channel.release(time.monotonic())
        self._poll()

    @property
    def deadline(self) -> float:
        """Time at which to call `on_time`, by the monotonic clock."""
        return min(self._session.deadline, self._channel.deadline)

    def end(self, reason: str) -> None:
        """End the session, if it is not over, and tell the peer."""
        self._session.end(reason, time.monotonic())
        self._poll()

    def close(self) -> None:
        """Remove the topics."""
        self._channel.close()

    def _poll(self) -> None:
        now = time.monotonic()
        self._channel.transmit(self._session.poll(now), now)

    def _on_message(self, message: Any) -> None:
        if message.incarnation != self.incarnation:
            return
        now = time.monotonic()
        try:
            for complete in self._session.take(packet_of(message), now):
                self._take(complete)
        except PeerError as error:
            self._session.end(str(error), now)
        self._poll()
        self._woken()
