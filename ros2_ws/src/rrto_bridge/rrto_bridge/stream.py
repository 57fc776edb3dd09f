"""Messages of any size as frames of bounded size, with a window; sans-I/O.

The topics below are reliable and keep order. The window keeps what waits in the middleware short,
so that a dead link is noticed and a message can be given up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from .errors import LinkError, RemoteError

FRAME = 61440    # most bytes of data in a frame: fits one UDP datagram
WINDOW = 64      # frames on their way
EVERY = 16       # frames after which the receiver acknowledges


@dataclass(frozen=True, slots=True)
class Frame:
    """Fields as in rrto_msgs/Frame, less the incarnation."""

    number: int
    last: bool
    data: Any


class Sender:
    """One direction of a stream at its sender."""

    def __init__(self) -> None:
        self.next = 0            # number of the next frame
        self.taken = 0           # frames before this are acknowledged
        self.bytes = 0
        self.waiting = 0         # bytes that are not sent yet
        self._waiting: deque[tuple[Any, bool]] = deque()

    def offer(self, message: Any) -> None:
        """Send a message; `poll` returns its frames."""
        view = memoryview(message)
        self.bytes += len(view)
        self.waiting += len(view)
        for at in range(0, max(len(view), 1), FRAME):
            self._waiting.append((view[at:at + FRAME], at + FRAME >= len(view)))

    def poll(self) -> list[Frame]:
        """Frames to send now."""
        frames = []
        while self._waiting and self.next - self.taken < WINDOW:
            data, last = self._waiting.popleft()
            self.waiting -= len(data)
            frames.append(Frame(self.next, last, data))
            self.next += 1
        return frames

    def ping(self) -> Frame:
        """A frame that asks for an acknowledgement."""
        self.next += 1
        return Frame(self.next - 1, False, b'')

    def on_ack(self, number: int) -> None:
        """Frames before `number` have been taken; raises RemoteError if they were never sent."""
        if not 0 <= number <= self.next:
            raise RemoteError(f'acknowledgement of frame {number} of {self.next}')
        self.taken = max(self.taken, number)


class Receiver:
    """One direction of a stream at its receiver; messages of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.next = 0
        self.bytes = 0
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def pending(self) -> int:
        """Bytes of a message that is not complete."""
        return self._size

    def take(self, frame: Frame) -> tuple[bytes | None, bool]:
        """Take a frame: the message that it completes, and whether to acknowledge now.

        Raises LinkError if frames are missing, RemoteError for a message that is too long.
        """
        if frame.number != self.next:
            raise LinkError(f'frame {frame.number} came instead of {self.next}')
        self.next += 1
        size = len(frame.data)
        if not size and not frame.last:
            return None, True
        if size > FRAME:
            raise RemoteError(f'a frame of {size} bytes')
        self._size += size
        self.bytes += size
        if self._size > self.limit:
            raise RemoteError(f'a message has more than {self.limit >> 20} MiB')
        self._parts.append(bytes(frame.data))
        if not frame.last:
            return None, self.next % EVERY == 0
        message = b''.join(self._parts) if len(self._parts) > 1 else self._parts[0]
        self._parts, self._size = [], 0
        return message, self.next % EVERY == 0
