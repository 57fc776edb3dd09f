"""One program's session on the server: its stream and its queue of messages. Sans-I/O.

The session runs in the process that the server has started for the program. The part with I/O
(`worker`) takes the program's messages one by one from the session, and executes them with
`execution.perform.Performer`.
"""

from __future__ import annotations

import math
from collections import deque

from fleet_link.session import Packet, Session
from fleet_link.stream import WINDOW

from ..protocol.messages import ENDED
from .machine import Limits

# If more than QUEUE messages or QUEUED bytes wait for execution, the server does not raise the
# limit of the stream, so the program must wait. If more than QUEUED bytes of replies wait, the
# server executes no messages.
QUEUE = 256
QUEUED = 4 << 20
DRAIN = 1.0    # maximum seconds for which an ending server waits for what the program has begun


class ProgramSession(Session):
    """A session with one program: messages to execute, and replies.

    ``fault``: whether the program is at fault that it has ended.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        super().__init__(limits.memory << 20, limits.lease, False, now)
        self.fault = False
        self._messages: deque[bytes] = deque()
        self._queued = 0        # number of bytes in `_messages`
        self._executes = False  # whether a message is being executed
        self._ends_at = math.inf   # time at which the ending server ends the session

    def receive(self, packet: Packet, now: float) -> None:
        """Process what the program has sent."""
        open_before = not self.ended
        try:
            for message in self.take(packet, now):
                self._messages.append(message)
                self._queued += len(message)
        except MemoryError:
            self.end('the server has no memory for the messages of this program', now)
        self.fault |= open_before and self.ours

    def fail(self, reason: str, now: float) -> None:
        """End the session because of what the program has sent."""
        self.fault |= not self.ended
        self.end(reason, now)

    def leave(self, now: float) -> None:
        """End the session because the server ends, at a moment when the program waits for nothing.

        So the inference under way is not lost. This takes at most `DRAIN` seconds.
        """
        self._ends_at = min(self._ends_at, now + DRAIN)

    @property
    def _waits_for_nothing(self) -> bool:
        return not (self._messages or self._executes or self.stream.receiver.partial) \
            and self.stream.sender.done

    def poll(self, now: float) -> list[Packet]:
        """Return what to send now."""
        if now >= self._ends_at or self._ends_at < math.inf and self._waits_for_nothing:
            self.end(ENDED, now)
        self.stream.more = len(self._messages) <= QUEUE and self._queued <= QUEUED
        return super().poll(now)

    @property
    def deadline(self) -> float:
        """Time at which `poll` must be called if nothing happens before; infinity: never."""
        return super().deadline if self.ended else min(super().deadline, self._ends_at)

    # -- execution -------------------------------------------------------------------------------

    def work(self) -> bytes | None:
        """Return the next message to execute, or None; after its execution, call `done`."""
        # If many replies wait to be sent, the program must receive them first.
        if self.ended or not self._messages or self.stream.sender.waiting > QUEUED:
            return None
        message = self._messages.popleft()
        self._queued -= len(message)
        self._executes = True
        return message

    def reply(self, reply: bytes) -> None:
        """Send a reply to the message that is being executed."""
        if not self.ended:
            self.stream.sender.offer(reply)

    def done(self, now: float) -> None:
        """Let the program go on if it must wait soon, and the queue is short enough again.

        Call this after each executed message.
        """
        self._executes = False
        receiver = self.stream.receiver
        if receiver.room <= WINDOW // 2 and len(self._messages) <= QUEUE // 2 \
                and self._queued <= QUEUED // 2 and self._ends_at == math.inf:
            receiver.due = now
