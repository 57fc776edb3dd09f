"""The client's protocol, without I/O: connect to a server, use it, and run without it.

    OPENING -> [UPLOADING ->] PLANNING -> CHECKING -> OPEN
                                            ^-----------'   fallback, or no answer
    any -> OPENING: the server does not know this client, or is silent for long
    any -> [ENDING ->] ENDED: this client ends, and tells the server so, until the server answers

The client shares a request only in OPEN. In every other state the robot computes the request alone,
so no request waits for a server that is known to be gone. CHECKING sends probes until the server
answers a probe.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import fleet_env.settings.base
import numpy as np
from fleet_compute.inlets import Inlets
from fleet_env.settings.base import setting
from fleet_link.arrivals import Arrivals, expanded

from ..errors import RemoteError
from ..planning.plan import DEVICE
from .choice import NO_TABLE, PlanChoice, PlannedTable
from .execution import AnyRun, AnyStep, Execution
from .outbox import Outbox, Route
from .services import MISSING, PREPARING, READY, REFUSED, OpenReply
from .wire import (
    FAILED,
    LEAVING,
    MAX_PIECE,
    MAX_PROBE,
    NO_PLAN,
    NOT_OPEN,
    OK,
    PIXELS,
    PROBE,
    PROBE_PIECES,
    Ack,
    Buffer,
    Piece,
    acknowledge,
    plan_number,
)

OPENING, UPLOADING, PLANNING, CHECKING, OPEN, ENDING, ENDED = (
    'opening', 'uploading', 'planning', 'checking', 'open', 'ending', 'ended')

CALL_LIMIT = 2.0       # seconds without an answer after which a call is repeated
# seconds until a call is repeated if the service is missing or the server is still preparing the
# model or the plans
SOON = 0.2
SAY_AGAIN = 0.1        # seconds after which the client says again that it ends
CHECK_PERIOD = 0.25    # seconds between probes in CHECKING
STANDBY = 10           # a server without inferences is probed so many times less often
SILENCE = 3.0          # seconds without an answer in CHECKING until the client calls `Open` again
# maximum seconds for which the robot works alone after several fallbacks in a row
MAX_PENALTY = 30.0


@dataclass(frozen=True)
class CallOpen:
    """Call the server's service `Open`."""


@dataclass(frozen=True)
class Upload:
    """Send the model's files in the background, then call `on_uploaded`."""


@dataclass(frozen=True)
class MakePlans:
    """Make the plan table for a server, then call `on_plans_made`.

    ``fixed``, ``per_share``: the server's profile, in seconds per operator.
    """

    fixed: np.ndarray
    per_share: np.ndarray


@dataclass(frozen=True)
class CallSetPlans:
    """Call the server's service `SetPlans`."""


Action = Piece | Ack | CallOpen | Upload | MakePlans | CallSetPlans


class PrecisionSettings(fleet_env.settings.base.Settings):
    """The setting of what the robot sends."""

    precision: Literal['exact', 'bfloat16'] = setting(
        'exact', 'exact: what the robot sends arrives bit for bit; bfloat16: its float32 tensors '
                 'are rounded to half the bytes, each element within 0.4 % of its value')


class Settings(PrecisionSettings):
    """Settings of the protocol that users can change.

    ``piece_bytes``: maximum bytes in one piece. If the network loses one packet of a piece, the
    whole piece is lost.
    """

    probe_period: float = setting(0.5, 'time between measurements of an idle link', 's', ge=0.05,
                                  le=60.0)
    probe_bytes: int = setting(64000, 'size of a measurement', 'B', ge=4096, le=MAX_PROBE)
    deadline: float = setting(0.1, 'time that a request waits for the server beyond the expected '
                                   'time; at least as long as the expected time', 's', ge=0.0,
                              le=60.0)
    piece_bytes: int = MAX_PIECE


