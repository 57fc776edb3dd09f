"""Sends messages of any size over a link that loses, repeats and reorders packets. Sans-I/O.

A `Sender` splits messages into frames. Each frame has a `number`, its position in the stream, and
each transmission of a frame has a packet number. `fleet_link.link.Link` decides when a packet may
be sent, and which packets are lost; the sender sends their frames again. A `Receiver` joins the
frames to messages, in order, and says how far the sender may go: its `limit`. A `Stream` is both,
one end of a session.

Topics are best effort, because a reliable queue of the middleware would fill a slow link with
requests and repetitions of its own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import arrivals
from .arrivals import WIRE, Arrivals, expanded
from .errors import PeerError
from .link import DATAGRAM, Link

FRAME = 61440     # maximum bytes of data in a frame, so that a frame fits into one UDP datagram
# Maximum number of frames that a receiver lets the sender send before the first that is missing. A
# receiver holds at most so many frames for an incomplete message or for messages that wait.
WINDOW = 256
# Maximum bytes on the way; more overflow the receiving socket, whose buffer often has 8 MB, if the
# receiver's process is late.
MOST_BYTES = 4 << 20
# A frame carries so many seconds of the link, and at least what fits a datagram. A short frame is
# soon replaced if it is lost.
FRAME_TIME = 0.003
HEADERS = 120     # bytes on the link for each packet besides the data, about
# An acknowledgement may wait so many seconds for more packets, which is less than a time-out of the
# link allows for, and for at most `PAIR` packets. A packet that does not complete a message counts
# as half of them: a long message keeps the link busy, whose rate the sender wants to know.
HOLD, PAIR = 0.01, 32


@dataclass(frozen=True, slots=True)
class Frame:
    """A part of a message, or a ping: the fields of fleet_msgs/Frame without the incarnation.

    A ping has neither data nor `last`. It is not part of the stream.
    """

    packet: int
    number: int
    last: bool
    data: Any


@dataclass(frozen=True, slots=True)
class Ack(arrivals.Ack):
    """The fields of fleet_msgs/FrameAck without the incarnation and the error."""

    held: float
    number: int
    limit: int


@dataclass(slots=True, eq=False)
class _Part:
    """A frame that was sent. `lost`: whether it waits to be sent again."""

    number: int
    last: bool
    data: Any
    arrived: bool = False
    lost: bool = False


class Sender:
    """Sends the messages of one direction.

    Call `poll` after every other method and at `deadline`; it returns the frames to send.
    """

    def __init__(self) -> None:
        self.link: Link[_Part | None] = Link()   # None: a ping
        self.next = 0            # number of the next new frame
        self.bytes = 0
        self.waiting = 0         # number of bytes of queued messages that are not sent yet
        self._messages: deque[memoryview] = deque()   # what is not sent yet of each message
        self._unknown: dict[int, _Part] = {}   # frames that may not have arrived, by number
        self._lost: deque[_Part] = deque()
        self._taken, self._limit = 0, WINDOW   # the largest `number` and `limit` of the peer
        self._ask_at = math.inf  # time of the next ping, while the limit stops the sender

    def offer(self, message: Any) -> None:
        """Queue a message; its bytes must not change until they are acknowledged."""
        view = memoryview(message)
        self.bytes += len(view)
        self.waiting += len(view)
        self._messages.append(view)

    def on_ack(self, ack: Ack, now: float) -> None:
        """Process an acknowledgement.

        Raises PeerError, and changes nothing, if it acknowledges what was never sent.
        """
        number = expanded(ack.number, self._taken)
        limit = expanded(ack.limit, number)
        if not (0 <= number <= self.next and number <= limit <= number + WINDOW and ack.held >= 0):
            raise PeerError(f'of {self.next} frames, {number} cannot have been taken, with '
                              f'{limit} as the limit, {ack.held} s before')
        # Not the whole time, because the link counts its time-out from here, too. More than `HOLD`
        # are held only if earlier acknowledgements are lost.
        arrived, lost = self.link.on_ack(ack, now - min(ack.held, self.link.timeout / 2))
        for part in arrived:
            if part is not None:
                self._unknown.pop(part.number, None)
                part.arrived, part.data = True, b''   # `link` may keep the part
        self._limit = max(self._limit, limit)
        if number > self._taken:
            self._taken = number
            self._forget_taken()
        self._send_again(lost)

    def _forget_taken(self) -> None:
        """Forget frames that have been taken although all their acknowledgements are lost."""
        gone = False
        while self._unknown and next(iter(self._unknown)) < self._taken:
            part = self._unknown.pop(next(iter(self._unknown)))
            part.arrived, part.data = True, b''
            gone = True
        if gone:
            self.link.forget(lambda part: part is not None and part.arrived)

    def on_heard(self, now: float) -> None:
        """Handle any other message of the peer: the link may be back after an outage."""
        self.link.on_heard(now)

    @property
    def busy(self) -> bool:
        """Whether frames wait to be sent."""
        return bool(self._messages or self._lost)

    @property
    def done(self) -> bool:
        """Whether the peer has everything."""
        return not (self._messages or self._unknown)

    def poll(self, now: float) -> list[Frame]:
        """Return the frames to send now."""
        self._send_again(self.link.poll(now, lambda part: part is not None and not part.arrived))
        frames: list[Frame] = []
        while self._lost:
            part = self._lost[0]
            if not part.arrived:
                if not self.link.room(len(part.data) + HEADERS):
                    return frames
                frames.append(self._transmit(part, now))
            part.lost = False
            self._lost.popleft()
        size = self._frame_bytes
        while self._messages and self.next < self._limit:
            rest = self._messages[0]
            if self.link.in_flight > MOST_BYTES \
                    or not self.link.room(min(len(rest), size) + HEADERS):
                return frames
            frames.append(self._transmit(self._cut(size), now))
        if not self._messages or self.next < self._limit or not self.link.quiet:
            self._ask_at = math.inf
        elif self._ask_at == math.inf:
            self._ask_at = now + self.link.timeout
        elif now >= self._ask_at:   # the acknowledgement with a higher limit may be lost
            frames.append(self.ping(now))
            self._ask_at = now + self.link.timeout
        return frames

    def ping(self, now: float) -> Frame:
        """Return a frame that requests an acknowledgement.

        The link does not wait for the answer: if a ping is lost, the link need not be slow.
        """
        packet = self.link.ping(None, HEADERS, now)
        return Frame(packet, self.next % WIRE, False, b'')

    @property
    def deadline(self) -> float:
        """Time at which `poll` must be called if nothing happens before; infinity: never."""
        return min(self.link.deadline, self._ask_at)

    @property
    def _frame_bytes(self) -> int:
        return int(min(max(self.link.rate * FRAME_TIME, DATAGRAM), FRAME))

    def _cut(self, size: int) -> _Part:
        """Take the next new frame, of at most `size` bytes, from the messages."""
        rest = self._messages[0]
        part = _Part(self.next, len(rest) <= size, rest[:size])
        if part.last:
            self._messages.popleft()
        else:
            self._messages[0] = rest[size:]
        self.waiting -= len(part.data)
        self._unknown[part.number] = part
        self.next += 1
        return part

    def _transmit(self, part: _Part, now: float) -> Frame:
        packet = self.link.send(part, len(part.data) + HEADERS, now)
        return Frame(packet, part.number % WIRE, part.last, part.data)

    def _send_again(self, parts: Iterable[_Part | None]) -> None:
        for part in parts:
            if part is not None and not (part.arrived or part.lost):
                part.lost = True
                self._lost.append(part)


class Receiver:
    """Joins the frames of one direction to messages of at most `most` bytes, in order.

    It holds at most `WINDOW` frames before the first that is missing.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.next = 0            # number of the first frame that is missing
        self.limit = WINDOW      # frames from this number on are refused
        self.bytes = 0
        self.due = math.inf      # time at which to send `ack` at the latest
        self._arrivals = Arrivals()
        self._unanswered = 0     # packets that wait for an acknowledgement, see `PAIR`
        self._newest = 0, 0, 0.0  # packet, mask and arrival of the newest packet
        self._early: dict[int, tuple[Any, bool]] = {}   # data and `last` of frames after a gap
        self._parts: list[Any] = []
        self._size = 0           # number of bytes in `_parts`

    @property
    def room(self) -> int:
        """Number of frames that the sender may still send."""
        return self.limit - self.next

    @property
    def partial(self) -> bool:
        """Whether a part of a message has arrived."""
        return bool(self._parts or self._early)

    def take(self, frame: Frame, now: float) -> list[bytes]:
        """Process a frame; return the messages that are complete now. Send `ack` when it is `due`.

        Raises PeerError if no sender sends such a frame, or the message is too long.
        """
        size = len(frame.data)
        number = expanded(frame.number, self.next)
        ping = not size and not frame.last
        if size > FRAME:
            raise PeerError(f'a frame must have at most {FRAME} bytes, got {size}')
        if number >= self.limit and not ping:
            raise PeerError(f'it sent frame {number}, but was allowed only frames below '
                              f'{self.limit}')
        self._newest = frame.packet, self._arrivals.note(frame.packet), now
        in_order = number == self.next
        self._unanswered += 1 if frame.last else PAIR // 2
        if ping or not in_order or self._unanswered >= PAIR:
            self.due = now   # out of order: the sender must hear of a loss
        else:
            self.due = min(self.due, now + HOLD)
        if not ping and number >= self.next:
            self._early.setdefault(number, (frame.data, frame.last))
        return self._complete() if in_order else []

    def _complete(self) -> list[bytes]:
        messages = []
        while self.next in self._early:
            data, last = self._early.pop(self.next)
            self.next += 1
            self.bytes += len(data)
            self._size += len(data)
            if self._size > self.most:
                raise PeerError(f'a message must have at most {self.most >> 20} MiB')
            self._parts.append(data)
            if last:
                messages.append(b''.join(self._parts))
                self._parts, self._size = [], 0
        return messages

    def ack(self, now: float, more: bool = True) -> Ack:
        """Return the acknowledgement of the newest packet.

        `more`: whether the sender may go on; otherwise the limit stays what it is.
        """
        if more:
            self.limit = self.next + WINDOW
        self.due, self._unanswered = math.inf, 0
        packet, mask, arrived = self._newest
        return Ack(packet, mask, arrived, max(0.0, now - arrived), self.next % WIRE,
                   self.limit % WIRE)


class Stream:
    """One end of a session: a sender and a receiver.

    Call `poll` after `take`, after every method of `sender`, and at `deadline`; it returns what to
    send. `more`: whether the peer may go on; otherwise its limit stays what it is.
    """

    def __init__(self, most: int) -> None:
        self.sender, self.receiver = Sender(), Receiver(most)
        self.more = True

    def take(self, frame: Frame, now: float) -> list[bytes]:
        """Process a frame of the peer; return the messages that are complete now.

        Raises PeerError for a frame that no peer sends.
        """
        messages = self.receiver.take(frame, now)
        self.sender.on_heard(now)
        return messages

    def poll(self, now: float) -> list[Frame | Ack]:
        """Return the frames and the acknowledgement to send now."""
        if now < self.deadline and not self.sender.busy:
            return []    # the usual case after `take`
        packets: list[Frame | Ack] = [*self.sender.poll(now)]
        if now >= self.receiver.due:
            packets.append(self.receiver.ack(now, self.more))
        return packets

    @property
    def deadline(self) -> float:
        """Time at which `poll` must be called if nothing happens before; infinity: never."""
        return min(self.sender.deadline, self.receiver.due)
