"""Worker: one robot's side of the protocol, as a state machine.

Source: ROG, Section IV-A, Algorithm 1, on a channel that loses, doubles and reorders. What state
follows on which event stands in `rog_core.states`: `WORKER`, and beside it `GRADIENT`, because with
pipelining a worker computes while it pushes, waits and pulls.

Events come in as method calls with the present time (seconds, any monotonic clock); each returns
the actions that the shell must carry out. `deadline` tells when `on_time` is due.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .accumulator import Accumulator
from .arrays import Array, copy_of, zeros_like
from .codecs import RAW, SMALLER, Codec, get_codec
from .config import SgdConfig, TransferConfig
from .errors import LocalProtocolError
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
from .mirror import Whole
from .report import COMMUNICATES, COMPUTES, STALLS, TIME_OF, WorkerReport, WorkerStatistics
from .states import (
    BUSY,
    COMPUTING,
    DONE,
    GRADIENT,
    IDLE,
    JOINING,
    PULLING,
    PUSHING,
    READY,
    REGISTERING,
    STOPPED,
    WAITING,
    WORKER,
)
from .transfer import plan as plans
from .transfer.link import LinkEstimate
from .transfer.receiver import Receiver, Rows
from .transfer.sender import Sender

REGISTER_INTERVAL = 1.0      # seconds between the first two registration attempts
MAX_REGISTER_INTERVAL = 4.0  # it doubles up to here: over a slow link an answer may take longer


class WorkerMachine:
    """See the module. ``incarnation``: random 64-bit identity of this life of the worker."""

    def __init__(self, robot: str, incarnation: int, accumulator: Accumulator,
                 config: TransferConfig) -> None:
        self.robot, self.incarnation, self.accumulator = robot, incarnation, accumulator
        self.config = config
        self.codec: Codec = get_codec(config.codec)
        self.partition = accumulator.partition
        self.link = LinkEstimate(config.chunk_bytes, config.chunk_time, config.traffic)
        self.statistics = WorkerStatistics()
        self.state = REGISTERING
        self.gradient = IDLE             # what has become of the gradient that was ordered last
        self.iteration = 0               # iteration being computed or pushed
        self.sync = ''                   # name of the fleet's method, for people
        self.command = Command()
        self.server = 0                  # incarnation of the server that has accepted us
        self.push: Sender | None = None
        self.pull: Receiver | None = None
        self.pushed_at = np.zeros(self.partition.rows, np.int64)
        self.last_pushed_rows = 0
        self.last_pulled_rows = 0
        self._attempt = 0
        self._requests = 0
        self._order: Compute | None = None   # what the gradient is that is computed, or was last
        self._computed: tuple[Array, SgdConfig] | None = None  # it, while it is `READY`
        self._arriving: Array | None = None  # takes in the fleet's full gradient
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
        self.settle(now)
        if self.gradient == BUSY:  # a snapshot may come before the gradient is there
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
            self._move('refused', now)
            return [Stop(response.reason)]
        self.sync = response.sync
        self.server = response.incarnation
        self._push_is_over(response.push)
        if self.pull is None or self.pull.incarnation != self.session:
            kinds = frozenset({Kind.PULL, Kind.SNAPSHOT, Kind.FINAL, Kind.ANCHOR})
            self.pull = Receiver(self.partition, kinds, self.session, self.codec)
        self.pull.floor = response.attempt
        self._unknown = 0
        self._register_interval = REGISTER_INTERVAL
        self._move('accepted', now)
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
        if self._unknown < 2:  # one such report may have been under way while we were let in
            return []
        self._move('lost', now)
        return self._register(now)

    # -- computing and pushing -------------------------------------------------------------------

    def on_gradient(self, gradient: Array, sgd: SgdConfig, now: float) -> list[Action]:
        """The gradient of the last `Compute` is there: push it.

        ``gradient``: finite, float32 (elements,). It must stay as it is until the next `Compute`:
        if rows of the iteration before still travel (pipelining), it is taken up only after them.
        """
        if self.gradient != BUSY or self._order is None:
            raise LocalProtocolError('on_gradient without a Compute action before it')
        if self.state in (PUSHING, WAITING, PULLING):
            self._gradient_is('keep', now)
            self._computed = gradient, sgd
            return []
        if self.state == COMPUTING and not self._wanted():
            self._gradient_is('order again', now)
            return self._compute(self.iteration)
        if self.state == COMPUTING:
            self._gradient_is('use', now)
            return self._start_push(gradient, sgd, now)
        # A join is under way, or the run is over. What can wait stays in the accumulator; what is
        # of a round that is over is of no use, and the next has a gradient of its own.
        self._gradient_is('drop' if not self._order.step.additive else 'use', now)
        if self._order.step.additive:
            self._keep(gradient, sgd)
        return []

    def _keep(self, gradient: Array, sgd: SgdConfig) -> None:
        """Put a gradient where its push takes it from."""
        assert self._order is not None
        made, asked = self._order.step, self.command.step
        (asked if made == asked else made).keep(self.accumulator, gradient, sgd)

    def _wanted(self) -> bool:
        """Whether the gradient that was computed is what was granted."""
        made, asked = self._order, self.command.step
        return made is None or made.step == asked and (
            asked.exchangeable or made.iteration == self.iteration)

    def _start_push(self, gradient: Array, sgd: SgdConfig, now: float) -> list[Action]:
        self._keep(gradient, sgd)
        self._attempt += 1
        whole = self.command.step.whole
        transfer = TransferId(self.session, Kind.ANCHOR if whole else Kind.PUSH, self.iteration,
                              self._attempt)
        store, cut = self.accumulator, self.partition.raw_cut
        if whole:
            assert store.full is not None
            self.push = Sender(transfer, cut, plans.everything(cut), RAW,
                               Whole(cut, store.full), self.link, now)
        else:
            plan = self._push_plan()
            # The smaller code where the ordinary one would keep the fleet waiting.
            codec = plans.affordable(plan, self.partition, self.codec, SMALLER, self.link.rate,
                                     self.command.patience)
            self.push = Sender(transfer, self.partition, plan, codec, store, self.link, now)
        self._move('push', now)
        return [*self._poll(now), *self._compute_ahead(now)]

    def _push_plan(self) -> plans.Plan:
        sending = self.command.sending
        if sending.minimum >= 1:
            return plans.everything(self.partition)
        scores = plans.importance(
            self.accumulator.mean_magnitude(), self.pushed_at.max() - self.pushed_at,
            self.config.importance_magnitude, self.config.importance_age)
        return plans.by_importance(self.partition, sending, scores, self.iteration - self.pushed_at,
                                   np.ones(self.partition.rows, bool), self.command.mta_time)

    def _compute_ahead(self, now: float) -> list[Action]:
        """Pipelining: go on with the model as it is, if the method would let this worker go on."""
        if not self.command.ahead:
            return []
        self.accumulator.detach()
        self._gradient_is('order', now)
        return self._compute(self.iteration + 1, ahead=1)

    def _compute(self, iteration: int, ahead: int = 0) -> list[Action]:
        self.accumulator.publish(ahead)
        self._order = Compute(iteration, self.command.step)
        return [self._order]

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
        self._push_is_over(None)
        self._move('taken', now)
        return []

    def _push_is_over(self, receipt: Receipt | None) -> None:
        """An open push ends with what the server says it has of it; the rest is the step's."""
        push, self.push = self.push, None
        if push is None:
            return
        if push.state != DONE:
            match = receipt is not None and receipt.transfer == push.transfer
            push.abort(receipt if match else None)
        self.command.step.after_push(self.accumulator, push)

    # -- pulling ---------------------------------------------------------------------------------

    def on_chunk(self, chunk: Chunk, now: float) -> list[Action]:
        """Rows from the server."""
        if self.pull is None or self.state in (REGISTERING, STOPPED):
            return []
        ack, rows = self.pull.on_chunk(chunk)
        if rows is not None:
            self.statistics.bytes_received += chunk.ids.size + chunk.values.size
            self._apply(rows)
        if ack is None:
            return []
        if self.state != PULLING:  # which rows do not change; there are thousands of them
            self._move('rows', now)
        return [Send(self.robot, ack)]

    def _apply(self, rows: Rows) -> None:
        store, kind = self.accumulator, rows.transfer.kind
        if not kind.is_raw:
            rows.codec.add(self.partition, store.weights, rows.ids, rows.data)
        elif kind == Kind.ANCHOR:
            if self._arriving is None:
                self._arriving = zeros_like(store.weights)
            RAW.store(self.partition.raw_cut, self._arriving, rows.ids, rows.data)
        else:
            RAW.store(self.partition.raw_cut, store.weights, rows.ids, rows.data)

    def on_end(self, end: End, now: float) -> list[Action]:
        """The server has closed a pull or snapshot and says how to go on."""
        if self.pull is None or self.state == REGISTERING:
            return []
        if self.state == PUSHING and not self.pull.is_closed(end.transfer):
            return []  # our push's receipt is still on its way; the end comes again
        kind, command = end.transfer.kind, end.command
        grants = kind in (Kind.PULL, Kind.ANCHOR) and not command.stop
        event = 'final' if command.stop else 'granted' if grants else 'stored'
        self.pull.check(end.transfer)
        if grants:
            command.check()
        if self.state != STOPPED and self.pull.is_open(end.transfer):
            WORKER.after(self.state, event)  # what is refused must change nothing
        closed = self.pull.on_end(end)
        if closed is None:
            return []
        receipt, taken = closed
        actions: list[Action] = [Send(self.robot, receipt)]
        if taken is None or self.state == STOPPED:
            return actions
        cut = self.partition.raw_cut if kind.is_raw else self.partition
        self.last_pulled_rows = int(cut.rows_complete(taken).sum())
        self.statistics.rows_pulled += self.last_pulled_rows
        if not grants:
            self._move(event, now)
        if command.stop:
            self.accumulator.publish()
            return [*actions, Stop()]
        if kind == Kind.ANCHOR and self._arriving is not None:
            self.accumulator.anchor = copy_of(self.accumulator.weights), self._arriving
            self._arriving = None
        return [*actions, *self._go_on(command, now)] if grants else actions

    def _go_on(self, command: Command, now: float) -> list[Action]:
        if self.state == JOINING:
            self.pushed_at[:] = command.next_iteration - 1
        self._move('granted', now)
        if self.command.step.additive != command.step.additive:
            self.accumulator.clear()  # what is left there does not add up with what comes
        self.sync, self.command, self.iteration = command.sync, command, command.next_iteration
        if self.gradient == BUSY:  # whether it is that of this iteration is seen when it is there
            return []
        if self.gradient == READY:
            assert self._computed is not None
            computed, self._computed = self._computed, None
            if self._wanted():
                self._gradient_is('use', now)
                return self._start_push(*computed, now)
            self._gradient_is('drop', now)
        self._gradient_is('order', now)
        return self._compute(self.iteration)

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
        self._move('leave', now)

    def _move(self, event: str, now: float) -> None:
        after = WORKER.after(self.state, event)
        if after != self.state:
            self.settle(now)
            self.state = after

    def _gradient_is(self, event: str, now: float) -> None:
        after = GRADIENT.after(self.gradient, event)
        self.settle(now)
        self.gradient = after

    @property
    def activity(self) -> str:
        """What the robot does, for its power: computing, communicating or stalled."""
        if self.gradient == BUSY:
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
            self.state, self.sync, self.finished,
            self.command.staleness, self.partition.rows, self.last_pushed_rows,
            self.last_pulled_rows, self.link.rate * 8e-6, counted.compute_time,
            counted.communicate_time, counted.stall_time, counted.bytes_sent,
            counted.bytes_received)
