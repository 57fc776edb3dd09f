"""One program's session on the server: its stream, its queue, its lease. Sans-I/O.

It lives in the process of that program. What a message does is `perform.Performer`'s business; a
shell executes one message at a time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .errors import RrtoError
from .server import Limits, SendAck, SendFrame
from .stream import FRAME, WINDOW, Frame, Receiver, Sender

QUEUE = 256        # messages that wait for execution before the program has to wait,
QUEUED = 4 << 20   # and bytes of them


@dataclass(frozen=True, slots=True)
class End:
    """The session is over; the program has been told. `fault`: it sent what it must not send."""

    reason: str
    fault: bool = True


Action = SendFrame | SendAck | End


class SessionMachine:
    """Frames of one program in, messages to execute out, and the way back."""

    def __init__(self, program: str, incarnation: int, limits: Limits, now: float) -> None:
        self.program, self.incarnation, self.limits = program, incarnation, limits
        self.over = False
        self._receiver = Receiver(limits.memory << 20)
        self._sender = Sender()
        self._heard = now
        self._messages: deque[bytes] = deque()
        self._queued = 0        # bytes of them
        self._held = False      # an acknowledgement waits for the queue to get shorter

    # -- frames and time -------------------------------------------------------------------------

    def on_frame(self, incarnation: int, frame: Frame, now: float) -> list[Action]:
        """A frame has come from the program."""
        if self.over:
            return []    # the program has been told, and may have sent many more
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
            return self.fail('the server has no memory for its messages')
        if not acknowledge:
            return []
        if len(self._messages) > QUEUE or self._queued > QUEUED:
            self._held = True
            return []
        return [self._ack()]

    def _check_window(self) -> None:
        """A program that minds the acknowledgements can not get here."""
        waiting = self._queued + self._receiver.pending
        if len(self._messages) > QUEUE + 2 * WINDOW or \
                waiting > self._receiver.limit + QUEUED + 2 * WINDOW * FRAME:
            raise RrtoError('it sends more than it may while others wait to be executed')

    def on_ack(self, incarnation: int, number: int, error: str, now: float) -> list[Action]:
        """The program says how far it has taken the replies, or that it ends."""
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
        """End the session if it has been silent for too long."""
        return self.fail('it was silent for too long', False) if now >= self.deadline else []

    @property
    def deadline(self) -> float:
        """Time at which `on_time` has something to do."""
        return self._heard + self.limits.lease

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
        """The next message to execute, if there is one; say `on_done` afterwards."""
        if not self._messages or self._sender.waiting > QUEUED:   # it has to take replies first
            return None
        message = self._messages.popleft()
        self._queued -= len(message)
        return message

    def on_reply(self, reply: bytes) -> list[Action]:
        """Executing a message has given this."""
        if self.over:
            return []
        self._sender.offer(reply)
        return self._send()

    def on_done(self) -> list[Action]:
        """A message has been executed."""
        if self.over or not self._held or len(self._messages) > QUEUE // 2 \
                or self._queued > QUEUED // 2:
            return []
        self._held = False
        return [self._ack()]

    def _ack(self) -> SendAck:
        return SendAck(self.program, self.incarnation, self._receiver.next)

    def _send(self) -> list[Action]:
        return [SendFrame(self.program, self.incarnation, f) for f in self._sender.poll()]
