"""The worker: one robot's side of the protocol, as a state machine.

Source: ROG, Section IV-A, Algorithm 1, on a channel that loses, duplicates and reorders messages.
Its states and events are the tables `WORKER` and `GRADIENT` of `rog_core.protocol.states`; the
gradient has a table of its own because with pipelining a worker computes while it pushes, waits and
pulls.

Events are method calls with the present time (seconds, any monotonic clock). Each returns the
actions that the shell must carry out. `on_time` must be called at the time `deadline`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..arrays import Array, copy_of, to_host, zeros_like
from ..codecs import RAW, SMALLER, Codec, get_codec
from ..errors import LocalProtocolError
from ..protocol.config import SgdConfig, TransferConfig
from ..protocol.messages import (
    Ack,
    Action,
    Chunk,
    Command,
    Compute,
    End,
    Kind,
    Notice,
    Receipt,
    RegisterRequest,
    RegisterResponse,
    Send,
    Stop,
    TransferId,
)
from ..protocol.states import (
    BUSY,
    COMPUTING,
    DONE,
    GRADIENT,
    IDLE,
    JOINING,
    PAUSED,
    PULLING,
    PUSHING,
    READY,
    REGISTERING,
    STOPPED,
    WAITING,
    WORKER,
)
from ..transfer import plan as plans
from ..transfer.link import LinkEstimate
from ..transfer.receiver import Receiver, Rows
from ..transfer.sender import RawRows, Sender
from .accumulator import Accumulator
from .computation import computation_of
from .report import COMMUNICATES, COMPUTES, STALLS, TIME_OF, WorkerReport, WorkerStatistics
from .unsent import Unsent, check_taken

REGISTER_INTERVAL = 1.0      # seconds between the first two registration attempts
MAX_REGISTER_INTERVAL = 4.0  # it doubles up to here: over a slow link an answer may take longer


class WorkerMachine:
    """The protocol of one robot. ``incarnation``: random 64-bit identity of this process."""

    def __init__(self, robot: str, incarnation: int, accumulator: Accumulator,
                 config: TransferConfig) -> None:
        self.robot, self.incarnation, self.accumulator = robot, incarnation, accumulator
        self.config = config
        self.codec: Codec = get_codec(config.codec)
        self.partition = accumulator.partition
        self.link = LinkEstimate(config.chunk_bytes, config.chunk_time, config.traffic)
        self.statistics = WorkerStatistics()
        self.state = REGISTERING
        self.gradient = IDLE             # state of the gradient that was ordered last
        self.iteration = 0               # iteration being computed or pushed
        self.sync = ''                   # name of the fleet's method, for display
        self.command = Command()
        self.server = 0                  # incarnation of the server that accepted this worker
        self.push: Sender | None = None
        self.pull: Receiver | None = None
        self.pushed_at = np.zeros(self.partition.rows, np.int64)
        self.last_pushed_rows = 0
        self.last_pulled_rows = 0
        self._attempt = 0
        self._requests = 0
        self._order: Compute | None = None   # the last order to compute a gradient
        self._computed: tuple[Array, SgdConfig] | None = None  # the gradient, while it is `READY`
        self._arriving: Array | None = None  # the fleet's full gradient, while it is received
        self._former: Unsent | None = None   # of a former process, until the server answers
        self._unknown = 0                # heartbeats in a row that do not list this worker
        self._register_at = math.inf
        self._register_interval = REGISTER_INTERVAL
        self._since = 0.0                # time of the last change of state

    # -- what outlives the process ---------------------------------------------------------------

    def take_over(self, former: Unsent) -> None:
        """Take over what a former process of this robot had not sent; call it before `start`."""
        if not former.pending.size == former.momentum.size == self.partition.elements:
            raise LocalProtocolError(f'pending and momentum of the save must have '
                                     f'{self.partition.elements} elements, as the model, got '
                                     f'{former.pending.size} and {former.momentum.size}')
        self._former = former

    def unsent(self) -> Unsent | None:
        """Return what would be lost with this process; None: nothing that another could use.

        It includes what the server has taken of an open push: the server tells the next process.
        """
        if self._former is not None or not self.iteration or not self.command.step.additive:
            return None
        store, attempt = self.accumulator.copy(), self._attempt
        if self.push is not None:
            attempt -= 1
            if self.push.transfer.kind == Kind.PUSH:
                store.put_back(self.push.codec, self.push.encoded())
        if self._computed is not None and self._order is not None and self._order.step.additive:
            computation_of(self._order.step).keep(store, *self._computed)
        return Unsent(self.incarnation, attempt, to_host(store.pending), to_host(store.momentum))

    @property
    def unsent_version(self) -> tuple[object, ...]:
        """A value that changes whenever `unsent` does."""
        return self._former is None, self._attempt, self.push is None, self.gradient

    def _bring_back(self, taken: bytes) -> list[Action]:
        former, self._former = self._former, None
        return [] if former is None else [
            Notice(self.robot, *former.bring_back(self.accumulator, taken))]

    # -- registration ----------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Begin: ask the server to let this worker join."""
        self._since = now
        return self._register(now)

    def _register(self, now: float) -> list[Action]:
        self.settle(now)
        self._order = self._order and replace(self._order, iteration=0)  # fits no iteration
        self.accumulator.anchor = None
        self._register_at = now + self._register_interval
        self._requests += 1
        parameters = tuple((p.name, p.shape) for p in self.partition.parameters)
        known = self.pull is not None and self.pull.incarnation == self.session
        return [Send(self.robot, RegisterRequest(
            self.robot, self.incarnation, self.iteration, self._attempt,
            self.partition.granularity, self.codec.name, self.partition.digest, parameters,
            number=self._requests, pull=self.pull.known() if known and self.pull else None,
            former=self._former.incarnation if self._former else 0,
            former_attempt=self._former.attempt if self._former else 0))]

    def on_register_response(self, response: RegisterResponse, now: float) -> list[Action]:
        """Handle the server's answer; a final refusal stops the worker with the server's reason.

        If the run is over, the worker stops without an error, as it is not at fault.
        """
        if self.state != REGISTERING:
            return []
        if not response.accepted:
            if response.retry:  # the link works, but the server cannot accept this worker yet
                self._register_interval = REGISTER_INTERVAL
                self._register_at = now + REGISTER_INTERVAL
                return []
            self._move('refused', now)
            return [Stop('' if response.over else response.reason)]
        check_taken(response.taken, self.partition.segments)
        self.sync = response.sync
        self.server = response.incarnation
        self._push_is_over(response.push)
        if self.pull is None or self.pull.incarnation != self.session \
                or self._foreign(self.pull.transfer, response.attempt):
            kinds = frozenset({Kind.PULL, Kind.SNAPSHOT, Kind.FINAL, Kind.ANCHOR})
            self.pull = Receiver(self.partition, kinds, self.session, self.codec)
        self.pull.floor = response.attempt
        self._unknown = 0
        self._register_interval = REGISTER_INTERVAL
        self._move('accepted', now)
        return self._bring_back(response.taken)

    @staticmethod
    def _foreign(pull: TransferId | None, following: int) -> bool:
        """Whether the server has not sent this transfer, as its next, ``following``, is not later.

        Only a snapshot may have that number: it continues when a worker registers again.
        """
        if pull is None or pull.attempt < following:
            return False
        return pull.attempt > following or pull.kind != Kind.SNAPSHOT

    @property
    def session(self) -> int:
        """Identity of this worker process and this server process; every transfer carries it."""
        return self.incarnation ^ self.server

    def on_server_status(self, incarnation: int, known: bool, now: float) -> list[Action]:
        """Handle the server's heartbeat; ``known``: it lists this process as a member.

        If the server was restarted, or has dropped this worker, the worker registers again.
        """
        if self.state in (REGISTERING, STOPPED, PAUSED):
            return []
        missed = not known or incarnation != self.server
        self._unknown = self._unknown + 1 if missed else 0
        if self._unknown < 2:  # the first may be from before the server accepted this worker
            return []
        self._move('lost', now)
        return self._register(now)

    def on_contact(self, now: float) -> list[Action]:
        """Handle the server's first message after a silence: send again at once what was lost."""
        if self.state == REGISTERING:
            self._register_interval = REGISTER_INTERVAL
            return self._register(now)
        if self.state != PUSHING or self.push is None:
            return []
        self.push.wake(now)
        return self._poll(now)

    # -- computing and pushing -------------------------------------------------------------------

    def on_gradient(self, gradient: Array, sgd: SgdConfig, now: float) -> list[Action]:
        """Push the gradient that the last `Compute` asked for.

        ``gradient``: finite, float32 (elements,). The caller must not change it before the next
        `Compute`: with pipelining the worker reads it only after the transfers of the iteration
        before.
        """
        if self.gradient != BUSY or self._order is None:
            raise LocalProtocolError('on_gradient without a Compute action before it')
        if self.state in (PUSHING, WAITING, PULLING):
            self._gradient_is('keep', now)
            self._computed = gradient, sgd
            return []
        if self.state == COMPUTING and not self._fits_grant():
            self._gradient_is('order again', now)
            return self._compute(self.iteration)
        if self.state == COMPUTING:
            self._gradient_is('use', now)
            return self._start_push(gradient, sgd, now)
        # The worker is joining, or the run is over. An additive gradient is kept in the accumulator
        # and sent later; any other one belongs to a round that is over, and is dropped.
        self._gradient_is('drop' if not self._order.step.additive else 'use', now)
        if self._order.step.additive:
            self._keep(gradient, sgd)
        return []

    def _keep(self, gradient: Array, sgd: SgdConfig) -> None:
        """Store a gradient where its push reads it."""
        assert self._order is not None
        made, asked = self._order.step, self.command.step
        step = asked if made == asked else made
        computation_of(step).keep(self.accumulator, gradient, sgd)

    def _fits_grant(self) -> bool:
        """Whether the computed gradient is the one that the server has granted."""
        made, asked = self._order, self.command.step
        return made is None or made.step == asked and (
            asked.exchangeable or made.iteration == self.iteration)

    def _start_push(self, gradient: Array, sgd: SgdConfig, now: float) -> list[Action]:
        self._keep(gradient, sgd)
        self._attempt += 1
        uncompressed = self.command.step.uncompressed
        kind = Kind.ANCHOR if uncompressed else Kind.PUSH
        transfer = TransferId(self.session, kind, self.iteration, self._attempt)
        store, raw = self.accumulator, self.partition.raw_partition
        if uncompressed:
            assert store.full is not None
            self.push = Sender(transfer, raw, plans.everything(raw), RAW,
                               RawRows(raw, store.full), self.link, now)
        else:
            plan = self._push_plan()
            # Use the smaller codec where the fleet's own would keep the fleet waiting.
            codec = plans.affordable(plan, self.partition, self.codec, SMALLER, self.link.rate,
                                     self.command.patience)
            self.push = Sender(transfer, self.partition, plan, codec, store, self.link, now)
        self._move('push', now)
        return [*self._poll(now), *self._compute_ahead(now)]

    def _push_plan(self) -> plans.Plan:
        sending, age = self.command.sending, self.iteration - self.pushed_at
        turn = self.command.step.turn(age)
        if sending.minimum >= 1:
            return plans.everything(self.partition, np.flatnonzero(turn))
        scores = plans.importance(
            self.accumulator.mean_magnitude(), self.pushed_at.max() - self.pushed_at,
            self.config.importance_magnitude, self.config.importance_age)
        return plans.by_importance(self.partition, sending, scores, age, turn,
                                   self.command.mta_time)

    def _compute_ahead(self, now: float) -> list[Action]:
        """Pipelining: start the next gradient on the present model, if the server allows it."""
        if not self.command.ahead:
            return []
        self.accumulator.detach()
        self._gradient_is('order', now)
        return self._compute(self.iteration + 1, ahead=1)

    def _compute(self, iteration: int, ahead: int = 0) -> list[Action]:
        computation = computation_of(self.command.step)
        self._order = computation.begin(self.accumulator, iteration, ahead)
        return [self._order]

    def on_ack(self, ack: Ack, now: float) -> list[Action]:
        """Handle the acknowledgement of chunks of our push."""
        if self.push is None or self.state == PAUSED:
            return []
        self.push.on_ack(ack, now)
        return self._poll(now)

    def on_receipt(self, receipt: Receipt, now: float) -> list[Action]:
        """Handle the receipt of our push: the server says which chunks it took."""
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
        """End an open push by the server's receipt, if any; the step keeps what was not taken."""
        push, self.push = self.push, None
        if push is None:
            return
        if push.state != DONE:
            match = receipt is not None and receipt.transfer == push.transfer
            push.abort(receipt if match else None)
        computation_of(self.command.step).after_push(self.accumulator, push)
        if push.receipt is not None and push.receipt.refused:
            self.statistics.refused += 1
            self.accumulator.reset()  # or the refused rest would be sent again forever

    # -- pulling ---------------------------------------------------------------------------------

    def on_chunk(self, chunk: Chunk, now: float) -> list[Action]:
        """Handle rows from the server."""
        if self.pull is None or self.state in (REGISTERING, PAUSED):
            return []
        if self.pull.is_closed(chunk.transfer):  # the receipt was lost
            assert self.pull.receipt is not None
            return [Send(self.robot, self.pull.receipt)]
        if self.state == STOPPED:
            return []
        ack, rows = self.pull.on_chunk(chunk)
        if rows is not None:
            self.statistics.bytes_received += chunk.ids.size + chunk.values.size
            self._apply(rows)
        if ack is None:
            return []
        if self.state != PULLING:  # thousands of chunks follow, which do not change it
            self._move('rows', now)
        if (end := self.pull.due) is not None:
            return self.on_end(end, now)  # its receipt says more than an acknowledgement
        return [Send(self.robot, ack)]

    def _apply(self, rows: Rows) -> None:
        store, kind = self.accumulator, rows.transfer.kind
        if self.gradient == BUSY:  # a snapshot may arrive before the gradient is computed
            store.detach()
        if not kind.is_raw:
            rows.codec.add(self.partition, store.weights, rows.ids, rows.data)
        elif kind == Kind.ANCHOR:
            if self._arriving is None:
                self._arriving = zeros_like(store.weights)
            RAW.store(self.partition.raw_partition, self._arriving, rows.ids, rows.data)
        else:
            RAW.store(self.partition.raw_partition, store.weights, rows.ids, rows.data)

    def on_end(self, end: End, now: float) -> list[Action]:
        """Handle the end of a pull or snapshot, with the command for the next iteration."""
        if self.pull is None or self.state in (REGISTERING, PAUSED):
            return []
        if self.state == PUSHING and not self.pull.is_closed(end.transfer):
            return []  # our push's receipt has not arrived yet; the server repeats this end
        kind, command = end.transfer.kind, end.command
        grants = kind in (Kind.PULL, Kind.ANCHOR) and not command.stop
        event = 'final' if command.stop else 'granted' if grants else 'stored'
        self.pull.check(end.transfer)
        if grants:
            command.check()
        if self.state != STOPPED and self.pull.is_open(end.transfer):
            WORKER.after(self.state, event)  # raises before anything is changed
        closed = self.pull.on_end(end)
        if closed is None:
            return []
        receipt, taken = closed
        actions: list[Action] = [Send(self.robot, receipt)]
        if taken is None or self.state == STOPPED:
            return actions
        partition = self.partition.raw_partition if kind.is_raw else self.partition
        self.last_pulled_rows = int(partition.rows_complete(taken).sum())
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
        elif command.step.additive and command.next_iteration > self.iteration + 1:
            # It was retired: the iterations that it skips do not age its rows.
            self.pushed_at += command.next_iteration - 1 - self.iteration
        self._move('granted', now)
        if self.command.step.additive != command.step.additive:
            self.accumulator.clear()  # gradients of the old step cannot be added to the new one
        self.sync, self.command, self.iteration = command.sync, command, command.next_iteration
        if self.gradient == BUSY:  # `on_gradient` will see whether it fits this iteration
            return []
        if self.gradient == READY:
            assert self._computed is not None
            computed, self._computed = self._computed, None
            if self._fits_grant():
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

    def pause(self, now: float) -> None:
        """Leave the fleet for a while; the shell must tell the server, as when the worker stops.

        No robot waits for it. Its transfers end as if the link were lost. It keeps the rows that
        have not arrived, and the gradient that it still computes.
        """
        self._move('pause', now)

    def resume(self, now: float) -> list[Action]:
        """Rejoin the fleet with what the worker holds."""
        self._move('resume', now)
        self._register_interval = REGISTER_INTERVAL
        return self._register(now)

    def leave(self, now: float) -> None:
        """Stop at once, because the user asks for it."""
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
        """What the robot is doing, for its power: computing, communicating or stalled."""
        if self.gradient == BUSY:
            return COMPUTES
        return COMMUNICATES if self.state in (PUSHING, PULLING) else STALLS

    def settle(self, now: float) -> None:
        """Add the time since the last change of state to the statistics."""
        began = self.command.next_iteration > 0  # before the first grant nothing counts
        if began and self.state not in (STOPPED, PAUSED):
            name = TIME_OF[self.activity]
            setattr(self.statistics, name,
                    getattr(self.statistics, name) + max(now - self._since, 0.0))
        self._since = now

    @property
    def finished(self) -> int:
        """Iterations whose gradient has been computed."""
        return max(self.iteration - (self.state == COMPUTING), 0)

    def report(self, now: float) -> WorkerReport:
        """Return state and statistics at this time."""
        self.settle(now)
        counted = self.statistics
        return WorkerReport(
            self.state, self.sync, self.finished,
            self.command.staleness, self.partition.rows, self.last_pushed_rows,
            self.last_pulled_rows, self.link.rate * 8e-6, counted.compute_time,
            counted.communicate_time, counted.stall_time, counted.bytes_sent,
            counted.bytes_received)
