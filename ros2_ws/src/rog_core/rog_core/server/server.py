"""The parameter server, as a state machine.

Source: ROG, Section IV-A, Algorithm 2; joining and leaving robots are our addition. A `Member` is
the server's data about one robot; the table `rog_core.protocol.states.MEMBER` has its states. A
robot that registers again becomes a new member. Members are active while they are waiting, pulling,
training or draining. Staleness, the mean of the pushes and the MTA time are computed over the
active members. If a member makes no progress while others wait for it, the server *retires* it
(the table `rog_core.protocol.states.PLACE`): the member is not active until its next push has
arrived, but its transfers continue.

The class follows the protocol: a robot registers, receives the model, enters, waits, pulls, pushes
and leaves; then come time and the control of the run.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from ..arrays import all_finite, difference_magnitude, first_bad
from ..codecs import RAW, SMALLER, Codec, get_codec
from ..errors import ConfigError, LocalProtocolError, RemoteProtocolError
from ..methods import Method, Team
from ..methods.base import Model, Standing
from ..model.partition import Role, RowPartition
from ..patience import Patience, fleet_patience
from ..protocol.config import ServerConfig
from ..protocol.messages import (
    Ack,
    Action,
    Chunk,
    Command,
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
    COMPUTING,
    COUNTED,
    DRAINING,
    JOINING,
    PULLING,
    RETIRED,
    RUNNING,
    SENDING,
    SERVER,
    STARVED,
    STOPPING,
    TRAINING,
    WAITING,
)
from ..transfer import plan as plans
from ..transfer.link import RowLink
from ..transfer.receiver import Receiver
from ..transfer.receiver import Rows as Received
from ..transfer.sender import RawRows, Rows, Sender
from . import buffers
from .admission import refusal
from .aggregation import Aggregation, ServerState
from .member import BUSY, LEAST, Member, budget, leeway
from .mirror import Mirror
from .push_filter import LARGEST, PushFilter

ACTIVE = (WAITING, PULLING, TRAINING, DRAINING)

# A push can arrive before the receipt of the pull that preceded it. Until the receipt arrives, the
# server stores at most this many messages of the push.
EARLY = 64


class Transfer(NamedTuple):
    """What the server sends to a worker; the fields are arguments of `Sender`."""

    kind: Kind
    plan: plans.Plan
    codec: Codec
    rows: Rows
    command: Command


class Server:
    """The server's state machine; its methods take an event and the time, and return actions.

    ``master``: the model, flat float32 (elements,), changed in place. ``frozen``: values of the
    frozen parameters, flat float32; a model without them needs none. ``incarnation``: random 64-bit
    identity of this process. Raises `ConfigError` if the values of ``config`` cannot work, or the
    model is not finite.
    """

    def __init__(self, partition: RowPartition, master: np.ndarray, incarnation: int,
                 config: ServerConfig, frozen: np.ndarray | None = None) -> None:
        if not all_finite(master):
            raise ConfigError(f'parameter {partition.owner(first_bad(master))} of the model holds '
                              'NaN or infinite values; start from a model that is finite')
        self.partition, self.master, self.frozen = partition, master, frozen
        self.incarnation, self.config = incarnation, config
        self.codec: Codec = get_codec(config.transfer.codec)
        self.model = Model(partition, master, self.codec)
        self.aggregation = Aggregation(config.sync, self.model, Team(
            config.capacities, self.codec.name, config.momentum, config.clip, config.above))
        self.filter = PushFilter(config.implausible, config.clip, master[:partition.buffers.start])
        # maps each robot to the number of its pushes that were refused as implausible
        self.refused: Counter[str] = Counter()
        # maps a robot to the number of its pushes that were scaled down
        self.clipped: Counter[str] = Counter()
        self.state = RUNNING
        self.members: dict[str, Member] = {}
        # For each master row, the iteration of the newest push that carried this row.
        # A change by the parent fleet counts as a push of the present `iteration`.
        self.updated_at = np.zeros(partition.rows, np.int64)
        self.iteration = 0         # highest iteration pushed by any robot
        # After a restart of the server: for each robot, its incarnation and the receipt of its last
        # push, from the checkpoint.
        self.former_pushes: dict[str, tuple[int, Receipt]] = {}
        self.restarted = False     # whether the server has resumed and no robot has registered yet
        # After a restart, the server waits until this time for the robots that the method expects.
        self.missed_at = math.inf
        # Robots for which a restarted server no longer waits, unless they have registered again.
        self.missing: frozenset[str] = frozenset()
        # the present patience of the fleet in seconds, see `rog_core.patience`
        self.patience = fleet_patience((), config.patience, config.heartbeat_limit)
        # The time after which an ending run waits for no gradient, but sends the final model; and
        # the time by which it must end.
        self.drain_at, self.stop_by = math.inf, math.inf
        # For each robot, a time that is not later than the result of `_due`. None: compute the
        # times of all robots again.
        self._dues: dict[str, float] | None = None
        self.paused = False        # if true, no iteration is granted; transfers continue

    @property
    def method(self) -> Method:
        """The present method."""
        return self.aggregation.method

    @property
    def stopping(self) -> bool:
        """Whether the run is ending."""
        return self.state == STOPPING

    def is_member(self, robot: str, incarnation: int) -> bool:
        """Return whether this process of the robot is a member that is neither away nor stopped."""
        member = self.members.get(robot)
        return member is not None and member.incarnation == incarnation and member.alive

    def active(self) -> list[Member]:
        """Return the members that take part in training; see `rog_core.server.server`."""
        return [m for m in self.members.values()
                if m.state in ACTIVE and m.patience.place == COUNTED]

    def _living(self, robot: str) -> Member | None:
        member = self.members.get(robot)
        return member if member is not None and member.alive else None

    def _standings(self) -> dict[str, Standing]:
        return {m.robot: m.standing for m in self.active()}

    def _partition_of(self, kind: Kind) -> RowPartition:
        return self.partition.raw_partition if kind.is_raw else self.partition

    def _count_slowest(self, member: Member) -> None:
        """Set ``member.slowest`` to the iteration of its oldest row.

        If the method does not count staleness by row, set it to the iteration of the member.
        """
        member.slowest = int(member.versions.min()) if self.method.by_row else member.iteration

    # -- a robot registers -------------------------------------------------------------------------

    def on_register(self, request: RegisterRequest, now: float
                    ) -> tuple[RegisterResponse, list[Action]]:
        """Answer a registration; a refusal leaves the server unchanged."""
        refused = self._refusal(request, now)
        if refused is not None:
            return refused, []
        if self.restarted:
            self.restarted = False
            self.missed_at = now + self.config.heartbeat_limit
        former = self.members.get(request.robot)
        if former is not None and former.incarnation != request.incarnation:
            former = None
        if former is not None and former.answer is not None and request.number <= former.request:
            return former.answer, []  # a duplicate of an earlier request
        push = self._known_push(request)
        if push is not None and push.transfer.attempt > request.attempt:
            # The number of this push is higher than that of the worker's last push, so it is not a
            # push of this worker.
            push = None
        actions: list[Action] = []
        if former is not None and former.state == JOINING:
            member, attempt = former, former.attempt  # the snapshot is still under way
        else:
            member = self._admit(request, now)
            attempt = member.attempt + 1
            if push is not None:
                member.push.restore(push)
            if former is not None and former.mirror.known:  # the process still has its rows
                former.reconcile(request.pull)
                member.mirror = former.mirror
                actions = self._enter(member, former.pulled_at, now)
            else:
                actions = self._send(member, self._snapshot(), now)
            actions += self._release(now)
        member.request = request.number
        member.answer = RegisterResponse(
            True, incarnation=self.incarnation, iteration=self.iteration, attempt=attempt,
            sync=str(self.method), push=push)
        return member.answer, actions

    def _refusal(self, request: RegisterRequest, now: float) -> RegisterResponse | None:
        if self.stopping:
            return RegisterResponse(False, 'the run is over; the server is stopping', over=True)
        refused = refusal(request, self.partition, self.codec, self.members, now,
                          self.config.heartbeat_limit)
        if refused is None and (reason := self.method.refusal(request.robot)):
            refused = RegisterResponse(False, reason)
        return refused

    def _known_push(self, request: RegisterRequest) -> Receipt | None:
        """End the last push of the process that registers, and return its receipt.

        The receipt names the chunks that have arrived. If the server has restarted since this push,
        the receipt comes from the checkpoint. Returns None if the server has no push of this
        process.
        """
        member = self.members.get(request.robot)
        if member is not None and member.incarnation == request.incarnation:
            taken = member.push.close()
            if taken.size:
                self._close(member, taken)
            return member.push.known()
        incarnation, receipt = self.former_pushes.get(request.robot, (None, None))
        return receipt if incarnation == request.incarnation else None

    def _admit(self, request: RegisterRequest, now: float) -> Member:
        robot, incarnation = request.robot, request.incarnation
        former = self.members.get(robot)
        receiver = Receiver(self.partition, frozenset({Kind.PUSH, Kind.ANCHOR}),
                            incarnation ^ self.incarnation, self.codec,
                            floor=request.attempt + 1)
        transfer, rows = self.config.transfer, self.partition.rows
        link, attempt = (former.link, former.attempt) if former is not None else (
            RowLink(transfer.chunk_bytes, transfer.chunk_time, transfer.traffic), 0)
        if former is not None and former.incarnation != incarnation:
            link.forget()
        patience = Patience(self.config.heartbeat_limit, now) if former is None \
            else former.patience.of_new_connection(now, self.patience)
        self.members[robot] = member = Member(
            robot, incarnation, receiver, Mirror(self.partition, self.master),
            np.zeros(rows, np.int64), np.zeros(rows, np.int64), self.partition.trained(),
            self.method.row_bound, patience, link, attempt)
        self.aggregation.joined(robot)
        return member

    # -- it enters, at an iteration that delays no other member ------------------------------------

    def _start_iteration(self) -> int:
        """Return the highest iteration at which a new member neither waits nor delays a member."""
        bound, slowest = self.method.bound, [m.slowest for m in self.active()]
        if not slowest:
            return self.iteration
        newest = max(m.iteration for m in self.active())
        return newest if math.isinf(bound) else int(min(newest, min(slowest) + bound - 1))

    def _enter(self, member: Member, pulled_at: np.ndarray, now: float) -> list[Action]:
        """Make a member active.

        The member's mirror must be known. If others have waited too long for earlier processes or
        connections of this robot, the member begins as a retired member. ``pulled_at``: see
        `Member`.
        """
        member.iteration = member.slowest = self._start_iteration()
        member.versions[:] = member.iteration
        member.pulled_at = pulled_at
        member.since, member.bound = now, self.method.row_bound
        member.move('enter')
        patience = member.patience
        if patience.place == COUNTED and patience.stays_away(now, self.patience):
            patience.retire(now, self.patience)
            return [Notice(member.robot, 'retired', f'the others had waited {patience.cost:.1f} s '
                           f'before; they go on without it for {patience.until - now:.1f} s')]
        return self._take_back(member, now)

    def _take_back(self, member: Member, now: float) -> list[Action]:
        """Make a retired member active again, unless it must stay away for some more time."""
        patience = member.patience
        if patience.place == COUNTED or patience.stays_away(now, self.patience):
            return []
        start = self._start_iteration()
        member.iteration = max(member.iteration, start)
        np.maximum(member.versions, start, out=member.versions)
        self._count_slowest(member)
        member.bound = self.method.row_bound
        patience.take_back(now)
        return [Notice(member.robot, 'returned', f'at iteration {member.iteration}')]

    # -- it waits until it may continue ------------------------------------------------------------

    def _release(self, now: float) -> list[Action]:
        """Start the pull of every waiting member that may continue according to the method."""
        active, method, config = self.active(), self.method, self.config
        fleet = self._standings()
        self.patience = fleet_patience((m.period for m in active), config.patience,
                                       config.heartbeat_limit)
        self._dues = None
        gone = {name for name, m in self.members.items()
                if not m.alive or m.patience.place == RETIRED}
        self.aggregation.settle(fleet, frozenset(gone | (self.missing - self.members.keys())))
        if self.stopping:
            return self._drain(now)
        # After a change to a smaller bound, the old bound applies to a member until its next push.
        widest = max((m.bound for m in active if method.by_row), default=0.0)
        least = widest if widest > method.row_bound else 0.0
        actions: list[Action] = []
        awaited: set[str] = set()
        for member in () if self.paused else active:
            if member.state == WAITING:
                member.waiting_for = method.held_up_by(member.robot, fleet, least)
                if not member.waiting_for:
                    method.on_wait(member.robot, now - member.since)
                    actions += self._grant(member, now)
                else:
                    awaited.update(member.waiting_for)
        for member in self.members.values():
            member.patience.wait(member.robot in awaited, now)
        return actions

    def _grant(self, member: Member, now: float) -> list[Action]:
        """Begin the pull that grants a member its next iteration."""
        pull = self._pull(member)
        sending, step = pull.command.sending, pull.command.step
        member.granted_bound, member.step = self.method.row_bound, step
        member.granted = member.push.granted = pull.command.next_iteration
        member.push.kind = Kind.ANCHOR if step.uncompressed else Kind.PUSH
        member.granted_at = now
        partition = self.partition
        pushed = partition.raw_partition if step.uncompressed else partition
        segments = max(int(pushed.segments_of_row[member.trained].sum()), 1)
        member.factor = max(sending.mta * partition.rows
                            / max(sending.minimum * partition.rows, 1), 1.0)
        member.wanted = segments if step.uncompressed else math.ceil(
            max(sending.minimum, LEAST) * step.share * segments)
        member.move('pull')
        return self._send(member, pull, now)

    # -- what it is sent ---------------------------------------------------------------------------

    def _pull(self, member: Member) -> Transfer:
        """Plan the pull of a member that may start its next iteration."""
        active, method, partition = self.active(), self.method, self.partition
        config, sending = self.config.transfer, self.method.sending()
        pending = member.mirror.measure()
        differ, age = pending > 0, member.iteration - member.pulled_at
        if config.buffers == 'local':
            differ[partition.buffer_rows] = False
        candidates = differ & member.step.turn(age) & plans.due_buffers(partition, sending, age)
        time = budget(member, active) if method.time_limited else math.inf
        if sending.minimum < 1:
            scores = plans.importance(pending, self.updated_at - self.updated_at.min(),
                                      config.importance_magnitude, config.importance_age,
                                      partition.buffer_rows)
            # Bound the staleness of pulled rows, too, not only of pushed rows; this is not in the
            # paper.
            plan = plans.by_importance(partition, sending, scores, age, candidates, time)
        else:
            plan = plans.everything(partition, np.flatnonzero(candidates))
        member.pulled_at[~differ] = member.iteration
        left = leeway(member, active, method)
        codec = plans.affordable(plan, partition, self.codec, SMALLER, member.link.rate, left)
        iteration, step = method.grant(member.robot, member.iteration)
        staleness = member.iteration - min(m.slowest for m in active)
        command = Command(iteration, time, staleness, str(method), patience=left, sending=sending,
                          ahead=method.goes_ahead(staleness), step=step)
        self._check(command, member)
        # With SVRG, all robots wait at a barrier before a full gradient. At the barrier, all
        # members have the same model, apart from rounding. Only a member that was out of reach may
        # have an older model.
        current = bool((member.pulled_at >= member.iteration - 1).all())
        full = self.aggregation.full.of(member.iteration) if current else None
        if full is not None:
            return self._raw(Kind.ANCHOR, full, command, partition.trained())
        return Transfer(Kind.PULL, plan, codec, member.mirror, command)

    def _check(self, command: Command, member: Member) -> None:
        """Raise `LocalProtocolError` if the robot would refuse the command or make no progress."""
        reason = ''
        # `Step.additive` is false if unsent rows of a step must not be added to a later result. The
        # push of such a step may arrive after the end of its round. Then the server may grant the
        # same iteration again.
        least = member.iteration + command.step.additive
        if not command.next_iteration >= least:
            reason = f'grant must return an iteration of at least {least}, got ' \
                     f'{command.next_iteration}'
        try:
            command.check()
        except RemoteProtocolError as error:
            reason = str(error)
        if reason:
            raise LocalProtocolError(f"synchronisation method '{self.method}', {member.robot} "
                                     f'after iteration {member.iteration}: {reason}')

    def _snapshot(self) -> Transfer:
        """Plan a transfer of the whole model, for a worker that joins."""
        return self._raw(Kind.SNAPSHOT, self.master, Command())

    def _final(self, member: Member) -> Transfer:
        """Plan the transfer of the final model, which may take ``drain_limit`` seconds.

        The plan has the rows that differ from the worker's rows, the largest difference first.
        """
        pending = member.mirror.measure()
        partition = self.partition.raw_partition
        if self.config.transfer.buffers == 'local':
            pending[partition.buffer_rows] = 0
        plan = plans.by_score(partition, pending, np.flatnonzero(pending > 0),
                              self.config.drain_limit)
        return Transfer(Kind.FINAL, plan, RAW, RawRows(partition, self.master),
                        Command(sync=str(self.method), stop=True))

    def _raw(self, kind: Kind, values: np.ndarray, command: Command, rows: np.ndarray | None = None
             ) -> Transfer:
        partition = self.partition.raw_partition
        plan = plans.everything(partition, None if rows is None else np.flatnonzero(rows))
        return Transfer(kind, plan, RAW, RawRows(partition, values), command)

    # -- it pulls ----------------------------------------------------------------------------------

    def _send(self, member: Member, transfer: Transfer, now: float) -> list[Action]:
        """Begin a transfer to a member."""
        member.attempt += 1
        member.patience.advance(now)
        number = TransferId(member.incarnation ^ self.incarnation, transfer.kind,
                            member.iteration, member.attempt)
        member.sender = Sender(number, self._partition_of(transfer.kind), transfer.plan,
                               transfer.codec, transfer.rows, member.link, now, transfer.command)
        return self._poll(member, now)

    def _poll(self, member: Member, now: float) -> list[Action]:
        """Return the messages of the member's transfer that may be sent now."""
        if member.sender is None:
            return []
        messages = member.sender.poll(now)
        self._note_due(member)
        return [Send(member.robot, message) for message in messages]

    def on_ack(self, robot: str, ack: Ack, now: float) -> list[Action]:
        """Handle the acknowledgement of chunks of a transfer to a worker."""
        member = self._living(robot)
        if member is None or ack.incarnation != member.incarnation ^ self.incarnation:
            return []
        sender = member.sender
        if sender is None:  # the transfer is over, but its chunks were still on the way
            member.link.on_ack(ack, now)
            return []
        before = sender.segments_arrived
        sender.on_ack(ack, now)
        member.patience.hear(now)
        if sender.segments_arrived > before:
            member.patience.bring(sender.segments_arrived - before, before, sender.plan.wanted,
                                  sender.partition.segments, self.patience, now)
        return self._poll(member, now)

    def on_receipt(self, robot: str, receipt: Receipt, now: float) -> list[Action]:
        """Handle the receipt of a transfer, which names the chunks that have arrived.

        Then handle the messages of the next push that have arrived before the receipt.
        """
        actions, member = self._on_receipt(robot, receipt, now), self._living(robot)
        if member is not None and member.state == TRAINING:
            messages, member.early = member.early, []
            for message in messages:
                # an invalid message counts as lost; the receipt remains valid
                with suppress(RemoteProtocolError):
                    actions += self.on_end(robot, message, now) if isinstance(message, End) \
                        else self.on_chunk(robot, message, now)
        return actions

    def _on_receipt(self, robot: str, receipt: Receipt, now: float) -> list[Action]:
        member = self._living(robot)
        if member is None or member.sender is None or not member.sender.on_receipt(receipt, now):
            return []
        sender, member.sender = member.sender, None
        kind = sender.transfer.kind
        member.patience.hear(now)
        member.patience.advance(now, computes=kind in (Kind.PULL, Kind.ANCHOR))
        if kind in (Kind.SNAPSHOT, Kind.FINAL):
            member.mirror.stored(sender.taken_chunks())
            member.pulled_at[:] = self.iteration
            if kind == Kind.FINAL:
                self._drop(member, 'drained', now)
                return self._finish()
            return [*self._enter(member, member.pulled_at, now), *self._release(now)]
        complete = self._partition_of(kind).rows_complete(sender.taken())
        member.rows_pulled = int(complete.sum())
        if kind == Kind.PULL:
            member.mirror.taken(sender.codec, sender.taken_chunks())
        member.pulled_at[complete] = member.iteration
        if math.isfinite(sender.mta_duration):  # infinity means that the MTA has not arrived
            member.pull_mta = sender.mta_duration
        member.move('pulled')
        self._note_due(member)  # the end of a run may not wait for its push
        return []

    # -- it pushes ---------------------------------------------------------------------------------

    def on_chunk(self, robot: str, chunk: Chunk, now: float) -> list[Action]:
        """Handle rows of a worker's push."""
        member = self._living(robot)
        if member is None:
            return []
        if member.push.is_closed(chunk.transfer):  # a repeated chunk: the receipt was lost
            assert member.push.receipt is not None
            if member.push.has(chunk.sequence):
                member.patience.hear(now)
            return [Send(robot, member.push.acknowledge(chunk, now)),
                    Send(robot, member.push.receipt)]
        if member.state != TRAINING:
            return self._untimely(member, chunk, now)
        ack, rows = member.push.on_chunk(chunk, now)
        actions: list[Action] = [Send(robot, ack)]
        if not member.push.is_open(chunk.transfer):
            return actions
        member.patience.hear(now)  # even a repeated chunk shows that the robot is running
        if rows is not None:
            actions += self._apply(member, rows, now)
        if self.aggregation.counts(member) \
                and not self.method.in_time(robot, chunk.transfer.iteration):
            taken = member.push.close()  # the method no longer uses this push, so end it
            assert member.push.receipt is not None
            return [*actions, Send(robot, member.push.receipt), *self._pushed(member, taken, now)]
        if (end := member.push.due) is not None:
            actions += self.on_end(robot, end, now)
        return actions

    def _untimely(self, member: Member, message: Chunk | End, now: float) -> list[Action]:
        """Handle a message of a push for which the server does not wait, or not yet.

        A message that has arrived before the receipt of the pull is stored until the receipt comes.
        """
        if not member.push.is_open(message.transfer):
            return []
        if member.state == DRAINING:
            member.push.check(message.transfer)
            # the worker takes the final model when its push is over
            return [Send(member.robot, Receipt(message.transfer, 0, b'', 0))]
        if member.state == PULLING and len(member.early) < EARLY:
            if isinstance(message, End):
                member.push.examine_end(message)
            else:
                member.push.examine(message)
            member.early.append(message)
            if member.sender is not None:
                # ask for the receipt again, because it may have been lost
                member.sender.on_heard(now)
                self._note_due(member)
        return []

    def _apply(self, member: Member, rows: Received, now: float) -> list[Action]:
        """Apply the new rows that the filter accepts.

        Returns a `Notice` when the filter refuses rows of this push for the first time.
        """
        push = member.push
        known = self._partition_of(rows.transfer.kind)
        if rows.ids[-1] >= known.segments:  # the robot has unfrozen a parameter
            self.grow()
        member.patience.bring(rows.ids.size, push.taken - rows.ids.size, member.wanted,
                              push.rows_of(rows.transfer).segments, self.patience, now)
        if known.are_buffers(rows.ids):
            return self._apply_buffers(member, rows)
        robots = len(self.active())
        passed = self.filter.passed(push, rows, max(robots, len(self.config.capacities)))
        if passed is not None:
            self.aggregation.take(member, passed, robots)
        elif push.refused == 1:
            self.refused[member.robot] += 1
            return [Notice(member.robot, 'push_refused', 'the push of iteration '
                           f'{rows.transfer.iteration} is refused: {self.filter.reason}')]
        return []

    def _apply_buffers(self, member: Member, rows: Received) -> list[Action]:
        push = member.push
        absurd = self.config.implausible and buffers.is_absurd(
            self.partition, self.master, rows.energy)
        if push.refused or absurd or rows.energy > LARGEST ** 2:
            push.refused += 1
            if push.refused > 1:
                return []
            self.refused[member.robot] += 1
            return [Notice(member.robot, 'push_refused', 'it changes buffers, such as the '
                           'statistics of a BatchNorm, as no healthy robot does; are the inputs '
                           'of a very large scale?')]
        self.aggregation.take_buffers(member, rows, self.active(),
                                      self.config.transfer.buffers == 'local')
        return []

    def on_end(self, robot: str, end: End, now: float) -> list[Action]:
        """Handle the end of a worker's push; from now on the worker waits for its pull."""
        member = self._living(robot)
        if member is None:
            return []
        if not (end.mta_duration >= 0 and math.isfinite(end.mta_duration)):
            raise RemoteProtocolError('MTA duration in an end of transfer must be a finite number '
                                      f'of seconds, at least 0, got {end.mta_duration}')
        if member.state != TRAINING and not member.push.is_closed(end.transfer):
            return self._untimely(member, end, now)
        closed = member.push.on_end(end)
        if closed is None:
            return []
        receipt, taken = closed
        actions: list[Action] = [Send(robot, receipt)]
        if taken is not None:
            member.patience.hear(now)
            member.patience.advance(now)
            self._note_switched(member, end.switched)
            # The reported duration decides how long every transfer of the fleet sends. It may be
            # false, so limit it.
            most = (now - member.granted_at) * member.factor
            member.push_mta = min(end.mta_duration, most)
            actions += self._pushed(member, taken, now)
        return actions

    def _note_switched(self, member: Member, switched: tuple[int, ...]) -> None:
        """Note which parameters a robot has frozen or unfrozen; ignore impossible numbers."""
        parameters = self.partition.grown.parameters
        if any(k < len(parameters) and parameters[k].role == Role.FROZEN for k in switched):
            self.grow()
        member.trained = self.partition.trained(switched)
        if switched:
            rest = self.partition.trained() & ~np.any(
                [m.trained for m in self.members.values() if m.alive], axis=0)
            self.aggregation.rest(rest)

    def _pushed(self, member: Member, taken: np.ndarray, now: float) -> list[Action]:
        self._close(member, taken)
        member.move('pushed')
        member.bound, member.since = member.granted_bound, now
        member.has_pushed(now)
        actions = self._take_back(member, now)
        # of this robot, too, which may have to stay away
        fleet = {**self._standings(), member.robot: member.standing}
        self.aggregation.pushed(member, fleet, now)
        return [*actions, *self._release(now)]

    def _close(self, member: Member, taken: np.ndarray) -> None:
        """Count the rows of a push that has ended; ``taken``: its segments."""
        push = member.push
        assert push.transfer is not None
        self.clipped[member.robot] += self.filter.learn(
            member.robot, push, [m.robot for m in self.active()])
        iteration = push.transfer.iteration
        complete = self._partition_of(push.transfer.kind).rows_complete(taken)
        member.is_whole = bool(complete[member.trained].all())
        current = complete | ~member.trained  # the robot has nothing to push in the other rows
        member.versions[current] = np.maximum(member.versions[current], iteration)
        member.iteration = max(member.iteration, iteration)
        self._count_slowest(member)
        member.rows_pushed = int(complete.sum())
        self.updated_at[complete] = np.maximum(self.updated_at[complete], iteration)
        self.iteration = max(self.iteration, iteration)

    def grow(self) -> None:
        """Take up the rows of the frozen parameters, because a robot has unfrozen one of them."""
        if not self.partition.frozen:
            return
        assert self.frozen is not None, 'a model with frozen parameters needs their values'
        self.partition = self.partition.grown
        self.master = np.concatenate([self.master, self.frozen])
        self.model = Model(self.partition, self.master, self.codec)
        self.aggregation.grow(self.model)
        rows = self.partition.rows
        self.updated_at = _longer(self.updated_at, rows, 0)
        for member in self.members.values():
            member.mirror.grow(self.partition, self.master)
            member.versions = _longer(member.versions, rows, member.iteration)
            member.pulled_at = _longer(member.pulled_at, rows, member.iteration)
            member.trained = _longer(member.trained, rows, False)

    def on_model_above(self, former: np.ndarray, model: np.ndarray) -> None:
        """Add the change of the parent fleet's model to the master rows.

        ``former`` and ``model``: this model before and after the change, float32 (elements,).
        Robots receive the change with their next pulls, like the pushes of other robots. No robot
        waits for the change, and the change does not count as an iteration.
        """
        if len(model) > len(self.master):
            self.grow()
        change = model - former
        offsets = self.partition.offsets
        moved = self.partition.row_sum(difference_magnitude(model, former, offsets))
        part = self.partition.buffers
        before = self.master[part].copy()
        self.master += change
        if before.size:
            self.master[part] = buffers.combined(
                before, self.master[part], model[part], self.partition.are_integers,
                1 / (1 + len(self.active())))
        self.updated_at[moved > 0] = self.iteration

    # -- it is silent, too slow, or leaves ---------------------------------------------------------

    def on_heartbeat(self, robot: str, incarnation: int, now: float, loss: float = math.nan,
                     state: str = WAITING) -> list[Action]:
        """Handle a robot's heartbeat; the robot must register again if `is_member` is false for it.

        ``loss``: loss of the robot's last batch; NaN if unknown. ``state``: state of its worker. A
        worker in the state computing makes progress, unless its gradient takes far longer than
        usual. A worker in the state starved (without data) makes no progress.
        """
        member = self.members.get(robot)
        if member is None or not self.is_member(robot, incarnation):
            return []
        patience, member.loss = member.patience, loss
        patience.hear(now)
        if state == COMPUTING:
            patience.compute(now, self.patience,
                             (m.patience.usual for m in self.members.values()))
        if state not in (COMPUTING, STARVED) and member.has_to_act \
                and now >= patience.lost_at(self.patience):
            # The member and the server wait for each other; a forged receipt can cause this. The
            # worker notices that it was dropped and registers again. Then worker and server
            # continue with the rows that they really have.
            detail = f'no progress for {now - patience.progress:.1f} s while {member.state}'
            return [Notice(member.robot, 'out_of_step', f'{detail}; it must register again'),
                    *self._without(member, 'silent', now)]
        if member.sender is None:
            return []
        member.sender.on_heard(now)
        return self._poll(member, now)

    def on_leave(self, robot: str, incarnation: int, now: float) -> list[Action]:
        """Handle a worker's message that it leaves the fleet."""
        if not self.is_member(robot, incarnation):
            return []
        return self._without(self.members[robot], 'leave', now)

    def _without(self, member: Member, event: str, now: float) -> list[Action]:
        """Go on without a member."""
        self._drop(member, event, now)
        return [*self._release(now), *self._finish()]

    def _drop(self, member: Member, event: str, now: float) -> None:
        """Remove a member by ``event``, see the table `MEMBER`; then no robot waits for it."""
        member.patience.fail(now, self.patience)
        member.move(event)
        member.waiting_for = []

    def _retire(self, member: Member, now: float) -> list[Action]:
        """Retire a member that makes no progress; if the run is ending, drop it instead."""
        patience = member.patience
        detail = f'no progress for {now - patience.progress:.1f} s while {member.state}'
        if self.stopping:
            return self._give_up(member, detail, now)
        if patience.paid < patience.progress and member.state == TRAINING:
            detail = (f'only {member.push.taken} of {self.partition.segments} rows of its push in '
                      f'{now - member.granted_at:.1f} s')
        patience.retire(now, self.patience)
        again = f' without it for at least {patience.away:.1f} s, because it was so before' \
            if patience.away else ''
        return [Notice(member.robot, 'retired', f'{detail}; the others go on{again}')]

    def on_time(self, now: float) -> list[Action]:
        """Handle everything that is due: retransmissions, time-outs, missing heartbeats."""
        actions: list[Action] = []
        lost = now >= self.missed_at
        if lost:
            self.missed_at, self.missing = math.inf, self.method.expected
        if now >= self.method.deadline:
            self.method.on_time(now)
            lost = True  # now the method may let waiting members continue
        for robot in [robot for robot, due in self._all_due().items() if now >= due]:
            member = self.members[robot]
            if member.alive and (member.patience.is_silent(now) or now >= self.stop_by):
                self._drop(member, 'silent', now)
                lost = True
            elif now >= self._drains_at(member):
                actions += self._end_iteration(member, now)
                lost = True
            elif member.alive and now >= self._retires_at(member):
                actions += self._retire(member, now)
                lost = True
            elif now >= self._back_at(member):
                actions += self._take_back(member, now)
                lost = True
            elif member.sender is not None and now >= member.sender.deadline:
                actions += self._poll(member, now)
            self._note_due(member)
        if lost:
            actions += [*self._release(now), *self._finish()]
        return actions

    @property
    def deadline(self) -> float:
        """Return a time by which the caller must call `on_time`; it may be earlier than necessary.

        Infinity means never.
        """
        return min(self.missed_at, self.method.deadline,
                   *self._all_due().values())

    def deadline_of(self, robot: str) -> float:
        """Return the time by which `on_time` must be called for this robot.

        Infinity means never.
        """
        member = self._living(robot)
        return math.inf if member is None else min(self._due(member), self.method.deadline)

    def _due(self, member: Member) -> float:
        """Return the time at which the server must act on a member; infinity means never."""
        if not member.alive:
            return math.inf
        due = min(member.patience.silent_at, self.stop_by, self._retires_at(member),
                  self._back_at(member), self._drains_at(member))
        return due if member.sender is None else min(due, member.sender.deadline)

    def _retires_at(self, member: Member) -> float:
        """Return the time at which a member without progress retires."""
        if self.stopping:  # an overdue member is dropped for good, so wait longer
            limit = max(self.patience, self.config.heartbeat_limit)
            return math.inf if member.state == WAITING else member.patience.progress + limit
        return member.patience.retires_at(self.patience) if member.has_to_act else math.inf

    def _back_at(self, member: Member) -> float:
        """Return the time at which a retired member that waits becomes active again."""
        patience = member.patience
        return patience.until if patience.place == RETIRED and member.state == WAITING \
            else math.inf

    def _drains_at(self, member: Member) -> float:
        """Return the time at which the end of a run cuts a member's iteration short."""
        sending = member.sender is None or member.sender.state == SENDING
        return self.drain_at if member.state in BUSY and sending else math.inf

    def _all_due(self) -> dict[str, float]:
        """Return a map from each robot to a time that is not later than the result of `_due`.

        If an event postpones the due time of a member, the map may keep the former, earlier time.
        So most changes of a member need no new computation.
        """
        if self._dues is None:
            self._dues = {robot: self._due(member) for robot, member in self.members.items()}
        return self._dues

    def _note_due(self, member: Member) -> None:
        """Compute a member's due time again, because the time may have become earlier."""
        if self._dues is not None:
            self._dues[member.robot] = self._due(member)

    def on_held_up(self, seconds: float, now: float) -> None:
        """Take into account that this process did not run for ``seconds``.

        This time does not count as a delay of any member.
        """
        for member in self.members.values():
            member.patience.excuse(seconds, now)

    # -- control of the run ------------------------------------------------------------------------

    def set_sync(self, text: str, now: float) -> list[Action]:
        """Change the method of a running fleet; if this raises `ConfigError`, nothing has changed.

        For a method from another package, the caller must first call
        `rog_core.method_check.check_named`, which imports the method's module. A state machine
        itself imports no module of a method.
        """
        newest = max([self.iteration, *(m.granted for m in self.members.values())])
        self.aggregation.change(text, self.members, newest)
        self.filter.begin()
        for member in self.members.values():
            self._count_slowest(member)
        return self._release(now)

    def pause(self, now: float) -> list[Action]:
        """Grant no iteration until `resume`: every worker finishes its iteration, then waits."""
        self.paused = True
        for member in self.members.values():
            # the member waits for the end of the pause, not for another robot
            member.waiting_for = []
        return self._release(now)

    def resume(self, now: float) -> list[Action]:
        """Continue after a pause; the pause does not count as a delay of any robot."""
        self.paused = False
        for member in self.members.values():
            member.since = now
            member.patience.forget(now)
        return self._release(now)

    def stop(self, now: float) -> list[Action]:
        """End the run: every worker finishes its push, then receives the final model.

        A push that is not over after ``drain_limit`` is cut short.
        """
        if self.stopping:
            return []
        self.state = SERVER.after(self.state, 'stop')
        self.drain_at, self.stop_by = now + self.config.drain_limit, now + self.config.stop_limit
        self._dues = None
        for member in self.members.values():
            member.patience.progress = now  # each member gets the full patience again
        return [*self._drain(now), *self._finish()]

    def _end_iteration(self, member: Member, now: float) -> list[Action]:
        """End the iteration of a member without its gradient, or with a part of it.

        The run ends, so the member needs only the final model. A member of which much of the model
        is still to be sent is given up.
        """
        if member.state == JOINING:
            return self._give_up(member, 'the model has not arrived yet', now)
        if member.sender is not None:  # after the receipt of the pull, this is called again
            member.sender.cut_short(now)
            return self._poll(member, now)
        actions: list[Action] = []
        if member.push.transfer is not None and member.push.is_open(member.push.transfer):
            self._close(member, member.push.close())
            assert member.push.receipt is not None
            actions = [Send(member.robot, member.push.receipt)]
        member.patience.advance(now)
        member.move('pushed')
        return actions

    def _drain(self, now: float) -> list[Action]:
        """Send each worker the final model once the server expects no more messages of workers.

        If a link cannot carry the model within ``drain_limit``, the rows that differ least from the
        worker's rows are omitted.
        """
        living = [m for m in self.members.values() if m.alive]
        if any(m.state in BUSY for m in living):
            return []
        self.aggregation.flush(len(living))
        actions: list[Action] = []
        for member in living:
            if member.state == WAITING:
                member.move('drain')
                actions += self._send(member, self._final(member), now)
        return actions

    def _give_up(self, member: Member, detail: str, now: float) -> list[Action]:
        """Drop a member because the run is ending; ``detail`` says what it lacks."""
        self._drop(member, 'silent', now)
        return [Notice(member.robot, 'given_up', f'{detail}; the run ends without it')]

    def _finish(self) -> list[Action]:
        """Stop the server when the run is ending and no member is left."""
        living = any(m.alive for m in self.members.values())
        return [] if living or not self.stopping else [Stop()]

    def checkpoint(self) -> ServerState:
        """Return the state, besides the master rows, that a restarted server needs."""
        pushes = {name: (m.incarnation, known) for name, m in self.members.items()
                  if (known := m.push.known()) is not None}
        return ServerState(self.iteration, self.method.asked, self.updated_at.copy(),
                           {**self.former_pushes, **pushes}, *self.aggregation.state())

    def load_state(self, state: ServerState) -> None:
        """Resume from a checkpoint; the caller must do this before any worker has registered."""
        if state.updated_at.size > self.partition.rows:
            self.grow()
        if state.updated_at.shape != self.updated_at.shape:
            raise ConfigError(f"the checkpoint's model has {state.updated_at.size} rows; this one "
                              f'has {self.partition.rows}')
        self.aggregation.load(state)
        self.iteration, self.former_pushes = state.iteration, dict(state.pushes)
        self.updated_at[:] = state.updated_at
        self.restarted = True


def _longer(values: np.ndarray, size: int, value: int) -> np.ndarray:
    return np.append(values, np.full(size - values.size, value, values.dtype))
