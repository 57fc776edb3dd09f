"""The worker: one robot's side of the protocol, as a state machine.

Source: ROG, Section IV-A, Algorithm 1. Here the channel may lose, duplicate and reorder messages.
The tables `WORKER` and `GRADIENT` of `rog_core.protocol.states` list the states and events. The
gradient has its own table, because with pipelining a worker also computes while it pushes, waits
and pulls.

The shell, which is the program around the machine, reports each event by a method call with the
present time (seconds, any monotonic clock). Most of these calls return actions, which the shell
must execute. The shell must call `on_time` at the time `deadline`.

The class follows the protocol: the worker registers, pulls the model or rows, computes, and pushes;
then come time, control and statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..arrays import Array, copy_of, joined, zeros_like
from ..codecs import RAW, SMALLER, Codec, get_codec
from ..errors import LocalProtocolError, RemoteProtocolError
from ..model.partition import RowPartition
from ..protocol.config import SgdConfig, TransferConfig
from ..protocol.messages import (
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
from ..transfer.link import RowLink
from ..transfer.receiver import Receiver, Rows
from ..transfer.sender import RawRows, Sender
from .accumulator import Accumulator
from .computation import computation_of

REGISTER_INTERVAL = 1.0      # seconds between the first two registration attempts
# Maximum seconds between two attempts. The interval doubles with each attempt: only the answer to
# the latest attempt counts, and on a slow link an answer that waits behind those to other robots
# takes 15 s and more. A message of the server after a silence starts with the first interval again.
MAX_REGISTER_INTERVAL = 32.0
# Activities of a robot; time and power are counted separately for each activity.
COMPUTES, COMMUNICATES, STALLS = 'computing', 'communicating', 'stalled'
TIME_OF = {COMPUTES: 'compute_time', COMMUNICATES: 'communicate_time', STALLS: 'stall_time'}


@dataclass
class WorkerStatistics:
    """Counters since the start of the run; times are in seconds, sizes in bytes."""

    bytes_sent: int = 0
    bytes_received: int = 0
    rows_pushed: int = 0
    rows_pulled: int = 0
    compute_time: float = 0.0
    communicate_time: float = 0.0
    stall_time: float = 0.0
    refused: int = 0  # number of pushes whose norm the server found implausible


@dataclass(frozen=True)
class WorkerReport:
    """State and statistics; names and units are as in the message rog_msgs/TrainingStatus."""

    state: str
    sync: str
    iteration: int
    staleness: int
    rows_total: int
    rows_pushed: int
    rows_pulled: int
    bandwidth: float
    compute_time: float
    communicate_time: float
    stall_time: float
    bytes_sent: int
    bytes_received: int


class Worker:
    """A worker's state machine; its methods take an event and the time, and return actions.

    ``incarnation``: random 64-bit identity of this process.
    """

    def __init__(self, robot: str, incarnation: int, accumulator: Accumulator,
                 config: TransferConfig) -> None:
        self.robot, self.incarnation, self.accumulator = robot, incarnation, accumulator
        self.config = config
        self.codec: Codec = get_codec(config.codec)
        self.link = RowLink(config.chunk_bytes, config.chunk_time, config.traffic)
        self.statistics = WorkerStatistics()
        self.state = REGISTERING
        self.gradient = IDLE             # state of the last ordered gradient
        self.iteration = 0               # iteration being computed or pushed
        self.sync = ''                   # name of the fleet's method, for display
        self.command = Command()
        self.server = 0                  # incarnation of the server that accepted this worker
        self.push: Sender | None = None
        self.pull: Receiver | None = None
        self.early: End | None = None    # of the next pull; see `on_receipt`
        self.pushed_at = np.zeros(self.partition.rows, np.int64)
        self.last_pushed_rows = 0
        self.last_pulled_rows = 0
        self.attempt = 0                 # number of the last push
        self.order: Compute | None = None   # the last order to compute a gradient
        self.computed: tuple[Array, SgdConfig] | None = None  # the gradient in the state READY
        # which parameters were frozen or unfrozen when the last gradient was computed, see
        # `RowPartition.trained`; the program sets it before it reports the gradient
        self.switched: tuple[int, ...] = ()
        self.since = 0.0                 # time of the last change of state, in seconds
        self._register_at = math.inf     # time of the next attempt to register
        self._interval = REGISTER_INTERVAL
        self._requests = 0
        self._unknown = 0  # number of successive heartbeats that do not list this worker
        self._arriving: Array | None = None  # the fleet's full gradient, while it arrives

    @property
    def partition(self) -> RowPartition:
        """The rows of the model; they become more when a robot unfreezes a parameter."""
        return self.accumulator.partition

    @property
    def session(self) -> int:
        """Identity of the pair of worker process and server process; each transfer carries it."""
        return self.incarnation ^ self.server

    def _move(self, event: str, now: float) -> None:
        after = WORKER.after(self.state, event)
        if after != self.state:
            self._settle(now)
            self.state = after

    def _gradient_is(self, event: str, now: float) -> None:
        after = GRADIENT.after(self.gradient, event)
        self._settle(now)
        self.gradient = after

    # -- registering -------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Ask the server to let this worker join."""
        self.since = now
        return self._register(now)

    def _register(self, now: float) -> list[Action]:
        self._settle(now)
        # Mark the gradient that is being computed with iteration 0, which is never granted: it then
        # fits a later grant only if its step is exchangeable (`Step.exchangeable`).
        self.order = self.order and replace(self.order, iteration=0)
        self.accumulator.anchor = None
        self._register_at = now + self._interval
        self._requests += 1
        partition, pull = self.partition, self.pull
        parameters = tuple((p.name, p.shape, int(p.role)) for p in partition.listing.parameters)
        known = pull is not None and pull.incarnation == self.session
        return [Send(self.robot, RegisterRequest(
            self.robot, self.incarnation, self.iteration, self.attempt,
            partition.granularity, self.codec.name, partition.digest, parameters,
            number=self._requests, pull=pull.known() if known and pull else None))]

    def _register_soon(self, now: float) -> list[Action]:
        """Register now; if no answer comes, register again after `REGISTER_INTERVAL` seconds."""
        self._interval = REGISTER_INTERVAL
        return self._register(now)

    def awaits(self, request: RegisterRequest) -> bool:
        """Return whether ``request`` is the worker's latest request.

        A shell must call this method when the answer to ``request`` arrives. If the result is
        false, the shell must ignore the answer: the worker has sent a later request in the
        meantime.
        """
        return (request.incarnation, request.number) == (self.incarnation, self._requests)

    def on_register_response(self, response: RegisterResponse, now: float) -> list[Action]:
        """Handle the server's answer; a final refusal stops the worker with the server's reason.

        If the server refuses because the run is over, the worker stops without an error.
        """
        if self.state != REGISTERING:
            return []
        if not response.accepted:
            if response.retry:  # the server can be reached, but does not accept this worker yet
                self._interval = REGISTER_INTERVAL
                self._register_at = now + REGISTER_INTERVAL
                return []
            self._move('refused', now)
            return [Stop('' if response.over else response.reason)]
        self.sync = response.sync
        if self.server != response.incarnation:
            self.server = response.incarnation
            self.link.forget()
        self._end_push(response.push)
        self.early = None
        pull = self.pull
        if pull is None or pull.incarnation != self.session \
                or self._foreign(pull.transfer, response.attempt):
            kinds = frozenset({Kind.PULL, Kind.SNAPSHOT, Kind.FINAL, Kind.ANCHOR})
            pull = self.pull = Receiver(self.partition, kinds, self.session, self.codec)
        pull.floor = response.attempt
        self._unknown = 0
        self._interval = REGISTER_INTERVAL
        self._move('accepted', now)
        return []

    @staticmethod
    def _foreign(pull: TransferId | None, following: int) -> bool:
        """Return whether the number of a pull is so high that the server cannot have sent the pull.

        ``following``: the number of the server's next transfer. Earlier transfers have lower
        numbers. Only a snapshot may have the number ``following``, because a snapshot continues
        when its worker registers again.
        """
        if pull is None or pull.attempt < following:
            return False
        return pull.attempt > following or pull.kind != Kind.SNAPSHOT

    def on_server_status(self, incarnation: int, known: bool, now: float) -> list[Action]:
        """Handle a heartbeat of the server; ``known``: whether it lists this process as a member.

        If the server was restarted, or has dropped this worker, the worker registers again.
        """
        if self.state in (REGISTERING, STOPPED, PAUSED):
            return []
        missed = not known or incarnation != self.server
        self._unknown = self._unknown + 1 if missed else 0
        # Ignore the first heartbeat that does not list this worker: the server may have sent this
        # heartbeat before it accepted the worker.
        if self._unknown >= 2:
            self._move('lost', now)
            return self._register(now)
        if self.push is None or self.state != PUSHING:
            return []
        self.push.on_heard(now)  # the link may be back
        return self._poll(now)

    def on_contact(self, now: float) -> list[Action]:
        """Handle the server's first message after a silence: an open registration is repeated.

        Lost rows need no call of their own: each heartbeat lets the push send a probe.
        """
        return self._register_soon(now) if self.state == REGISTERING else []

    # -- pulling -----------------------------------------------------------------------------------

    def on_chunk(self, chunk: Chunk, now: float) -> list[Action]:
        """Handle rows from the server."""
        pull = self.pull
        if pull is None or self.state in (REGISTERING, PAUSED):
            return []
        if pull.is_closed(chunk.transfer):  # the receipt was lost, so send it again
            assert pull.receipt is not None
            return [Send(self.robot, pull.acknowledge(chunk, now)),
                    Send(self.robot, pull.receipt)]
        if self.state == STOPPED:
            return []
        former = pull.transfer
        ack, rows = pull.on_chunk(chunk, now)
        if chunk.transfer.kind == Kind.SNAPSHOT and pull.transfer != former:
            self.accumulator.restore_frozen()
        if rows is not None:
            self.statistics.bytes_received += chunk.ids.size + chunk.values.size
            self._apply(rows)
        actions: list[Action] = [Send(self.robot, ack)]
        if not pull.is_open(chunk.transfer):
            return actions
        if self.state != PULLING:  # only the first of many chunks changes the state
            self._move('rows', now)
        if (end := pull.due) is not None:
            actions += self.on_end(end, now)
        return actions

    def _apply(self, rows: Rows) -> None:
        store, kind = self.accumulator, rows.transfer.kind
        known = store.partition.raw_partition if kind.is_raw else store.partition
        if rows.ids[-1] >= known.segments:  # another robot has unfrozen a parameter
            self.grow()
        if self.gradient == BUSY:  # a gradient is being computed on `model`
            store.detach()
        if not kind.is_raw:
            rows.codec.add(store.partition, store.weights, rows.ids, rows.data)
        elif kind == Kind.ANCHOR:
            if self._arriving is None:
                self._arriving = zeros_like(store.weights)
            RAW.store(store.partition.raw_partition, self._arriving, rows.ids, rows.data)
        else:
            RAW.store(store.partition.raw_partition, store.weights, rows.ids, rows.data)

    def grow(self) -> None:
        """Take up the rows of the frozen parameters, because a robot has unfrozen one of them."""
        self.accumulator.grow()
        more = self.partition.rows - self.pushed_at.size
        self.pushed_at = np.append(self.pushed_at, np.full(more, self.iteration - 1, np.int64))

    def on_end(self, end: End, now: float) -> list[Action]:
        """Handle the end of a pull or snapshot, with the command for the next iteration."""
        pull = self.pull
        if pull is None or self.state in (REGISTERING, PAUSED):
            return []
        kind, command = end.transfer.kind, end.command
        grants = kind in (Kind.PULL, Kind.ANCHOR) and not command.stop
        event = 'final' if command.stop else 'granted' if grants else 'stored'
        pull.check(end.transfer)
        if grants:
            command.check()
        if self.state == PUSHING and not pull.is_closed(end.transfer):
            pull.examine_end(end)
            if pull.is_open(end.transfer):
                self.early = end  # handled when the receipt of this worker's push is here
            return []
        if self.state != STOPPED and pull.is_open(end.transfer):
            WORKER.after(self.state, event)  # raises if this state does not allow the event
        closed = pull.on_end(end)
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
            self.accumulator.publish_final()
            return [*actions, Stop()]
        if kind == Kind.ANCHOR and self._arriving is not None:
            self.accumulator.anchor = copy_of(self.accumulator.weights), self._arriving
            self._arriving = None
        return [*actions, *self._granted(command, now)] if grants else actions

    # -- computing ---------------------------------------------------------------------------------

    def _granted(self, command: Command, now: float) -> list[Action]:
        """Begin the iteration that the server has granted."""
        if self.state == JOINING:
            self.pushed_at[:] = command.next_iteration - 1
        elif command.step.additive and command.next_iteration > self.iteration + 1:
            # This worker skips iterations: it was retired, or the method lets it continue with a
            # later round. The skipped iterations do not make its rows older.
            self.pushed_at += command.next_iteration - 1 - self.iteration
        self._move('granted', now)
        if self.command.step.additive != command.step.additive:
            # the pending rows and the new gradient must not be summed, see `Step.additive`
            self.accumulator.clear()
        self.sync, self.command = command.sync, command
        self.iteration = command.next_iteration
        # `on_gradient` will check whether the gradient under way fits the granted iteration
        if self.gradient == BUSY:
            return []
        if self.gradient == READY:
            assert self.computed is not None
            computed, self.computed = self.computed, None
            if self._fits_grant():
                self._gradient_is('use', now)
                return self._push(*computed, now)
            self._gradient_is('drop', now)
        self._gradient_is('order', now)
        return self._compute(self.iteration)

    def _fits_grant(self) -> bool:
        """Return whether the computed gradient fits the granted iteration and step."""
        made, asked = self.order, self.command.step
        return made is None or made.step == asked and (
            asked.exchangeable or made.iteration == self.iteration)

    def _compute(self, iteration: int, ahead: int = 0) -> list[Action]:
        self.order = computation_of(self.command.step).begin(self.accumulator, iteration, ahead)
        return [self.order]

    def on_gradient(self, gradient: Array, sgd: SgdConfig, now: float) -> list[Action]:
        """Push the gradient that the last `Compute` ordered.

        ``gradient``: finite, float32 (elements,). The caller must not change this array before the
        next `Compute`, because the worker may read the array after this call has returned. With
        pipelining, the worker reads it when the transfers of the previous iteration are over.
        """
        if self.gradient != BUSY or self.order is None:
            raise LocalProtocolError('on_gradient without a Compute action before it')
        if self.state in (PUSHING, WAITING, PULLING):
            self._gradient_is('keep', now)
            self.computed = gradient, sgd
            return []
        if self.state == COMPUTING and not self._fits_grant():
            self._gradient_is('order again', now)
            return self._compute(self.iteration)
        if self.state == COMPUTING:
            self._gradient_is('use', now)
            return self._push(gradient, sgd, now)
        # The worker is registering, joining or paused, or the run is over. If the gradient may be
        # added to a later one (`Step.additive`), keep it in the accumulator, to send it later.
        # Otherwise drop it, because it belongs to a round that is over.
        additive = self.order.step.additive
        self._gradient_is('use' if additive else 'drop', now)
        if additive:
            self._keep(gradient, sgd)
        return []

    def _keep(self, gradient: Array, sgd: SgdConfig) -> None:
        """Store a gradient in the accumulator, from which the push reads it."""
        store = self.accumulator
        assert self.order is not None
        if len(gradient) > len(store.weights):
            self.grow()  # this robot has unfrozen a parameter
        store.follow()
        if len(gradient) < len(store.weights):  # another robot has, during the computation
            gradient = joined(gradient, zeros_like(store.weights[len(gradient):]))
        store.switch(self.switched)
        made, asked = self.order.step, self.command.step
        step = asked if made == asked else made
        computation_of(step).keep(store, gradient, sgd)
        store.keep_buffers(gradient)

    # -- pushing -----------------------------------------------------------------------------------

    def _push(self, gradient: Array, sgd: SgdConfig, now: float) -> list[Action]:
        """Begin to push a gradient; with pipelining, order the next one if the server allows it."""
        self._keep(gradient, sgd)
        command, store, raw = self.command, self.accumulator, self.partition.raw_partition
        self.attempt += 1
        uncompressed = command.step.uncompressed
        kind = Kind.ANCHOR if uncompressed else Kind.PUSH
        transfer = TransferId(self.session, kind, self.iteration, self.attempt)
        if uncompressed:
            assert store.full is not None
            plan = plans.everything(raw, np.flatnonzero(raw.trained()))
            self.push = Sender(transfer, raw, plan, RAW, RawRows(raw, store.full), self.link, now)
        else:
            plan = self._plan()
            # If the other robots would have to wait for a push with the fleet's codec, use the
            # smaller codec.
            codec = plans.affordable(plan, self.partition, self.codec, SMALLER,
                                     self.link.rate, command.patience)
            self.push = Sender(transfer, self.partition, plan, codec, store, self.link, now,
                               switched=store.switched)
        self._move('push', now)
        actions = self._poll(now)
        if command.ahead:
            # The model of the next gradient already includes the step under way, see
            # `Computation.begin`.
            store.detach()
            self._gradient_is('order', now)
            actions += self._compute(self.iteration + 1, ahead=1)
        return actions

    def _plan(self) -> plans.Plan:
        """Return which rows the push sends, in which order, and for how long."""
        command, partition = self.command, self.partition
        magnitude = self.accumulator.mean_magnitude()
        may = partition.trained(self.accumulator.switched)
        may[partition.buffer_rows] = magnitude[partition.buffer_rows] > 0
        self.pushed_at[~may] = self.iteration  # what has not changed is up to date
        sending, age = command.sending, self.iteration - self.pushed_at
        turn = command.step.turn(age) & may & plans.due_buffers(partition, sending, age)
        if sending.minimum >= 1:
            return plans.everything(partition, np.flatnonzero(turn))
        scores = plans.importance(
            magnitude, self.pushed_at.max() - self.pushed_at,
            self.config.importance_magnitude, self.config.importance_age,
            partition.buffer_rows)
        return plans.by_importance(partition, sending, scores, age, turn, command.mta_time,
                                   int(may.sum()))

    def _poll(self, now: float) -> list[Action]:
        """Return the messages of the push that must be sent now."""
        if self.push is None:
            return []
        before = self.push.bytes_sent
        actions: list[Action] = [Send(self.robot, m) for m in self.push.poll(now)]
        self.statistics.bytes_sent += self.push.bytes_sent - before
        return actions

    def on_ack(self, ack: Ack, now: float) -> list[Action]:
        """Handle the acknowledgement of chunks of this worker's push."""
        if self.state == PAUSED or ack.incarnation != self.session:
            return []
        if self.push is None:  # the push is over, but its chunks were still on the way
            self.link.on_ack(ack, now)
            return []
        self.push.on_ack(ack, now)
        return self._poll(now)

    def on_receipt(self, receipt: Receipt, now: float) -> list[Action]:
        """Handle the receipt of this worker's push, which names the chunks that have arrived.

        Then handle the end of a pull that has arrived before the receipt.
        """
        push = self.push
        if self.state == PUSHING and push is not None and push.on_receipt(receipt, now):
            complete = np.flatnonzero(push.partition.rows_complete(push.taken()))
            self.pushed_at[complete] = self.iteration
            self.last_pushed_rows = complete.size
            self.statistics.rows_pushed += self.last_pushed_rows
            self._end_push(None)
            self._move('taken', now)
        if self.state == PUSHING or self.early is None:
            return []
        end, self.early = self.early, None
        try:
            return self.on_end(end, now)
        except RemoteProtocolError:
            return []  # the end is invalid and counts as lost; the receipt remains valid

    def _end_push(self, receipt: Receipt | None) -> None:
        """End an open push; keep the rows that the server has not received.

        ``receipt``: names the chunks that have arrived at the server; None: no chunk has arrived.
        If the push already has a receipt, ``receipt`` is ignored. See `Computation.after_push`.
        """
        push, self.push = self.push, None
        if push is None:
            return
        if push.state != DONE:
            match = receipt is not None and receipt.transfer == push.transfer
            push.abort(receipt if match else None)
        if push.rows is self.accumulator:
            self.accumulator.received(push.taken_chunks())
        computation_of(self.command.step).after_push(self.accumulator, push)
        if push.receipt is not None and push.receipt.refused:
            self.statistics.refused += 1
            self.accumulator.reset()  # otherwise the refused rows would be sent again forever

    # -- time and control --------------------------------------------------------------------------

    def on_time(self, now: float) -> list[Action]:
        """Send the messages that are due: a registration, or chunks of the push."""
        if self.state == REGISTERING and now >= self._register_at:
            self._interval = min(2 * self._interval, MAX_REGISTER_INTERVAL)
            return self._register(now)
        return self._poll(now) if self.state == PUSHING else []

    @property
    def deadline(self) -> float:
        """Time at which `on_time` must be called; infinity means never."""
        if self.state == REGISTERING:
            return self._register_at
        if self.state == PUSHING and self.push is not None:
            return self.push.deadline
        return math.inf

    def pause(self, now: float) -> None:
        """Leave the fleet for a while.

        The shell must report the pause to the server. During the pause, no robot waits for this
        worker. Its transfers end as if the link were lost. The worker keeps the rows that have not
        arrived at the server, and the gradient that is being computed.
        """
        self._move('pause', now)

    def resume(self, now: float) -> list[Action]:
        """Rejoin the fleet with the rows that the worker has kept."""
        self._move('resume', now)
        return self._register_soon(now)

    def leave(self, now: float) -> None:
        """Stop at once, because the user asks for it."""
        self._move('leave', now)

    # -- statistics --------------------------------------------------------------------------------

    @property
    def activity(self) -> str:
        """The present activity of the robot: computing, communicating or stalled."""
        if self.gradient == BUSY:
            return COMPUTES
        return COMMUNICATES if self.state in (PUSHING, PULLING) else STALLS

    def _settle(self, now: float) -> None:
        """Add the time since the last call to the statistics, as time of the present activity."""
        began = self.command.next_iteration > 0  # time before the first grant is not counted
        if began and self.state not in (STOPPED, PAUSED):
            name = TIME_OF[self.activity]
            setattr(self.statistics, name,
                    getattr(self.statistics, name) + max(now - self.since, 0.0))
        self.since = now

    @property
    def finished(self) -> int:
        """Number of iterations whose gradient has been computed."""
        return max(self.iteration - (self.state == COMPUTING), 0)

    def report(self, now: float) -> WorkerReport:
        """Return the worker's state and its statistics up to ``now``."""
        self._settle(now)
        counted = self.statistics
        return WorkerReport(
            self.state, self.sync, self.finished,
            self.command.staleness, self.partition.rows, self.last_pushed_rows,
            self.last_pulled_rows, self.link.rate * 8e-6, counted.compute_time,
            counted.communicate_time, counted.stall_time, counted.bytes_sent,
            counted.bytes_received)
