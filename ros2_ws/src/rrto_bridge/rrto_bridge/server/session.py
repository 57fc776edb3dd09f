"""One program's session on the server: its stream, its queue, its lease. Sans-I/O.

The session runs in the process that the server has started for the program. The part with I/O
(`worker`) takes the program's messages one by one from the session, and executes them with
`execution.perform.Performer`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from ..protocol.errors import RrtoError
from ..protocol.messages import SILENT, SendAck, SendFrame
from ..protocol.stream import FRAME, WINDOW, Frame, Receiver, Sender
from .machine import Limits

# If more than QUEUE messages or QUEUED bytes wait for execution, the server sends no
# acknowledgements, so the program must wait. If more than QUEUED bytes of replies wait, the server
# executes no messages.
QUEUE = 256
QUEUED = 4 << 20


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
        self._receiver = Receiver(limits.memory << 20)
        self._sender = Sender()
        self._heard = now
        self._messages: deque[bytes] = deque()
        self._queued = 0        # number of bytes in `_messages`
        self._held = False      # whether an acknowledgement is delayed until the queue is shorter

    # -- frames and time -------------------------------------------------------------------------

    def on_frame(self, incarnation: int, frame: Frame, now: float) -> list[Action]:
        """Process a frame from the program."""
        if self.over:
            return []    # the program sent this frame before it received the end of the session
        if incarnation != self.incarnation:
            return [SendAck(self.program, incarnation, 0, 'the server does not know this session')]
        self._heard = now
        try:
            message, acknowledge = self._receiver.take(frame)
            if message is not None:
                self._messages.append(message)
                self._queued += len(message)
            self._check_window()
        except RrtoError as error:
            return self.fail(str(error))
        except MemoryError:
            return self.fail('the server has no memory for the messages of this program')
        if not acknowledge:
            return []
        if len(self._messages) > QUEUE or self._queued > QUEUED:
            self._held = True
            return []
        return [self._ack()]

    def _check_window(self) -> None:
        """Raise RrtoError if the program sends without waiting for acknowledgements."""
        waiting = self._queued + self._receiver.pending
        if len(self._messages) > QUEUE + 2 * WINDOW or \
                waiting > self._receiver.limit + QUEUED + 2 * WINDOW * FRAME:
            raise RrtoError('it sent more frames than the window allows')

    def on_ack(self, incarnation: int, number: int, error: str, now: float) -> list[Action]:
        """Process an acknowledgement from the program.

        If `error` is not empty, the program has ended, so end the session.
        """
        if self.over or incarnation != self.incarnation:
            return []
        self._heard = now
        if error:
            self.over = True
            return [End(error[:200], False)]
        try:
            self._sender.on_ack(number)
        except RrtoError as wrong:
            return self.fail(str(wrong))
        return self._send()

    def on_time(self, now: float) -> list[Action]:
        """End the session if the program has been silent for the lease."""
        return self.fail(SILENT, False) if now >= self.deadline else []

    @property
    def deadline(self) -> float:
        """Time at which the session ends if the program stays silent; call `on_time` then.

        Infinite after the end of the session.
        """
        return math.inf if self.over else self._heard + self.limits.lease

    def fail(self, reason: str, fault: bool = True) -> list[Action]:
        """End the session and tell the program why."""
        if self.over:
            return []
        self.over = True
        self._messages.clear()
        return [SendAck(self.program, self.incarnation, self._receiver.next, reason),
                End(reason, fault)]

    # -- execution -------------------------------------------------------------------------------

    def work(self) -> bytes | None:
        """Return the next message to execute, or None; after its execution, call `on_done`."""
        # If many replies wait to be sent, the program must receive them first.
        if not self._messages or self._sender.waiting > QUEUED:
            return None
        message = self._messages.popleft()
        self._queued -= len(message)
        return message

    def on_reply(self, reply: bytes) -> list[Action]:
        """Send a reply to the message that is being executed."""
        if self.over:
            return []
        self._sender.offer(reply)
        return self._send()

    def on_done(self) -> list[Action]:
        """Send the delayed acknowledgement, if any, once the queue is short enough again.

        Call this after each executed message.
        """
        if self.over or not self._held or len(self._messages) > QUEUE // 2 \
                or self._queued > QUEUED // 2:
            return []
        self._held = False
        return [self._ack()]

    def _ack(self) -> SendAck:
        return SendAck(self.program, self.incarnation, self._receiver.next)

    def _send(self) -> list[Action]:
        return [SendFrame(self.program, self.incarnation, f) for f in self._sender.poll()]
