"""One program's session on the server: its stream, its queue, its lease. Sans-I/O.

The session runs in the process that the server has started for the program. The part with I/O
(`worker`) takes the program's messages one by one from the session, and executes them with
`execution.perform.Performer`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from fleet_link.errors import PeerError
from fleet_link.stream import WINDOW, Ack, Frame, Stream

from ..protocol.messages import ENDED, SILENT, SendAck, SendFrame, sending
from .machine import Limits

# If more than QUEUE messages or QUEUED bytes wait for execution, the server does not raise the
# limit of the stream, so the program must wait. If more than QUEUED bytes of replies wait, the
# server executes no messages.
QUEUE = 256
QUEUED = 4 << 20
DRAIN = 1.0    # maximum seconds for which an ending server waits for what the program has begun


@dataclass(frozen=True, slots=True)
class End:
    """The session has ended; the program knows the reason.

    `fault`: whether the program is at fault.
    """

    reason: str
    fault: bool = True


Action = SendFrame | SendAck | End


class SessionMachine:
    """Turns one program's frames into messages to execute, and replies into frames."""

    def __init__(self, program: str, incarnation: int, limits: Limits, now: float) -> None:
        self.program, self.incarnation, self.limits = program, incarnation, limits
        self.over = False
        self.answered = False   # whether the program knows that the session is over
        self._reason = ''       # why it is over
        self._stream = Stream(limits.memory << 20)
        self._heard = now
        self._messages: deque[bytes] = deque()
        self._queued = 0        # number of bytes in `_messages`
        self._executes = False  # whether a message is being executed
        self._ends_at = math.inf   # time at which the ending server ends the session

    @property
    def rate(self) -> float:
        """Return the measured rate of the link to the program, bytes/s."""
        return self._stream.sender.link.rate

    # -- frames and time -------------------------------------------------------------------------

    def on_frame(self, incarnation: int, frame: Frame, now: float) -> list[Action]:
        """Process a frame from the program; `on_time` answers it, at `deadline`."""
        if self.over:
            return []    # the program sent this frame before it received the end of the session
        if incarnation != self.incarnation:
            return [SendAck(self.program, incarnation, None,
                            'the server does not know this session')]
        self._heard = now
        try:
            for message in self._stream.take(frame, now):
                self._messages.append(message)
                self._queued += len(message)
        except PeerError as error:
            return self.fail(str(error))
        except MemoryError:
            return self.fail('the server has no memory for the messages of this program')
        return []

    def on_ack(self, incarnation: int, ack: Ack, error: str, now: float) -> list[Action]:
        """Process an acknowledgement from the program.

        If `error` is not empty, the program has ended, so end the session and say so.
        """
        if incarnation != self.incarnation:
            return []
        self._heard = now
        if error:
            self.answered = True
            if self._reason:
                return []    # the program answers `last_words`
            told = SendAck(self.program, self.incarnation, None, error[:200])
            ended, self.over = self.over, True
            return [told] if ended else [told, End(error[:200], False)]
        if self.over:
            return []
        try:
            self._stream.sender.on_ack(ack, now)
        except PeerError as wrong:
            return self.fail(str(wrong))
        return self.on_time(now)

    def on_time(self, now: float) -> list[Action]:
        """End the session if the program has been silent for the lease; send what is due."""
        if self.over:
            return []
        if now >= self._heard + self.limits.lease:
            return self.fail(SILENT, False)
        if now >= self._ends_at or self._ends_at < math.inf and self._waits_for_nothing:
            return self.fail(ENDED, False)
        return self._send(now)

    def leave(self, now: float) -> list[Action]:
        """End the session because the server ends, at a moment when the program waits for nothing.

        So the inference under way is not lost. This takes at most `DRAIN` seconds.
        """
        self._ends_at = min(self._ends_at, now + DRAIN)
        return self.on_time(now)

    @property
    def _waits_for_nothing(self) -> bool:
        return not (self._messages or self._executes or self._stream.receiver.partial) \
            and self._stream.sender.done

    @property
    def deadline(self) -> float:
        """Time at which to call `on_time` if nothing happens before.

        Infinite after the end of the session.
        """
        if self.over:
            return math.inf
        return min(self._heard + self.limits.lease, self._ends_at, self._stream.deadline)

    def fail(self, reason: str, fault: bool = True) -> list[Action]:
        """End the session and tell the program why."""
        if self.over:
            return []
        self.over, self._reason = True, reason
        self._messages.clear()
        return [*self.last_words(), End(reason, fault)]

    def last_words(self) -> list[Action]:
        """Tell the program again why this side has ended the session, until the program answers."""
        if self.answered:
            return []
        return [SendAck(self.program, self.incarnation, None, self._reason)]

    # -- execution -------------------------------------------------------------------------------

    def work(self) -> bytes | None:
        """Return the next message to execute, or None; after its execution, call `on_done`."""
        # If many replies wait to be sent, the program must receive them first.
        if not self._messages or self._stream.sender.waiting > QUEUED:
            return None
        message = self._messages.popleft()
        self._queued -= len(message)
        self._executes = True
        return message

    def on_reply(self, reply: bytes, now: float) -> list[Action]:
        """Send a reply to the message that is being executed."""
        if self.over:
            return []
        self._stream.sender.offer(reply)
        return self._send(now)

    def on_done(self, now: float) -> list[Action]:
        """Let the program go on if it must wait soon, and the queue is short enough again.

        Call this after each executed message.
        """
        self._executes = False
        receiver = self._stream.receiver
        if self._ends_at < math.inf:
            return self.on_time(now)
        if self.over or receiver.room > WINDOW // 2 or len(self._messages) > QUEUE // 2 \
                or self._queued > QUEUED // 2:
            return []
        receiver.due = now
        return self._send(now)

    def _send(self, now: float) -> list[Action]:
        self._stream.more = len(self._messages) <= QUEUE and self._queued <= QUEUED
        return [sending(packet, self.program, self.incarnation)
                for packet in self._stream.poll(now)]