@dataclass
class Report:
    """Counters since the start, and times of the last request in seconds.

    ``requests``: number of inferences; ``offloaded``: number of inferences that were
    finished with the server; ``fallbacks``: number of inferences that began with the
    server, but were finished on the robot alone. ``bin``: index of the last request's plan.
    ``estimate``: expected latency of this plan; NaN if the robot computed alone.
    ``latency``: measured latency. ``check``: time to detect changes of the model;
    ``estimate`` and ``latency`` include this time. ``device``, ``server``: computing time
    of robot and server. ``transfer``: busy time of uplink plus downlink. ``sent``: bytes that were
    sent for the last request, what was lost included. ``bytes_down``: bytes received since the
    start.
    """

    requests: int = 0
    offloaded: int = 0
    fallbacks: int = 0
    bin: int = 0
    estimate: float = math.nan
    latency: float = math.nan
    check: float = 0.0
    device: float = 0.0
    server: float = 0.0
    transfer: float = 0.0
    sent: int = 0
    bytes_down: int = 0

    @property
    def overlap(self) -> float:
        """Return the seconds saved because both sides and the link worked at the same time."""
        return max(0.0, self.device + self.server + self.transfer - self.latency)


class ClientMachine:
    """State machine of one robot and one model.

    The methods for events return actions; `work` returns steps to compute.
    """

    def __init__(self, incarnation: int, settings: Settings | None = None,
                 report: Report | None = None) -> None:
        self.incarnation = incarnation
        self.standby = False               # whether another server has the inferences
        self.settings = settings or Settings()
        self.state = OPENING
        self.reason = 'not connected yet'  # why the server is not used
        self.alone = ''                    # why the last request in this state was not shared
        self.report = report or Report()
        self.dropped: Counter[str] = Counter()
        self.outbox = Outbox(incarnation, self.settings.piece_bytes)
        self.inlets = Inlets(lambda: self.outbox.link.rate,
                             self.settings.precision != 'exact', changes=True)
        self.down = 0.0                    # rate of the downlink, bytes/s; the server measures it
        self.choice = PlanChoice(NO_TABLE)
        # table to adopt at the end of the present request
        self._next_table: PlannedTable | None = None
        # for each plan of the table, the number that pieces of this plan carry
        self._numbers: list[int] = []
        self._arrivals = Arrivals()
        self._server = 0                   # the server's number of the session
        self._again = -math.inf            # time of the next call or probe
        self._heard = -math.inf            # time of the latest answer from the server
        self._probed = -math.inf           # time of the latest probe
        self._checking = 0  # an acknowledgement of this packet or a later packet ends CHECKING
        self._penalties = 0                # number of consecutive fallbacks
        self._not_before = -math.inf       # time before which the server is not used
        self._number = 0
        self._request: Execution | None = None
        # whether `work` or `state` may have changed; the shell resets this flag
        self.changed = False
        self._abandoned = False
        self._failed = False               # whether the server cannot compute the request
        # expected latency in s: estimate corrected by measurements, plus the time of the check
        self._expected = math.nan
        self._limit = math.inf             # time at which the request stops waiting
        self._own_limit = math.inf         # the same if the server has no other robot's requests
        self._first = 0                    # number of the request's first packet
        self._sent_before = 0              # bytes that were sent before it
        self._sending_since = math.inf
        self._bytes_down = 0               # bytes received in the present request

    # -- connection ------------------------------------------------------------------------------

    def on_open(self, reply: OpenReply, now: float) -> list[Action]:
        """Handle the answer to CallOpen."""
        if self.state != OPENING:
            return []
        self.reason = reply.reason
        if reply.status == PREPARING:
            self._again = now + SOON
            return []
        if reply.status == MISSING:
            self._enter(UPLOADING, 'the server lacks the model')
            return [Upload()]
        if reply.status != READY:
            self._again = now + CALL_LIMIT
            return []
        if reply.incarnation != self._server:
            self._server = reply.incarnation
            self._arrivals = Arrivals()
            self.inlets.restart()
        if reply.planned and self.table.plans:
            self._check(now, 'no answer yet')
            return self.on_time(now)
        self._enter(PLANNING, 'the server has no plans yet')
        if self.table.plans:
            self._again = now
            return self.on_time(now)
        self._again = math.inf
        return [MakePlans(reply.fixed, reply.per_share)]

    def on_model(self, table: PlannedTable, now: float) -> list[Action]:
        """Open another model instead of the present one; no request may be running.

        ``table``: the present plans with the programs of the new model, and then what was measured
        still counts; `NO_TABLE` if the plans do not fit.
        """
        if table.plans:
            self.choice.table = table
        else:
            self.choice = PlanChoice(table)
        self._enter(OPENING, self.reason or 'the model was updated')
        self._again = now
        return self.on_time(now)

    def on_no_service(self, now: float) -> None:
        """Handle a call that found no service: call again soon, because discovery needs time."""
        self._again = now + SOON

    def on_uploaded(self, reason: str, now: float) -> list[Action]:
        """Handle the end of the upload; ``reason``: why the upload failed, '' if it succeeded."""
        if self.state == UPLOADING:
            self._enter(OPENING, reason)
            self._again = now + (CALL_LIMIT if reason else 0.0)
        return self.on_time(now)

    def on_plans_made(self, table: PlannedTable, now: float) -> list[Action]:
        """Adopt a plan table; if a request is running, adopt the table when the request ends."""
        if self._request is not None:
            self._next_table = table
            return []
        self.choice, self._next_table = PlanChoice(table), None
        self._numbers = [plan_number(p.digest) for p in table.plans]
        if self.state in (CHECKING, OPEN):
            self._enter(PLANNING, 'the server gets better plans')
        self._again = now
        return self.on_time(now)

    def on_plans_set(self, status: int, reason: str, now: float) -> list[Action]:
        """Handle the answer to CallSetPlans."""
        if self.state != PLANNING:
            return []
        if status == READY:
            self._check(now, 'no answer yet')
            return self.on_time(now)
        self.reason = reason
        if status == REFUSED:
            self._enter(OPENING, reason)
        self._again = now + (SOON if status == PREPARING else CALL_LIMIT)
        return []

    def leave(self, now: float) -> list[Action]:
        """Tell the server that this client ends; the state is ENDED when the server knows it.

        Then another client may use the name at once.
        """
        known = self.state in (PLANNING, CHECKING, OPEN, ENDING)
        self.outbox.clear()
        self._enter(ENDING if known else ENDED, 'the client was closed')
        self._again = now
        return self.on_time(now)

    def _enter(self, state: str, reason: str) -> None:
        self.state, self.reason, self.alone, self.changed = state, reason, '', True

    def _check(self, now: float, reason: str) -> None:
        """Start probing; the server is used again after it answers a probe."""
        self._enter(CHECKING, reason)
        self._checking = self.outbox.link.sent
        self._heard = self._again = now

    # -- requests --------------------------------------------------------------------------------

    def choose(self, now: float, check: float = 0.0) -> int | None:
        """Return the index of the plan for a request that begins now.

        Return None if the robot computes the request alone. ``check``: seconds that the request has
        already spent on detecting changes of the model.
        """
        self.report.requests += 1
        self.report.check = check
        choice, expected = self.choice, math.nan
        choice.choose_alone()
        self.alone = self.why_alone(now)
        if not self.alone:
            expected = choice.choose(self.rates, now)
            if not choice.shares():
                self.alone = choice.why_alone(self.rates)
        self._expected = expected + check
        return None if self.alone else choice.plan

    @property
    def table(self) -> PlannedTable:
        """Return the plans from which `choose` chooses."""
        return self.choice.table

    @property
    def rates(self) -> tuple[float, float]:
        """Return the rates of uplink and downlink, bytes/s.

        Until the server has measured the downlink, return the rate of the uplink for both.
        """
        up = self.outbox.link.rate
        return up, self.down or up

    def expected(self, now: float) -> float:
        """Return the latency in s that a request would have now; infinite without the server.

        A latency that is unknown counts as longer than any other, but not as infinite.
        """
        if self.why_alone(now):
            return math.inf
        expected = self.choice.choose(self.rates, now)
        return expected if math.isfinite(expected) else sys.float_info.max

    def why_alone(self, now: float) -> str:
        """Return why the server is not used now; '' if it can be used."""
        if self.state != OPEN:
            return f'{self.state}: {self.reason}' if self.reason else self.state
        if now < self._not_before:
            late = 'once' if self._penalties == 1 else f'{self._penalties} times in a row'
            return (f'the server was late {late}; the robot uses it again in '
                    f'{self._not_before - now:.1f} s')
        return ''

    def begin(self, bin_: int, steps: Sequence[AnyStep], run: AnyRun, now: float) -> Execution:
        """Begin a request with the plan from `choose`; drop the previous request.

        Return the new request. The caller passes the steps from `work` to the request's method
        `compute`.
        """
        plan = self.table.plans[bin_]
        self._number += 1
        self.outbox.clear()
        estimate = self._expected
        known = estimate if math.isfinite(estimate) else 1.0
        self._own_limit = self._limit = \
            now + self.choice.patience(known, self.settings.deadline, now)
        route = Route(self._number, self._numbers[bin_], bin_, self._limit)
        self._request = Execution(DEVICE, route, steps, plan.transfers, run, self.inlets)
        self._abandoned = self._failed = False
        self._first, self._sent_before = self.outbox.link.sent, self.outbox.bytes_sent
        self._bytes_down = 0
        report = self.report
        report.bin, report.estimate = bin_, estimate
        report.device = report.server = report.transfer = 0.0
        return self._request

    def work(self, now: float) -> range | None:
        """Return the steps to compute now.

        An empty range means that the request must wait for the server. None means that the robot
        must finish the request alone.
        """
        assert self._request is not None
        steps = self._request.runnable()
        if not steps and not self._abandoned and now >= self._limit:
            self._abandon(now)
        return None if self._abandoned else steps

    def on_computed(self, pieces: Sequence[tuple[int, Buffer]], seconds: float, now: float
                    ) -> list[Action]:
        """Send ``pieces``, the results of the steps from `work`; ``seconds``: computing time."""
        request = self._request
        assert request is not None
        self.report.device += seconds
        if self._abandoned:
            return []
        for transfer, data in pieces:
            self.outbox.offer(request.route, transfer, data)
        return self._send(now)

    @property
    def finished(self) -> bool:
        """Return whether the request has all its outputs."""
        return self._request is not None and self._request.done

    def end(self, now: float, started: float) -> list[Action]:
        """Finish a request and record its times; ``started``: time at which the request began."""
        report = self.report
        report.latency = now - started
        self.choice.note(report.latency - report.check, now)
        self.inlets.note(self._number if self._request is not None and self._request.done else 0)
        if self._request is None:      # the robot has computed the request alone
            report.bin, report.estimate = 0, math.nan
            report.device, report.server, report.transfer = report.latency, 0.0, 0.0
            report.sent = 0
            return []
        if self._request.done:
            report.offloaded += 1
            self._penalties = 0
        self._note_sending(now)
        report.transfer += self._bytes_down / self.rates[1]
        report.sent = self.outbox.bytes_sent - self._sent_before
        self._request = None
        self.outbox.clear()
        return self.on_plans_made(self._next_table, now) if self._next_table is not None else []

    def _abandon(self, now: float) -> None:
        self._abandoned = True
        self.report.fallbacks += 1
        self.outbox.clear()
        self._not_before = now + min(CHECK_PERIOD * 2 ** self._penalties, MAX_PENALTY)
        self._penalties += 1
        if self.state == OPEN:
            self._check(now, 'the server could not compute the request' if self._failed else
                        'the server did not answer in time')

    # -- the link --------------------------------------------------------------------------------

    def on_piece(self, piece: Piece, now: float) -> list[Action]:
        """Handle a piece from the server.

        A late piece is dropped, but acknowledged, so that the server does not send it again.
        """
        if piece.incarnation != self.incarnation:
            self.dropped['foreign'] += 1
            return []
        try:
            piece.verify()
            request = self._request
            self.report.bytes_down += len(piece.data)
            if piece.transfer != PROBE:
                self._bytes_down += len(piece.data)
                if request is None or self._abandoned or piece.request != request.route.request:
                    self.dropped['late'] += 1
                elif request.take(piece):
                    self.report.server = piece.busy
                    self.changed = True
        except RemoteError:
            self.dropped['corrupt'] += 1
            return []
        self.outbox.link.on_heard(now)
        return [acknowledge(self._arrivals, piece, now)]

    def on_ack(self, ack: Ack, now: float) -> list[Action]:
        """Handle an acknowledgement from the server."""
        if ack.incarnation != self.incarnation:
            self.dropped['foreign'] += 1
            return []
        if ack.status == NOT_OPEN and self.state == ENDING:
            self._enter(ENDED, self.reason)
            return []
        try:
            self.outbox.on_ack(ack, now)
        except RemoteError:
            self.dropped['corrupt'] += 1
            return []
        self._heard = now
        self.inlets.files &= ack.status != PIXELS
        if 0 < ack.rate < math.inf:
            self.down = ack.rate
        if 0 < ack.wait < math.inf and self._request is not None and not self._failed \
                and expanded(ack.packet, self._first) >= self._first:
            self._limit = max(self._limit, self._own_limit + self.choice.wait(ack.wait, now))
        if ack.status == FAILED and self._request is not None \
                and expanded(ack.packet, self._first) >= self._first:
            self._failed, self._limit, self.changed = True, now, True
        if ack.status == LEAVING and self.state in (CHECKING, OPEN):
            self._enter(OPENING, 'the server takes no new requests')   # this one goes on
            self._again = now + CALL_LIMIT
        if ack.status in (NOT_OPEN, NO_PLAN) and self.state in (CHECKING, OPEN):
            if ack.status == NOT_OPEN:
                self._enter(OPENING, 'the server does not know this client')
            else:
                self._enter(PLANNING, 'the server does not have the plans')
            self._again = self._limit = now
            return self.on_time(now)
        if ack.status in (OK, PIXELS) and self.state == CHECKING and self.outbox.link.known \
                and expanded(ack.packet, self._checking) >= self._checking:
            self._enter(OPEN, '')
            self._again = now + self.settings.probe_period
        return self._send(now)

    def on_time(self, now: float) -> list[Action]:
        """Perform all due actions; call this at `deadline`."""
        # Call `_send` first: it counts overdue pieces as lost. A probe can start only when no piece
        # waits to be sent or acknowledged.
        actions = self._send(now)
        if self.state in (OPENING, PLANNING) and now >= self._again:
            self._again = now + CALL_LIMIT
            actions.append(CallOpen() if self.state == OPENING else CallSetPlans())
        elif self.state == ENDING and now >= self._again:
            self._again = now + SAY_AGAIN
            actions.append(Ack(0, 0, now, self.incarnation, LEAVING))
        elif self.state in (CHECKING, OPEN):
            self._probe(now)
        return actions + self._send(now)

    def _probe(self, now: float) -> None:
        if self.state == CHECKING and now >= self._heard + SILENCE:
            self._enter(OPENING, 'the server is silent')
            self._again = now
            return
        if now < self._again:
            return
        period = CHECK_PERIOD if self.state != OPEN else \
            self.settings.probe_period * (STANDBY if self.standby else 1)
        self._again = now + period
        if not self.outbox.idle or (self.state == OPEN and self._request is not None):
            return
        if self.state == OPEN and self._probed > self._heard:
            self._check(now, 'the server does not answer')
        self._probed = now
        self.outbox.probe(self.settings.probe_bytes, PROBE_PIECES)

    def _send(self, now: float) -> list[Action]:
        pieces: list[Action] = list(self.outbox.poll(now))
        self._note_sending(now)
        return pieces

    def _note_sending(self, now: float) -> None:
        """Add to the report the time in which pieces of the request were in flight."""
        if self._sending_since < now:
            self.report.transfer += now - self._sending_since
        busy = self._request is not None and not self.outbox.idle
        self._sending_since = now if busy else math.inf

    @property
    def deadline(self) -> float:
        """Return the time at which `on_time` must run if no event comes before."""
        at = min(math.inf if self.state == ENDED else self._again, self.outbox.deadline)
        if self.state == CHECKING:
            at = min(at, self._heard + SILENCE)
        return at

    @property
    def limit(self) -> float:
        """Return the time at which the present request stops waiting for the server."""
        return self._limit
