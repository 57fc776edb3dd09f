"""The server's supervisor: decides which programs get a process, and when. Sans-I/O.

Each admitted program gets its own process on the server (see `session`), with its own topics. If
a program makes its process fail, the supervisor and the other processes continue.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from fleet_env.settings.base import Settings, setting

from ..protocol.messages import ENDED, PROTOCOL, OpenRequest
from ..protocol.names import MAX_NAME, is_graph_name

AT_ONCE = 4     # number of processes that may start one after another without a pause
PACE = 1.0      # seconds between further starts; each start slows the other processes down
FAULT = 4.0     # seconds by which a process that has failed delays the next start
LONGEST = 10.0  # maximum delay of the next start, in seconds


class Limits(Settings):
    """The limits of one server."""

    programs: int = setting(16, 'most programs at a time', ge=1, le=1024)
    memory: int = setting(4096, 'most memory for the tensors of one program', 'MiB', ge=1,
                          le=1 << 20)
    lease: float = setting(10.0, 'silence after which a program is dropped', 's', ge=1.0,
                           le=3600.0)
    operator: float = setting(60.0, 'longest duration of one operator; then the server ends the '
                                    "program's process", 's', ge=1.0, le=86400.0)


@dataclass(frozen=True, slots=True)
class Begin:
    """Start the process of a program."""

    program: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill the process of a program."""

    program: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Release the supervisor's objects for a program whose process has ended."""

    program: str
    reason: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell a program that its session is over, and why."""

    program: str
    incarnation: int
    reason: str


Action = Begin | Kill | Leave | Tell


@dataclass(frozen=True, slots=True)
class Ending:
    """How the process of a program has ended, or why it could not start.

    `status`: exit status, negative for a signal. `reason`: reason of the end; '' if it is unknown.
    `told`: whether the process itself has told the program the reason. `name`: what the process
    began last, an operator or 'a message'; '' if it had begun nothing.
    """

    status: int
    reason: str = ''
    told: bool = False
    name: str = ''


@dataclass(eq=False)
class _Program:
    """A program that the server has admitted."""

    name: str
    incarnation: int
    begun: int = -1         # number of operators and messages that had begun at the last check
    # Time of the last check at which the process was idle or had begun another operator.
    since: float = 0.0
    killed: str = ''        # why the server has killed the process; '' if it has not


class ServerMachine:
    """Decides which programs a server admits, and when their processes start; a state machine."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.paused = False     # whether new programs are refused
        self.leaving = False    # whether the server ends, and refuses new programs
        self.broken = ''        # why new programs are refused permanently
        self._programs: dict[str, _Program] = {}
        self._waiting: deque[Begin] = deque()   # programs whose process has not started yet
        self._paid = -math.inf  # earliest time of the next start; starts and faults delay it

    @property
    def programs(self) -> Sequence[str]:
        """Names of the programs that are connected."""
        return list(self._programs)

    def on_open(self, request: OpenRequest, now: float) -> tuple[str, list[Action]]:
        """Process a program's request to use this server.

        Return (reason of a refusal, actions).

        The reason is '' if the server admits the program. Then the program's process starts now, or
        at `deadline` if many processes have just started. Without this delay, a peer that connects
        again and again under new names could keep the server busy.
        """
        known = self._programs.get(request.program)
        if known is not None and known.incarnation == request.incarnation:
            return '', []   # the program repeats the request because the answer was lost
        refusal = self._refusal(request)
        if refusal:
            return refusal, []
        self._programs[request.program] = _Program(request.program, request.incarnation)
        self._waiting.append(Begin(request.program, request.incarnation))
        return '', self.on_time(now)

    def on_time(self, now: float) -> list[Action]:
        """Start the waiting processes that may start now."""
        actions: list[Action] = []
        while self._waiting and now >= self.deadline:
            actions.append(self._waiting.popleft())
            self._pay(PACE, now)
        return actions

    def _pay(self, seconds: float, now: float) -> None:
        self._paid = min(max(self._paid, now - (AT_ONCE - 1) * PACE) + seconds, now + LONGEST)

    @property
    def deadline(self) -> float:
        """Time at which the next waiting process may start; infinite if none waits."""
        return self._paid if self._waiting else math.inf

    def _refusal(self, request: OpenRequest) -> str:
        if self.broken or self.leaving:
            return self.broken or 'the server ends'
        if self.paused:
            return 'the server is paused: its node is not active'
        if request.protocol != PROTOCOL:
            return (f'the program uses version {request.protocol} of the protocol, this server '
                    f'{PROTOCOL}: install the same rrto on both')
        if not is_graph_name(request.program):
            return (f'the name of a program must have at most {MAX_NAME} letters a to z, digits '
                    'and single underscores between them, and begin with a letter, got '
                    f'{request.program[:MAX_NAME]!r}')
        if request.program in self._programs:
            return (f'a program {request.program!r} is connected; if it has ended, the server '
                    f'drops it after {self.limits.lease:g} s')
        if len(self._programs) >= self.limits.programs:
            return f'the limit of {len(self._programs)} programs is reached'
        return ''

    def on_progress(self, program: str, begun: int, busy: bool, name: str, now: float
                    ) -> list[Action]:
        """Record the progress of a program's process; kill it if an operator takes too long.

        `begun`: number of operators and messages that have begun. `name`: the operator that began
        last. `busy`: whether the process is executing a message.
        """
        known = self._programs[program]
        if not busy or begun != known.begun:
            known.begun, known.since = begun, now
        elif now - known.since > self.limits.operator and not known.killed:
            known.killed = (f'{name} took longer than {self.limits.operator:g} s, which is the '
                            "server's limit (parameter operator)")
            return [Kill(program)]
        return []

    def on_ended(self, program: str, ending: Ending, now: float) -> list[Action]:
        """Handle the end of a program's process, or the failure of its start.

        If the process has not told the program the reason, send the reason to the program now.
        Otherwise the program would wait for a process that does not exist. If the process has
        failed, delay the next start.
        """
        known = self._programs.pop(program, None)
        if known is None:
            return []
        self._waiting = deque(begin for begin in self._waiting if begin.program != program)
        # A process that has told its program the reason had done its work before SIGALRM ended it
        # in `fleet_ros.ending.limit_leaving`. No peer can use this to start processes faster: such
        # a process has kept its place among the programs for longer than `FAULT`.
        hung_leaving = ending.told and ending.status == -signal.SIGALRM
        if ending.status and not hung_leaving:
            self._pay(FAULT, now)
        if ending.told:
            return [Leave(program, ending.reason)]
        error = known.killed or ending.reason or \
            f'its process on the server {_ended(ending.status)} in {ending.name or "its start"}'
        return [Tell(program, known.incarnation, error), Leave(program, error)]

    def leave(self, now: float) -> list[Action]:
        """Admit no more programs; tell those whose process has not started that the server ends."""
        self.leaving = True
        return [action for begin in list(self._waiting)
                for action in self.on_ended(begin.program, Ending(0, ENDED), now)]

    def close(self, reason: str = ENDED) -> list[Action]:
        """Forget all programs; return the actions that send `reason` to each program."""
        actions: list[Action] = []
        for known in self._programs.values():
            actions += [Tell(known.name, known.incarnation, reason), Leave(known.name, reason)]
        self._programs.clear()
        self._waiting.clear()
        return actions


def _ended(status: int) -> str:
    if status >= 0:
        return f'ended with status {status}'
    try:
        return f'was ended by {signal.Signals(-status).name}'
    except ValueError:
        return f'was ended by signal {-status}'
