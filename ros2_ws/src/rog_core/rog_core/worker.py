"""Worker: one robot's side of the protocol, as a state machine.

Source: ROG, Section IV-A, Algorithm 1, on a channel that loses, doubles and reorders. States:

    REGISTERING -> JOINING (snapshot) -> COMPUTING -> PUSHING -> WAITING -> PULLING -> COMPUTING ...
    any -> REGISTERING when the server was restarted or has lost sight of this worker
    any -> STOPPED

Events come in as method calls with the present time (seconds, any monotonic clock); each returns
the actions that the shell must carry out. `deadline` tells when `on_time` is due.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from . import plan as plans
from .accumulator import Accumulator
from .arrays import Array, copy_of, zeros_like
from .codecs import RAW, SMALLER, Codec, get_codec
from .commands import check_command, method_of
from .errors import LocalProtocolError
from .link import CHUNK_TIME, LinkEstimate
from .messages import (
    Ack,
    Action,
    Chunk,
    Command,
    Compute,
    End,
    Kind,
    Receipt,
    RegisterRequest,
    RegisterResponse,
    Send,
    Stop,
    TransferId,
)
from .receiver import Receiver
from .report import COMMUNICATES, COMPUTES, STALLS, TIME_OF, WorkerReport, WorkerStatistics
from .sender import DONE, Sender
from .sync import SyncMethod, parse_sync

REGISTERING, JOINING, COMPUTING = 'registering', 'joining', 'computing'
PUSHING, WAITING, PULLING, STOPPED = 'pushing', 'waiting', 'pulling', 'stopped'
REGISTER_INTERVAL = 1.0      # seconds between the first two registration attempts
MAX_REGISTER_INTERVAL = 4.0  # it doubles up to here: over a slow link an answer may take longer


class WorkerMachine:
    """See the module. ``incarnation``: random 64-bit identity of this life of the worker.

    ``traffic``: see `LinkEstimate.scale`. ``chunk_time``: seconds of the link that a chunk takes.
    """

    def __init__(self, robot: str, incarnation: int, accumulator: Accumulator,
                 codec: str = 'onebit', f1: float = 1.0, f2: float = 1.0,
                 max_chunk: int = 14000, traffic: float = 1.0,
                 chunk_time: float = CHUNK_TIME) -> None:
        self.robot, self.incarnation, self.accumulator = robot, incarnation, accumulator
        self.codec: Codec = get_codec(codec)
        self.f1, self.f2 = f1, f2
        self.partition = accumulator.partition
        self.link = LinkEstimate(max_chunk, traffic, chunk_time)
        self.statistics = WorkerStatistics()
        self.state = REGISTERING
        self.iteration = 0               # iteration being computed or pushed
        self.command = Command()
        self.method: SyncMethod = parse_sync('bsp')
        self.server = 0                  # incarnation of the server that has accepted us
        self.push: Sender | None = None
        self.pull: Receiver | None = None
        self.pushed_at = np.zeros(self.partition.rows, np.int64)
        self.last_pushed_rows = 0
        self.last_pulled_rows = 0
        self._attempt = 0
        self._requests = 0
        self._busy = False               # a gradient is being computed,
        self._order: Compute | None = None  # this one, or the last one
        self._full: Array | None = None  # takes in the fleet's full gradient
        self._ready: Callable[[], None] | None = None  # puts a gradient in that was computed early
        self._unknown = 0                # reports in a row of a server that does not know us
        self._register_at = math.inf
        self._register_interval = REGISTER_INTERVAL
        self._since = 0.0                # time of the last change of state

    # -- registration ----------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Begin: ask the server to let this worker join."""
        self._since = now
        return self._register(now)

    def _register(self, now: float) -> list[Action]:
        self._enter(REGISTERING, now)
        if self._busy:  # a snapshot may come before the gradient is there
            self.accumulator.detach()
        self._order = self._order and replace(self._order, iteration=0)  # of no session
        self.accumulator.anchor = None
        self._register_at = now + self._register_interval
        self._requests += 1
        parameters = tuple((p.name, p.shape) for p in self.partition.parameters)
        known = self.pull is not None and self.pull.incarnation == self.session
        return [Send(self.robot, RegisterRequest(
            self.robot, self.incarnation, self.iteration, self._attempt,
            self.partition.granularity, self.codec.name, self.partition.digest, parameters,
            number=self._requests, pull=self.pull.known() if known and self.pull else None))]

    def on_register_response(self, response: RegisterResponse, now: float) -> list[Action]:
        """Take the server's answer. A final refusal stops the worker with the server's reason."""
        if self.state != REGISTERING:
            return []
        if not response.accepted:
            if response.retry:  # the link is fine, the time is not come
                self._register_interval = REGISTER_INTERVAL
                self._register_at = now + REGISTER_INTERVAL
                return []
            self._enter(STOPPED, now)
            self._register_at = math.inf
            return [Stop(response.reason)]
        self.method = method_of(response.sync)
        self.server = response.incarnation
        self._register_at = math.inf
        self._resolve_push(response.push)
        if self.pull is None or self.pull.incarnation != self.session:
            kinds = frozenset({Kind.PULL, Kind.SNAPSHOT, Kind.FINAL, Kind.ANCHOR})
            self.pull = Receiver(self.partition, kinds, self._apply, self.session, self.codec)
        self.pull.floor = response.attempt
        self._unknown = 0
        self._register_interval = REGISTER_INTERVAL
        self._enter(JOINING, now)
        return []

    @property
    def session(self) -> int:
        """Identity of the present lives of worker and server, carried by every transfer."""
        return self.incarnation ^ self.server

    def on_server_status(self, incarnation: int, known: bool, now: float) -> list[Action]:
        """Take the server's heartbeat; ``known``: it counts this life of ours as a member.

        A server that was restarted, or that gave us up, is asked again to let us join.
        """
        if self.state in (REGISTERING, STOPPED):
            return []
        missed = not known or incarnation != self.server
        self._unknown = self._unknown + 1 if missed else 0
        # One such report may have been under way while the server let us in.
        return self._register(now) if self._unknown >= 2 else []

    def _resolve_push(self, receipt: Receipt | None) -> None:
        """An open push ends with what the server says it has of it; the rest stays with us."""
        if self.push is None:
            return
        if self.push.state != DONE:
            match = receipt is not None and receipt.transfer == self.push.transfer
            self.push.abort(receipt if match else None)
        coded = self.command.work is not None
        if self.push.transfer.kind == Kind.PUSH and not coded:
            self.accumulator.put_back(self.push.codec, self.push.untaken())
        if coded and not ('feedback' in self.method.options and self.push.complete()):
            self.accumulator.clear()
        self.push = None

    # -- computing and pushing -------------------------------------------------------------------

    def on_gradient(self, now: float, accumulate: Callable[[], None] | None = None
                    ) -> list[Action]:
        """The gradient of the last `Compute` is there: push it.

        ``accumulate`` puts it in the accumulator; it is called here, or later if rows of the
        iteration before still travel (pipelining). None: it is in there already.
        """
        if not self._busy:
            raise LocalProtocolError('on_gradient without a Compute action before it')
        self.settle(now)
        self._busy = False
        if self.state == COMPUTING and not self._wanted():
            return self._compute(self.iteration)
        if self.state in (PUSHING, WAITING, PULLING):
            self._ready = accumulate or (lambda: None)
            return []
        if self.state != COMPUTING and self._order is not None and self._order.work is not None:
            return []  # it is of a round that is over, and the next has a gradient of its own
        if accumulate is not None:
            accumulate()
        if self.state != COMPUTING:  # it stays in the accumulator; a join is under way
            return []
        return self._start_push(now)

    def accumulate(self, gradient: Array, learning_rate: float, momentum: float = 0.9,
                   weight_decay: float = 0.0, nesterov: bool = True) -> None:
        """Put the gradient of the last `Compute` where the method wants it; it must be finite.

        Learning rate, momentum and weight decay are the program's; where momentum is the server's
        it has no effect here.
        """
        order = self._order
        if order is not None and order.full:
            self.accumulator.full = copy_of(gradient)
            return
        if self.method.global_momentum:
            momentum = 0.0
        if order is not None and order.work is not None:
            weight_decay *= sum(order.work.weights)
        self.accumulator.accumulate(gradient, learning_rate, momentum, weight_decay, nesterov)

    def _wanted(self) -> bool:
        """Whether the gradient that was computed is what was granted.

        One of a batch may be that of any iteration. What is coded, or full, is so only in its own.
        """
        asked, made = self._asked(self.iteration), self._order
        if asked.work is None and not asked.full:
            return made is None or (made.work is None and not made.full)
        return asked == made

    def _asked(self, iteration: int) -> Compute:
        full = self.method.is_full(iteration) and self.command.work is None
        return Compute(iteration, self.command.work, full)

    def _start_push(self, now: float) -> list[Action]:
        self._attempt += 1
        full = self._order is not None and self._order.full
        transfer = TransferId(self.session, Kind.ANCHOR if full else Kind.PUSH, self.iteration,
                              self._attempt)
        if full:
            cut, gradient = self.partition.raw_cut, self.accumulator.full
            self.push = Sender(transfer, cut, plans.everything(cut), RAW,
                               lambda ids: RAW.snapshot(cut, gradient, ids), self.link, now)
        else:
            plan = self._push_plan()
            codec = self._push_codec(plan)
            self.push = Sender(transfer, self.partition, plan, codec,
                               lambda ids: self.accumulator.take(codec, ids), self.link, now)
        self._enter(PUSHING, now)
        return [*self._poll(now), *self._compute_ahead()]

    def _compute_ahead(self) -> list[Action]:
        """Pipelining: go on with the model as it is, if RSP would let this worker go on anyhow.

        The slowest row of the fleet was ``staleness`` behind the former iteration when this one was
        granted, and it can only have come closer.
        """
        if 'pipeline' not in self.method.options \
                or self.command.staleness + 1 >= self.method.bound:
            return []
        self.accumulator.detach()
        return self._compute(self.iteration + 1, ahead=1)

    def _compute(self, iteration: int, ahead: int = 0) -> list[Action]:
        self.accumulator.publish(ahead)
        self._busy = True
        self._order = self._asked(iteration)
        return [self._order]

    def _push_codec(self, plan: plans.Plan) -> Codec:
        """The ternary code where the ordinary one would keep the fleet waiting."""
        if 'sparse' not in self.method.options:
            return self.codec
        return plans.affordable(plan, self.partition, self.codec, SMALLER, self.link.rate,
                                self.command.patience)

    def _push_plan(self) -> plans.Plan:
        if not self.method.adaptive:
            return plans.everything(self.partition)
        age = self.pushed_at.max() - self.pushed_at
        scores = plans.importance(self.accumulator.mean_magnitude(), age, self.f1, self.f2)
        overdue = self.iteration - self.pushed_at >= self.method.bound
        return plans.adaptive(self.partition, self.method, scores, overdue & self.method.by_row,
                              np.ones(self.partition.rows, bool), self.command.mta_time)

    def on_ack(self, ack: Ack, now: float) -> list[Action]:
        """Chunks of our push have arrived."""
        if self.push is None:
            return []
        self.push.on_ack(ack, now)
        return self._poll(now)

    def on_receipt(self, receipt: Receipt, now: float) -> list[Action]:
        """The server has closed our push and says what it took."""
        if self.state != PUSHING or self.push is None or not self.push.on_receipt(receipt, now):
            return []
        complete = self.push.partition.rows_complete(self.push.taken())
        self.pushed_at[complete] = self.iteration
        self.last_pushed_rows = int(complete.sum())
        self.statistics.rows_pushed += self.last_pushed_rows
        self._resolve_push(None)
        self._enter(WAITING, now)
        return []

    # -- pulling ---------------------------------------------------------------------------------

    def _apply(self, transfer: TransferId, ids: np.ndarray, codec: Codec, data: np.ndarray) -> None:
        store = self.accumulator
        if transfer.kind == Kind.ANCHOR:
            if self._full is None:
                self._full = zeros_like(store.weights)
            RAW.store(self.partition.raw_cut, self._full, ids, data)
        elif transfer.kind.is_raw:
            RAW.store(self.partition.raw_cut, store.weights, ids, data)
        else:
            codec.add(self.partition, store.weights, ids, data)

    def on_chunk(self, chunk: Chunk, now: float) -> list[Action]:
        """Rows from the server."""
        if self.pull is None or self.state in (REGISTERING, STOPPED):
            return []
        before = self.pull.bytes_received
        ack = self.pull.on_chunk(chunk)
        self.statistics.bytes_received += self.pull.bytes_received - before
        if self.state == WAITING and ack is not None:
            self._enter(PULLING, now)
        return [Send(self.robot, ack)] if ack is not None else []

    def on_end(self, end: End, now: float) -> list[Action]:
        """The server has closed a pull or snapshot and says how to go on."""
        if self.pull is None or self.state == REGISTERING:
            return []
        if self.state == PUSHING and not self.pull.is_closed(end.transfer):
            return []  # our push's receipt is still on its way; the end comes again
        check_command(end)
        closed = self.pull.on_end(end)
        if closed is None:
            return []
        receipt, taken = closed
        actions: list[Action] = [Send(self.robot, receipt)]
        if taken is None or self.state == STOPPED:
            return actions
        cut = self.partition.raw_cut if end.transfer.kind.is_raw else self.partition
        self.last_pulled_rows = int(cut.rows_complete(taken).sum())
        self.statistics.rows_pulled += self.last_pulled_rows
        command = end.command
        if command.stop:
            self._enter(STOPPED, now)
            self.accumulator.publish()
            return [*actions, Stop()]
        if end.transfer.kind == Kind.ANCHOR and self._full is not None:
            self.accumulator.anchor = copy_of(self.accumulator.weights), self._full
            self._full = None
        if end.transfer.kind in (Kind.PULL, Kind.ANCHOR):
            actions += self._go_on(command, now)
        return actions

    def _go_on(self, command: Command, now: float) -> list[Action]:
        if self.state == JOINING:
            self.pushed_at[:] = command.next_iteration - 1
        self._enter(COMPUTING, now)
        if (self.command.work is None) != (command.work is None):
            self.accumulator.clear()  # what is left there is no gradient for this method
        self.method, self.command = method_of(command.sync), command
        self.iteration = command.next_iteration
        if self._ready is not None and not self._wanted():
            self._ready = None
        if self._ready is not None:
            return self._push_ready(now)
        if self._busy:  # it becomes that of the iteration granted now, or is not wanted
            return []
        return self._compute(self.iteration)

    def _push_ready(self, now: float) -> list[Action]:
        accumulate, self._ready = self._ready, None
        assert accumulate is not None
        accumulate()
        return self._start_push(now)

    # -- time ------------------------------------------------------------------------------------

    def _poll(self, now: float) -> list[Action]:
        if self.push is None:
            return []
        before = self.push.bytes_sent
        actions: list[Action] = [Send(self.robot, m) for m in self.push.poll(now)]
        self.statistics.bytes_sent += self.push.bytes_sent - before
        return actions

    def on_time(self, now: float) -> list[Action]:
        """Carry out what is due."""
        if self.state == REGISTERING:
            if now < self._register_at:
                return []
            self._register_interval = min(2 * self._register_interval, MAX_REGISTER_INTERVAL)
            return self._register(now)
        return self._poll(now) if self.state == PUSHING else []

    @property
    def deadline(self) -> float:
        """Time at which `on_time` is due; infinity: never."""
        if self.state == REGISTERING:
            return self._register_at
        if self.state == PUSHING and self.push is not None:
            return self.push.deadline
        return math.inf

    def leave(self, now: float) -> None:
        """Stop here and now, on the user's word."""
        self._enter(STOPPED, now)

    def _enter(self, state: str, now: float) -> None:
        self.settle(now)
        self.state = state

    @property
    def activity(self) -> str:
        """What the robot does, for its power: computing, communicating or stalled."""
        if self._busy:
            return COMPUTES
        return COMMUNICATES if self.state in (PUSHING, PULLING) else STALLS

    def settle(self, now: float) -> None:
        """Book the time since the last change of state."""
        began = self.command.next_iteration > 0  # before the first grant nothing counts
        if began and self.state != STOPPED:
            name = TIME_OF[self.activity]
            setattr(self.statistics, name,
                    getattr(self.statistics, name) + max(now - self._since, 0.0))
        self._since = now

    @property
    def finished(self) -> int:
        """Iterations whose gradient has been computed."""
        return max(self.iteration - (self.state == COMPUTING), 0)

    def report(self, now: float) -> WorkerReport:
        """What is known at this time."""
        self.settle(now)
        counted = self.statistics
        return WorkerReport(
            self.state, str(self.method), self.finished,
            self.command.staleness, self.partition.rows, self.last_pushed_rows,
            self.last_pulled_rows, self.link.rate * 8e-6, counted.compute_time,
            counted.communicate_time, counted.stall_time, counted.bytes_sent,
            counted.bytes_received)
