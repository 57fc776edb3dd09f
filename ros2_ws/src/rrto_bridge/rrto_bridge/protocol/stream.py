"""Splits messages of any size into frames, and joins frames to messages. Sans-I/O.

The ROS topics that carry the frames are reliable and keep the order. The sender has at most
`WINDOW` frames in transit, so the queue of the middleware stays short. With a short queue, the
sender notices a dead link, and can abandon a message.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from .errors import LinkError, RemoteError

FRAME = 61440    # maximum bytes of data in a frame, so that a frame fits into one UDP datagram
WINDOW = 64      # maximum number of frames in transit
EVERY = 16       # the receiver acknowledges every EVERY-th frame


@dataclass(frozen=True, slots=True)
class Frame:
    """A part of a message: the fields of rrto_msgs/Frame without the incarnation."""

    number: int
    last: bool
    data: Any


class Sender:
    """Splits the messages of one direction into frames, and limits the frames in transit."""

    def __init__(self) -> None:
        self.next = 0            # number of the frame that is sent next
        self.acknowledged = 0           # number of the first frame that is not acknowledged
        self.bytes = 0
        self.waiting = 0         # number of bytes of queued messages that are not sent yet
        self._waiting: deque[tuple[Any, bool]] = deque()

    def offer(self, message: Any) -> None:
        """Queue a message; `poll` returns its frames."""
        view = memoryview(message)
        self.bytes += len(view)
        self.waiting += len(view)
        for at in range(0, max(len(view), 1), FRAME):
            self._waiting.append((view[at:at + FRAME], at + FRAME >= len(view)))

    def poll(self) -> list[Frame]:
        """Return the frames to send now."""
        frames = []
        while self._waiting and self.next - self.acknowledged < WINDOW:
            data, last = self._waiting.popleft()
            self.waiting -= len(data)
            frames.append(Frame(self.next, last, data))
            self.next += 1
        return frames

    def ping(self) -> Frame:
        """Return a frame that requests an acknowledgement."""
        self.next += 1
        return Frame(self.next - 1, False, b'')

    def on_ack(self, number: int) -> None:
        """Record that all frames before `number` are acknowledged.

        Raises RemoteError if one of these frames was never sent.
        """
        if not 0 <= number <= self.next:
            raise RemoteError(f'acknowledged frame must be at most {self.next}, got {number}')
        self.acknowledged = max(self.acknowledged, number)


class Receiver:
    """Joins the frames of one direction to messages of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.next = 0
        self.bytes = 0
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def pending(self) -> int:
        """Number of bytes received so far of the message that is still incomplete."""
        return self._size

    def take(self, frame: Frame) -> tuple[bytes | None, bool]:
        """Process a frame; return (the message if it is now complete, whether to acknowledge now).

        Raises LinkError if frames are missing, RemoteError if the message is too long.
        """
        if frame.number != self.next:
            raise LinkError(f'expected frame {self.next}, got {frame.number}')
        self.next += 1
        size = len(frame.data)
        if not size and not frame.last:
            return None, True
        if size > FRAME:
            raise RemoteError(f'a frame must have at most {FRAME} bytes, got {size}')
        self._size += size
        self.bytes += size
        if self._size > self.limit:
            raise RemoteError(f'a message must have at most {self.limit >> 20} MiB')
        self._parts.append(bytes(frame.data))
        if not frame.last:
            return None, self.next % EVERY == 0
        message = b''.join(self._parts) if len(self._parts) > 1 else self._parts[0]
        self._parts, self._size = [], 0
        return message, self.next % EVERY == 0
