"""The topics between two nodes, as one side sees them, with the emulated link and the seals.

All parts send their bulk data in this way: over best-effort topics of the part's own message types,
numbered and repeated by `fleet_link.link`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fleet_env.emulated.shaped import ShapedLink
from fleet_link.errors import SealError
from fleet_link.seal import Seal
from fleet_link.session import End, Packet
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription

from .receiving import Receiving, subscribe
from .sealing import seal, unseal


@dataclass(frozen=True)
class Bundling:
    """How small messages that leave at the same time share a message, and so a datagram.

    ``kind``: type of that message, the bundle. ``sends``, ``takes``: topics of the bundles of each
    direction. ``nbytes``, ``most``: maximum bytes and number of the messages in a bundle.
    ``size(message)``: returns at least the bytes that a message takes in it. ``join(messages)``:
    returns the bundle. ``split(bundle)``: returns its messages, in the order in which they are
    handled.
    """

    kind: Any
    sends: str
    takes: str
    nbytes: int
    most: int
    size: Callable[[Any], int]
    join: Callable[[list[Any]], Any]
    split: Callable[[Any], list[Any]]


@dataclass(frozen=True)
class Topics:
    """What one side sends and receives.

    ``sends``: class of a value -> (type of its message, topic). ``takes``: type of a message ->
    topic. ``to_ros(value)``: returns the message. ``payload(value)``: returns the bytes that it
    takes on the emulated link. ``bundling``: None: each message goes alone.
    """

    sends: Mapping[type, tuple[Any, str]]
    takes: Mapping[Any, str]
    to_ros: Callable[[Any], Any]
    payload: Callable[[Any], int]
    profile: QoSProfile
    bundling: Bundling | None = None


class Channel:
    """Sends values to a peer, and receives its messages.

    ``base``: beginning of the topics' names. ``take(message)``: called for each message of the
    peer, whose seal is open. ``refused(error)``: called for each message whose seal our key does
    not open, and for each bundle of too many. ``link``: emulates a link; by default there is only
    the real one. ``keyed``: whether nothing is sent or taken before `keep`.
    """

    def __init__(self, node: Node, topics: Topics, base: str, take: Callable[[Any], None],
                 refused: Callable[[SealError], None], link: ShapedLink | None = None,
                 keyed: bool = False) -> None:
        self.link = link or ShapedLink()
        self._node, self._topics, self._take, self._refused = node, topics, take, refused
        self._keyed = keyed
        self._seals: tuple[Seal, Seal] | None = None     # of what is sent, and of what comes
        self._session = self._number = 0
        self._ready: deque[tuple[Any, Any]] = deque()  # (publisher, message) that left the link
        self._closed = False
        self._holds = False   # for the last message of a bundle: the answers leave together
        self.publishers = {kind: node.create_publisher(message, base + topic, topics.profile)
                           for kind, (message, topic) in topics.sends.items()}
        if (bundling := topics.bundling) is not None:
            self.publishers[bundling.kind] = node.create_publisher(
                bundling.kind, base + bundling.sends, topics.profile)
        self._base = base
        self._receiving: Receiving | None = None
        self._subscriptions: list[Subscription] = []

    def listen(self, apart: bool = False) -> None:
        """Receive from now on; ``apart``: in a thread of its own, see `Receiving`."""
        names: dict[str, tuple[Any, Callable[[Any], None]]] = {
            self._base + topic: (kind, self._on_message)
            for kind, topic in self._topics.takes.items()}
        if (bundling := self._topics.bundling) is not None:
            names[self._base + bundling.takes] = bundling.kind, self._on_bundle
        if apart:
            self._receiving = Receiving(self._node, names, self._topics.profile)
        else:
            self._subscriptions = [subscribe(self._node, kind, name, take, self._topics.profile)
                                   for name, (kind, take) in names.items()]

    def keep(self, sends: Seal, takes: Seal, session: int, number: int = 0) -> None:
        """Seal what is sent, and take only what the peer has sealed, from now on.

        Nothing changes if this is the present session, whose seals count what was said.

        ``session``: number that the peer's messages carry; messages of a former session are dropped
        without a word. ``number``: that of the seals, see `fleet_link.seal.Session`.
        """
        if self._seals is None or (session, number) != (self._session, self._number):
            self._seals, self._session, self._number = (sends, takes), session, number

    @property
    def is_open(self) -> bool:
        """Return whether something can be sent: there is no key, or a session."""
        return self._seals is not None or not self._keyed

    def send(self, value: Any, now: float, lossy: bool = False) -> None:
        """Send a value over the emulated link; `flush` publishes it.

        ``lossy``: see `ShapedLink`.
        """
        leave = partial(self._leave, value, self._seals)
        self.link.send(self._topics.payload(value), leave, now, lossy)

    def transmit(self, packets: Sequence[Packet], now: float) -> None:
        """Send the packets of a session, and publish what has left the emulated link.

        The end of a session goes around that: the process ends soon.
        """
        for packet in packets:
            if isinstance(packet, End):
                self._leave(packet, self._seals)
            else:
                self.send(packet, now, lossy=True)
        self.flush()

    @property
    def is_full(self) -> bool:
        """Return whether nothing could share a message with what is ready: `flush` it at once."""
        bundling = self._topics.bundling
        return bundling is None or len(self._ready) >= bundling.most or bool(
            self._ready) and bundling.size(self._ready[-1][1]) > bundling.nbytes

    @property
    def is_heard(self) -> bool:
        """Return whether DDS has found a subscription for everything that is sent."""
        return all(publisher.get_subscription_count() for publisher in self.publishers.values())

    def _leave(self, value: Any, seals: tuple[Seal, Seal] | None) -> None:
        if self.is_open and seals is self._seals:   # not of a former session
            message = seal(self._seals and self._seals[0], self._topics.to_ros(value))
            self._ready.append((self.publishers[type(value)], message))

    def release(self, now: float) -> None:
        """Let go what has left the emulated link by ``now``; call it at `deadline`."""
        self.link.release(now)

    @property
    def deadline(self) -> float:
        """Return the time of the next `release`; infinity: there is nothing to send."""
        return self.link.deadline

    def flush(self) -> None:
        """Publish what has left the emulated link; this may block, so hold no lock."""
        while not self._holds:
            try:
                publisher, message = self._next()
            except IndexError:   # another thread may have taken the last one
                return
            try:
                publisher.publish(message)
            except Exception:  # rclpy raises errors of several types if the publisher was destroyed
                if not self._closed:
                    raise

    def _next(self) -> tuple[Any, Any]:
        """Return the next message or bundle, and its publisher; IndexError: there is none."""
        first, bundling = self._ready.popleft(), self._topics.bundling
        if bundling is None or not self._ready:
            return first
        messages, room = [first[1]], bundling.nbytes - bundling.size(first[1])
        while self._ready and len(messages) < bundling.most:
            room -= bundling.size(self._ready[0][1])
            if room < 0:
                break
            messages.append(self._ready.popleft()[1])
        if len(messages) == 1:
            return first
        return self.publishers[bundling.kind], bundling.join(messages)

    def _on_bundle(self, bundle: Any) -> None:
        assert self._topics.bundling is not None
        messages, most = self._topics.bundling.split(bundle), self._topics.bundling.most
        if len(messages) > most:
            self._refused(SealError(f'bundle must hold at most {most} messages, got '
                                    f'{len(messages)}'))
            return
        try:
            for left, message in zip(reversed(range(len(messages))), messages, strict=True):
                self._holds = left > 0
                self._on_message(message)
        finally:
            self._holds = False
            self.flush()

    def _on_message(self, message: Any) -> None:
        seals = self._seals
        if seals is not None:
            if message.incarnation != self._session:
                return
            try:
                unseal(seals[1], message)
            except SealError as error:
                self._refused(error)
                return
        elif self._keyed:
            return
        self._take(message)

    def close(self) -> None:
        """Remove the topics; do not call this from a callback if they are received apart."""
        self._closed = True
        if self._receiving is not None:
            self._receiving.close()
            self._receiving = None
        for publisher in self.publishers.values():
            self._node.destroy_publisher(publisher)
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
