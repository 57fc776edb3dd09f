"""The server's protocol: sessions of programs, their streams and leases. Sans-I/O.

What a message does is `perform.Performer`'s business; a shell executes one message at a time and
sessions take turns. Nothing that one program sends touches another one's session.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleet_env.settings import Settings, setting

from .errors import RrtoError
from .stream import Frame, Receiver, Sender

PROTOCOL = 1
QUEUE = 256     # messages of a program that wait for execution before it has to wait


class Performs(Protocol):
    """What executes a program's messages: see `perform.Performer`."""

    def perform(self, data: bytes) -> list[bytes]:
        """Execute a message and return the replies."""

    def close(self) -> None:
        """Free everything."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Fields as in rrto_msgs/Open."""

    protocol: int
    program: str
    incarnation: int
    torch: str
    operators: str


class Limits(Settings):
    """What one server serves."""

    programs: int = setting(16, 'most programs at a time', ge=1, le=1024)
    memory: int = setting(4096, 'most memory for the tensors of one program', 'MiB', ge=1,
                          le=1 << 20)
    weights: int = setting(4096, 'most memory for weights, kept for programs that come again',
                           'MiB', ge=0, le=1 << 20)
    lease: float = setting(10.0, 'silence after which a program is forgotten', 's', ge=1.0,
                           le=3600.0)


@dataclass(frozen=True, slots=True)
class Join:
    """Create the topics of a program."""

    program: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Remove the topics of a program."""

    program: str
    reason: str


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Send a frame to a program."""

    program: str
    incarnation: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class SendAck:
    """Say how far a program's frames were taken; an `error` ends its session."""

    program: str
    incarnation: int
    number: int
    error: str = ''


Action = Join | Leave | SendFrame | SendAck


@dataclass(eq=False)
class Session:
    """One program."""

    program: str
    incarnation: int
    performer: Performs
    receiver: Receiver
    heard: float
    sender: Sender = field(default_factory=Sender)
    messages: deque[bytes] = field(default_factory=deque)
    held: bool = False      # an acknowledgement waits for the queue to get shorter
    busy: bool = False      # a message is being executed
    over: bool = False


@dataclass(frozen=True, eq=False)
class Work:
    """A message to execute now."""

    session: Session
    message: bytes


class ServerMachine:
    """Sessions of one server; `performer()` makes what executes a new program's messages."""

    def __init__(self, performer: Callable[[], Performs], torch: str, operators: str,
                 limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.messages = 0
        self._performer = performer
        self._torch, self._operators = torch, operators
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # whoever computes goes last

    @property
    def sessions(self) -> Sequence[Session]:
        """The programs that are connected."""
        return list(self._sessions.values())

    # -- sessions --------------------------------------------------------------------------------

    def on_open(self, request: OpenRequest, now: float) -> tuple[str, list[Action]]:
        """A program wants to use this server; returns why not, or ''."""
        refusal = self._refusal(request)
        if refusal:
            return refusal, []
        session = self._sessions.get(request.program)
        if session is not None and session.incarnation == request.incarnation:
            return '', []
        actions = self._end(session, 'it began again') if session is not None else []
        self._sessions[request.program] = Session(
            request.program, request.incarnation, self._performer(),
            Receiver(self.limits.memory << 20), now)
        return '', [*actions, Join(request.program)]

    def _refusal(self, request: OpenRequest) -> str:
        if request.protocol != PROTOCOL:
            return (f'the program speaks version {request.protocol} of the protocol, this server '
                    f'{PROTOCOL}: install the same rrto on both')
        if request.operators != self._operators:
            return (f'PyTorch {request.torch} and the server\'s {self._torch} have different '
                    'operators: install the same version on both')
        parts = request.program.split('_')
        if not all(p.isalnum() and p.isascii() for p in parts) or len(request.program) > 100:
            return f'{request.program[:100]!r} is no name for a program'
        if request.program not in self._sessions and len(self._sessions) >= self.limits.programs:
            return f'{len(self._sessions)} programs are connected already, which is the limit'
        return ''

    def _end(self, session: Session, reason: str) -> list[Action]:
        del self._sessions[session.program]
        session.over = True
        session.messages.clear()
        if not session.busy:
            session.performer.close()
        return [Leave(session.program, reason)]

    def _fail(self, session: Session, reason: str) -> list[Action]:
        return [SendAck(session.program, session.incarnation, session.receiver.next, reason),
                *self._end(session, reason)]

    def close(self) -> list[Action]:
        """The server ends: tell every program."""
        return [action for session in self.sessions
                for action in self._fail(session, 'the server has ended')]

    # -- frames and time -------------------------------------------------------------------------

    def on_frame(self, program: str, incarnation: int, frame: Frame, now: float) -> list[Action]:
        """A frame has come from a program."""
        session = self._session(program, incarnation, now)
        if session is None:
            return [SendAck(program, incarnation, 0, 'the server does not know this session')]
        try:
            message, acknowledge = session.receiver.take(frame)
        except RrtoError as error:
            return self._fail(session, str(error))
        if message is not None:
            session.messages.append(message)
        if not acknowledge:
            return []
        if len(session.messages) > QUEUE:
            session.held = True
            return []
        return [SendAck(program, incarnation, session.receiver.next)]

    def on_ack(self, program: str, incarnation: int, number: int, error: str, now: float
               ) -> list[Action]:
        """A program says how far it has taken the replies, or that it ends."""
        session = self._session(program, incarnation, now)
        if session is None:
            return []
        if error:
            return self._end(session, error[:200])
        try:
            session.sender.on_ack(number)
        except RrtoError as wrong:
            return self._fail(session, str(wrong))
        return self._send(session)

    def _session(self, program: str, incarnation: int, now: float) -> Session | None:
        session = self._sessions.get(program)
        if session is None or session.incarnation != incarnation:
            return None
        session.heard = now
        return session

    def on_time(self, now: float) -> list[Action]:
        """End the sessions that have been silent for too long."""
        silent = [s for s in self._sessions.values() if s.heard + self.limits.lease <= now]
        return [action for s in silent for action in self._end(s, 'it was silent for too long')]

    @property
    def deadline(self) -> float:
        """Time at which `on_time` has something to do."""
        return min((s.heard + self.limits.lease for s in self._sessions.values()),
                   default=math.inf)

    # -- execution -------------------------------------------------------------------------------

    def work(self) -> Work | None:
        """The next message to execute, if there is one; say `on_done` afterwards."""
        for session in self._sessions.values():
            if session.messages and not session.busy:
                self._sessions.move_to_end(session.program)
                session.busy = True
                return Work(session, session.messages.popleft())
        return None

    def on_done(self, work: Work, replies: Sequence[bytes], error: str) -> list[Action]:
        """A message has been executed; `error`: it was none, which ends its session."""
        session = work.session
        session.busy = False
        self.messages += 1
        if session.over:
            session.performer.close()
            return []
        if error:
            return self._fail(session, error)
        for reply in replies:
            session.sender.offer(reply)
        actions = self._send(session)
        if session.held and len(session.messages) <= QUEUE // 2:
            session.held = False
            actions.append(SendAck(session.program, session.incarnation, session.receiver.next))
        return actions

    def _send(self, session: Session) -> list[Action]:
        return [SendFrame(session.program, session.incarnation, f) for f in session.sender.poll()]
