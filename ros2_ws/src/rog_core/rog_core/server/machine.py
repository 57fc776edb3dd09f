"""The parameter server, as a state machine.

Source: ROG, Section IV-A, Algorithm 2; joining and leaving robots are our addition. A `Member`
stands for one robot; its states and events are the table `rog_core.protocol.states.MEMBER`. A robot
that registers again becomes a new member. Only members that are waiting, pulling, training or
draining are active: staleness, the mean of the pushes and the MTA time are computed over them. The
server *retires* a member that others wait for and that makes no progress (the table
`rog_core.protocol.states.PLACE`): the member is not active until its next push has arrived, but its
transfers continue.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from ..arrays import Array, all_finite, difference_magnitude, first_bad, zeros_like
from ..codecs import Codec, get_codec
from ..errors import ConfigError, RemoteProtocolError
from ..methods import Method, Team
from ..methods.base import Model, Standing
from ..model.partition import RowPartition
from ..protocol.config import ServerConfig
from ..protocol.messages import (
    Ack,
    Action,
    Chunk,
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
    SERVER,
    STARVED,
    STOPPING,
    TRAINING,
    WAITING,
)
from ..transfer.link import LinkEstimate
from ..transfer.receiver import Receiver
from ..transfer.sender import Sender
from .admission import refusal
from .aggregation import Aggregation, ServerState
from .clip import NormBound
from .limits import Limits
from .member import BUSY, LEAST, Member
from .mirror import Mirror
from .plausible import Plausibility
from .pull import Pull, final_of, pull_of, snapshot_of
from .taken import Taken

ACTIVE = (WAITING, PULLING, TRAINING, DRAINING)  # see the module's docstring
EARLY = 64  # chunks of a push that the server keeps until the receipt of the pull before it arrives


class ServerMachine:
    """The protocol of the server. ``master``: flat float32 (elements,), changed in place.

    ``incarnation``: random 64-bit identity of this process. Raises `ConfigError` if the values of
    ``config`` cannot work, or the model is not finite.
    """

    def __init__(self, partition: RowPartition, master: Array, incarnation: int,
                 config: ServerConfig) -> None:
        if not all_finite(master):
            raise ConfigError(f'parameter {partition.owner(first_bad(master))} of the model holds '
                              'NaN or infinite values; start from a model that is finite')
        self.partition, self.master = partition, master
        self.incarnation, self.config = incarnation, config
        self.codec: Codec = get_codec(config.transfer.codec)
        self.model = Model(partition, master, self.codec)
        self.aggregation = Aggregation(config.sync, self.model, Team(
            config.capacities, self.codec.name, config.momentum, config.clip, config.above))
        self.plausibility = Plausibility(config.implausible, master)
        self.norm_bound = NormBound(config.clip)
        self.refused: Counter[str] = Counter()  # implausible pushes by robot
        self.clipped: Counter[str] = Counter()  # pushes that did not count in full
        self.state = RUNNING
        self.members: dict[str, Member] = {}
        self.updated_at = np.zeros(partition.rows, np.int64)  # newest iteration in each master row
        self.iteration = 0         # highest iteration pushed by any robot
        self.former_pushes: dict[str, tuple[int, Receipt]] = {}  # last ones before a restart
        self.taken: dict[str, Taken] = {}  # of each robot that has ever registered
        self.restarted = False     # from a checkpoint, and no robot has registered yet
        self.missed_at = math.inf  # after a restart: until then the server waits for known robots
        self.missing: frozenset[str] = frozenset()
        self.limits = Limits(config.heartbeat_limit, config.patience)
        self.paused = False        # no iteration is granted; transfers under way continue
        # Robot -> time at which something is due for it, or a little earlier; None: compute again.
        self._due: dict[str, float] | None = None

    @property
    def method(self) -> Method:
        """The method in force."""
        return self.aggregation.method

    @property
    def stopping(self) -> bool:
        """Whether the run is ending."""
        return self.state == STOPPING

    # -- membership ------------------------------------------------------------------------------

    def on_register(self, request: RegisterRequest, now: float
                    ) -> tuple[RegisterResponse, list[Action]]:
        """Answer a registration; a refusal changes nothing."""
        if self.stopping:
            return RegisterResponse(False, 'the run is over; the server is stopping', over=True), []
        refused = refusal(request, self.partition, self.codec, self.members, now,
                          self.config.heartbeat_limit)
        if refused is None and (reason := self.method.refusal(request.robot)):
            refused = RegisterResponse(False, reason)
        taken = self.taken.get(request.robot) or Taken.nothing(self.partition.segments)
        if refused is None and taken.is_past(request.incarnation):
            refused = RegisterResponse(False, f'a later process of {request.robot} has taken over '
                                       'what this one has not sent; start the worker again')
        if refused is not None:
            return refused, []
        if self.restarted:
            self.restarted, self.missed_at = False, now + self.config.heartbeat_limit
        former = self.members.get(request.robot)
        if former is not None and former.incarnation != request.incarnation:
            former = None
        if former is not None and former.answer is not None and request.number <= former.request:
            return former.answer, []  # a duplicate of an earlier request
        push = self._known_push(request)
        if push is not None and push.transfer.attempt > request.attempt:
            push = None  # this worker has not made it; someone else has
        self.taken[request.robot] = taken
        taken.begin(request.incarnation)
        since = taken.since(request.former, request.former_attempt)
        if since:
            taken.heir = request.incarnation
        actions: list[Action] = []
        if former is not None and former.state == JOINING:
            member, attempt = former, former.attempt  # its snapshot is already under way
        else:
            member = self._admit(request, now)
            attempt = member.attempt + 1
            if push is not None:
                member.push.restore(push)
            if former is not None and former.mirror.known:  # the same process was out of reach
                former.reconcile(request.pull)
                member.mirror = former.mirror
                actions = self._enter(member, former.pulled_at, now)
            else:
                actions = [*self._transfer(member, snapshot_of(self.model), now),
                           *self._release(now)]
        member.request = request.number
        member.answer = RegisterResponse(
            True, incarnation=self.incarnation, iteration=self.iteration, attempt=attempt,
            sync=str(self.method), push=push, taken=since)
        return member.answer, actions

    def _known_push(self, request: RegisterRequest) -> Receipt | None:
        """Return what has arrived of this process's last push, before a restart or since."""
        member = self.members.get(request.robot)
        if member is not None and member.incarnation == request.incarnation:
            taken = member.push.close()
            if taken.size:
                self._close_push(member, taken)
            return member.push.known()
        incarnation, receipt = self.former_pushes.get(request.robot, (None, None))
        return receipt if incarnation == request.incarnation else None

    def _admit(self, request: RegisterRequest, now: float) -> Member:
        robot, incarnation = request.robot, request.incarnation
        former = self.members.get(robot)
        receiver = Receiver(self.partition, frozenset({Kind.PUSH, Kind.ANCHOR}),
                            incarnation ^ self.incarnation, self.codec, floor=request.attempt + 1)
        transfer = self.config.transfer
        link, attempt = (former.link, former.attempt) if former is not None else (
            LinkEstimate(transfer.chunk_bytes, transfer.chunk_time, transfer.traffic), 0)
        member = Member(robot, incarnation, receiver,
                        Mirror(self.partition, self.master),
                        np.zeros(self.partition.rows, np.int64),
                        np.zeros(self.partition.rows, np.int64), self.method.row_bound, now,
                        link, attempt, progress=now, paid=now)
        if former is not None:
            self.limits.stands_for(former, now)
            member.stood, member.stood_at = former.stood, former.stood_at
        self.members[robot] = member
        self.aggregation.forget(robot, len(self.active()))
        return member

    def on_heartbeat(self, robot: str, incarnation: int, now: float, loss: float = math.nan,
                     state: str = WAITING) -> list[Action]:
        """Handle a robot's heartbeat. A robot that is away must register again; see `is_member`.

        ``loss``: of its last batch; NaN if unknown. ``state``: of the worker. Computing counts as
        progress unless it takes far longer than usual. A starved worker makes no progress.
        """
        member = self.members.get(robot)
        if member is None or member.incarnation != incarnation or not member.alive:
            return []
        silent, member.heard, member.loss = now - member.heard, now, loss
        if state == COMPUTING and member.as_usual(now, self.limits.patience, self.members.values()):
            member.progress = now
            member.paid = now
        if state not in (COMPUTING, STARVED) and member.has_to_act \
                and now >= self.limits.out_of_step_at(member):
            return self._register_again(member, now)
        back = member.place == RETIRED or silent > self.config.heartbeat_limit / 2
        if member.sender is None or not back or math.isinf(self.limits.patience):
            return []
        member.sender.wake(now)
        return self._poll(member, now)

    def _register_again(self, member: Member, now: float) -> list[Action]:
        """Drop a member that waits for the server while the server waits for it.

        A forged receipt can cause this. The worker notices, registers again, and both continue with
        the rows that they really have.
        """
        detail = f'no progress for {now - member.progress:.1f} s while {member.state}'
        self._drop(member, 'silent')
        return [Notice(member.robot, 'out_of_step', f'{detail}; it must register again'),
                *self._release(now), *self._finish()]

    def on_held_up(self, seconds: float, now: float) -> None:
        """Count the ``seconds`` in which this process did not run as no member's delay."""
        for member in self.members.values():
            member.heard = min(member.heard + seconds, now)
            member.progress = min(member.progress + seconds, now)
            member.paid += seconds
        for robot in self.limits.waited_for:
            self.limits.waited_for[robot] += seconds

    def on_leave(self, robot: str, incarnation: int, now: float) -> list[Action]:
        """Handle a worker's message that it stops."""
        member = self.members.get(robot)
        if member is None or member.incarnation != incarnation or not member.alive:
            return []
        self._drop(member, 'leave')
        return [*self._release(now), *self._finish()]

    def is_member(self, robot: str, incarnation: int) -> bool:
        """Whether this process of the robot is a member, neither away nor stopped."""
        member = self.members.get(robot)
        return member is not None and member.incarnation == incarnation and member.alive

    def _drop(self, member: Member, event: str) -> None:
        member.move(event)
        member.waiting_for = []

    def active(self) -> list[Member]:
        """Return the members that take part in training; see the module's docstring."""
        return [m for m in self.members.values() if m.state in ACTIVE and m.place == COUNTED]

    def _start_iteration(self, bound: float) -> int:
        """Return the highest iteration at which a new member neither delays others nor waits."""
        slowest = [m.slowest for m in self.active()]
        if not slowest:
            return self.iteration
        newest = max(m.iteration for m in self.active())
        return newest if math.isinf(bound) else int(min(newest, min(slowest) + bound - 1))

    # -- pushes ----------------------------------------------------------------------------------

    def _member(self, robot: str) -> Member | None:
        member = self.members.get(robot)
        return member if member is not None and member.alive else None

    def on_chunk(self, robot: str, chunk: Chunk, now: float) -> list[Action]:
        """Handle rows of a worker's push."""
        member = self._member(robot)
        if member is None:
            return []
        if member.push.is_closed(chunk.transfer):  # the receipt was lost
            assert member.push.receipt is not None
            if member.push.has(chunk.sequence):
                member.heard = now
            return [Send(robot, member.push.receipt)]
        if member.state != TRAINING:
            if member.state == PULLING and len(member.early) < EARLY \
                    and member.push.is_open(chunk.transfer):
                member.push.examine(chunk)
                member.early.append(chunk)  # it has overtaken the receipt of the pull,
                if member.sender is not None:
                    member.sender.expect(now)  # or the receipt was lost
                    self._note_due(member)
            return []
        ack, rows = member.push.on_chunk(chunk)
        actions: list[Action] = []
        if ack is not None:  # a repeated chunk, too, shows that the robot runs
            member.heard = now
        if rows is not None:
            self._bring(member, rows.ids.size, now)
            if chunk.transfer.kind == Kind.PUSH:
                self._note_taken(member, rows.ids)
        if rows is not None and self.plausibility.admits(member.push, rows):
            robots = len(self.active())
            counts = self.norm_bound.bounded(member.push, rows,
                                             max(robots, len(self.config.capacities)))
            self.aggregation.take(member, counts, robots)
        elif rows is not None and member.push.refused == 1:
            self.refused[robot] += 1
            actions = [Notice(robot, 'push_refused', self.plausibility.reason)]
        if ack is None:
            return actions
        if self.aggregation.counts(member) \
                and not self.method.in_time(robot, chunk.transfer.iteration):
            taken = member.push.close()  # end it early: the method no longer uses it
            assert member.push.receipt is not None
            return [*actions, Send(robot, member.push.receipt),
                    *self._pushed(member, taken, now)]
        if (end := member.push.due) is not None:
            # Its receipt says more than an acknowledgement.
            return [*actions, *self.on_end(robot, end, now)]
        return [*actions, Send(robot, ack)]

    def on_end(self, robot: str, end: End, now: float) -> list[Action]:
        """Handle the end of a worker's push; from now on the worker waits for its pull."""
        member = self._member(robot)
        if member is None:
            return []
        if not (end.mta_duration >= 0 and math.isfinite(end.mta_duration)):
            raise RemoteProtocolError('MTA duration in an end of transfer must be a finite number '
                                      f'of seconds, at least 0, got {end.mta_duration}')
        if member.state != TRAINING and not member.push.is_closed(end.transfer):
            return []  # our pull's receipt has not arrived yet; the worker repeats this end
        closed = member.push.on_end(end)
        if closed is None:
            return []
        receipt, taken = closed
        actions: list[Action] = [Send(robot, receipt)]
        if taken is not None:
            member.advance(now)
            # Cap the duration: a false one would make the whole fleet send for that long.
            most = (now - member.granted_at) * member.factor
            member.push_mta = min(end.mta_duration, most)
            actions += self._pushed(member, taken, now)
        return actions

    def _bring(self, member: Member, segments: int, now: float) -> None:
        push, computed = member.push, not math.isnan(member.computes)
        assert push.transfer is not None
        member.bring(segments, push.taken - segments, member.wanted,
                     push.rows_of(push.transfer).segments, self.limits.patience, now)
        if computed:  # its heartbeats no longer extend its limit
            self._note_due(member)

    def _pushed(self, member: Member, taken: np.ndarray, now: float) -> list[Action]:
        self._close_push(member, taken)
        member.move('pushed')
        member.bound, member.since = member.granted_bound, now
        member.has_pushed(now)
        actions = self._take_back(member, now)
        self.aggregation.pushed(member, self._fleet(), now)
        return [*actions, *self._release(now)]

    def _take_back(self, member: Member, now: float) -> list[Action]:
        """Make a retired member active again, at an iteration that delays no other member.

        If others have waited for it too long, it must wait first; see `Limits.back_at`.
        """
        if now < self.limits.back_at(member):
            return []
        start = self._start_iteration(self.method.bound)
        member.iteration = max(member.iteration, start)
        np.maximum(member.versions, start, out=member.versions)
        self._count_slowest(member)
        member.bound = self.method.row_bound
        member.paid = now  # else a waiting member would be retired and return at once, forever
        member.take_place('return')
        return [Notice(member.robot, 'returned', f'at iteration {member.iteration}')]

    def _note_taken(self, member: Member, ids: np.ndarray | slice) -> None:
        assert member.push.transfer is not None
        self.taken[member.robot].note(member.incarnation, member.push.transfer.attempt, ids)

    def _close_push(self, member: Member, taken: np.ndarray) -> None:
        assert member.push.transfer is not None
        if member.push.refused:  # the worker drops the push, which must not come back
            self._note_taken(member, slice(None))
        self.plausibility.learn(member.push)
        self.clipped[member.robot] += self.norm_bound.learn(
            member.robot, member.push, [m.robot for m in self.active()])
        iteration = member.push.transfer.iteration
        complete = self._partition_of(member.push.transfer.kind).rows_complete(taken)
        member.versions[complete] = np.maximum(member.versions[complete], iteration)
        member.iteration = max(member.iteration, iteration)
        self._count_slowest(member)
        member.rows_pushed = int(complete.sum())
        self.updated_at[complete] = np.maximum(self.updated_at[complete], iteration)
        self.iteration = max(self.iteration, iteration)

    def _count_slowest(self, member: Member) -> None:
        member.slowest = int(member.versions.min()) if self.method.by_row else member.iteration

    # -- pulls -----------------------------------------------------------------------------------

    def _fleet(self) -> dict[str, Standing]:
        return {m.robot: m.standing for m in self.active()}

    def _release(self, now: float) -> list[Action]:
        """Start the pull of every waiting member that the method lets continue."""
        active = self.active()
        fleet = self._fleet()
        self.limits.follow(active)
        self._due = None
        gone = {name for name, m in self.members.items() if not m.alive or m.place == RETIRED}
        self.aggregation.settle(fleet, frozenset(gone | (self.missing - self.members.keys())))
        if self.stopping:
            return self._drain(now)
        # A member keeps a tighter bound from its next push on; until then the old bound holds.
        least = max((m.bound for m in active if self.method.by_row), default=0.0)
        actions: list[Action] = []
        former = self.limits.waited_for
        waited_for: dict[str, float] = {}
        self.limits.waited_for = waited_for
        for member in () if self.paused else active:
            if member.state == WAITING:
                member.waiting_for = self.method.held_up_by(member.robot, fleet, least)
                if not member.waiting_for:
                    self.method.on_wait(member.robot, now - member.since)
                    actions += self._start_pull(member, now)
                else:
                    waited_for |= {robot: former.get(robot, now) for robot in member.waiting_for}
        return actions

    def _start_pull(self, member: Member, now: float) -> list[Action]:
        pull = pull_of(member, self.active(), self.method, self.model, self.updated_at,
                       self.config.transfer)
        member.granted_bound, member.step = self.method.row_bound, pull.command.step
        member.granted = member.push.granted = pull.command.next_iteration
        member.push.kind = Kind.ANCHOR if pull.command.step.uncompressed else Kind.PUSH
        member.granted_at = now
        sending, step = pull.command.sending, pull.command.step
        rows = self.partition.rows
        member.factor = max(sending.mta * rows / max(sending.minimum * rows, 1), 1.0)
        member.wanted = self.partition.raw_partition.segments if step.uncompressed else math.ceil(
            max(sending.minimum, LEAST) * step.share * self.partition.segments)
        member.move('pull')
        return self._transfer(member, pull, now)

    def _partition_of(self, kind: Kind) -> RowPartition:
        return self.partition.raw_partition if kind.is_raw else self.partition

    def _transfer(self, member: Member, pull: Pull, now: float) -> list[Action]:
        member.attempt += 1
        member.advance(now, heard=False)
        transfer = TransferId(member.incarnation ^ self.incarnation, pull.kind, member.iteration,
                              member.attempt)
        member.sender = Sender(transfer, self._partition_of(pull.kind), pull.plan, pull.codec,
                               pull.rows, member.link, now, pull.command)
        return self._poll(member, now)

    def on_ack(self, robot: str, ack: Ack, now: float) -> list[Action]:
        """Handle the acknowledgement of chunks of a pull."""
        member = self._member(robot)
        if member is None or member.sender is None:
            return []
        sender = member.sender
        before = sender.segments_arrived
        sender.on_ack(ack, now)
        if ack.transfer == sender.transfer:
            member.heard = now
        if sender.segments_arrived > before:
            member.bring(sender.segments_arrived - before, before, sender.plan.wanted,
                         sender.partition.segments, self.limits.patience, now)
        return self._poll(member, now)

    def on_receipt(self, robot: str, receipt: Receipt, now: float) -> list[Action]:
        """Handle the receipt of a pull or snapshot: the worker says which chunks it took."""
        member = self._member(robot)
        if member is None or member.sender is None or not member.sender.on_receipt(receipt, now):
            return []
        sender, member.sender = member.sender, None
        kind = sender.transfer.kind
        member.advance(now, computes=kind in (Kind.PULL, Kind.ANCHOR))
        if kind in (Kind.SNAPSHOT, Kind.FINAL):
            return self._stored(member, sender, now)
        complete = self._partition_of(kind).rows_complete(sender.taken())
        member.rows_pulled = int(complete.sum())
        if kind == Kind.PULL:
            member.mirror.taken(sender.codec, sender.taken_chunks())
        member.pulled_at[complete] = member.iteration
        if math.isfinite(sender.mta_duration):  # infinity: the minimum has not arrived
            member.pull_mta = sender.mta_duration
        member.move('pulled')
        return self._catch_up(member, now)

    def _catch_up(self, member: Member, now: float) -> list[Action]:
        """Apply the chunks of the push that have overtaken the receipt of the pull."""
        chunks, member.early = member.early, []
        return [action for chunk in chunks for action in self._on_early(member.robot, chunk, now)]

    def _on_early(self, robot: str, chunk: Chunk, now: float) -> list[Action]:
        try:
            return self.on_chunk(robot, chunk, now)
        except RemoteProtocolError:
            return []  # counts as lost; the receipt is still valid

    def _stored(self, member: Member, sender: Sender, now: float) -> list[Action]:
        """Handle the receipt of model values: the final model, or the snapshot of a new member."""
        member.mirror.stored(sender.taken_chunks())
        member.pulled_at[:] = self.iteration
        if sender.transfer.kind == Kind.FINAL:
            self._drop(member, 'drained')
            return self._finish()
        return self._enter(member, member.pulled_at, now)

    def _enter(self, member: Member, pulled_at: np.ndarray, now: float) -> list[Action]:
        """Make a member with a known mirror active, at an iteration that delays no other."""
        member.iteration = member.slowest = self._start_iteration(self.method.bound)
        member.versions[:] = member.iteration
        member.pulled_at = pulled_at
        member.since, member.bound = now, self.method.row_bound
        member.move('enter')
        return [*self._take_back(member, now), *self._release(now)]

    # -- the parent fleet ------------------------------------------------------------------------

    def on_model_above(self, change: Array) -> None:
        """Add the change of the parent fleet's model, float32 (elements,), to the master rows.

        Robots receive it with their next pulls, like the pushes of other robots. No robot waits for
        it, and it does not count as an iteration.
        """
        offsets = self.partition.offsets
        moved = self.partition.row_sum(difference_magnitude(change, zeros_like(change), offsets))
        self.master += change
        self.updated_at[moved > 0] = self.iteration

    # -- control ---------------------------------------------------------------------------------

    def set_sync(self, text: str, now: float) -> list[Action]:
        """Change the method of a running fleet; a `ConfigError` leaves everything unchanged."""
        newest = max([self.iteration, *(m.granted for m in self.members.values())])
        self.aggregation.change(text, self.members, newest)
        self.plausibility.begin()
        self.norm_bound.begin()
        for member in self.members.values():
            self._count_slowest(member)
        return self._release(now)

    def pause(self, now: float) -> list[Action]:
        """Grant nothing until `resume`: every worker finishes its iteration, then waits."""
        self.paused = True
        for member in self.members.values():
            member.waiting_for = []  # it waits for no robot
        return self._release(now)

    def resume(self, now: float) -> list[Action]:
        """Continue after a pause, which counts as no robot's delay."""
        self.paused = False
        for member in self.members.values():
            member.since = member.progress = member.paid = now
        self.limits.waited_for = {}
        return self._release(now)

    def stop(self, now: float) -> list[Action]:
        """End the run: every worker finishes its push, then receives the final model."""
        if self.stopping:
            return []
        self.state, self._due = SERVER.after(self.state, 'stop'), None
        self.limits.stopping, self.limits.stop_by = True, now + self.config.stop_limit
        for member in self.members.values():
            member.progress = now  # each gets its full patience again
        return [*self._drain(now), *self._finish()]

    def _drain(self, now: float) -> list[Action]:
        """When no worker computes any more, send each the final model, so that L = A, and stop it.

        If the link cannot carry it within ``drain_limit``, omit the rows that differ least.
        """
        living = [m for m in self.members.values() if m.alive]
        if any(m.state in BUSY for m in living):
            return []
        self.aggregation.flush(len(living))
        actions: list[Action] = []
        for member in living:
            if member.state == WAITING:
                member.move('drain')
                final = final_of(member, self.model, self.method, self.config.drain_limit)
                actions += self._transfer(member, final, now)
        return actions

    def _finish(self) -> list[Action]:
        return [] if any(m.alive for m in self.members.values()) or not self.stopping else [Stop()]

    def checkpoint(self) -> ServerState:
        """Return what a restarted server needs besides the master rows."""
        pushes = {name: (m.incarnation, known) for name, m in self.members.items()
                  if (known := m.push.known()) is not None}
        return ServerState(self.iteration, self.method.asked, self.updated_at.copy(),
                           {**self.former_pushes, **pushes}, *self.aggregation.state(),
                           taken={robot: taken.copy() for robot, taken in self.taken.items()})

    def load_state(self, state: ServerState) -> None:
        """Resume from a checkpoint; call it before any worker has registered."""
        if state.updated_at.shape != self.updated_at.shape:
            raise ConfigError(f"the checkpoint's model has {state.updated_at.size} rows; this one "
                              f'has {self.partition.rows}')
        self.aggregation.load(state)
        self.iteration, self.former_pushes = state.iteration, dict(state.pushes)
        self.updated_at[:] = state.updated_at
        self.taken = {robot: taken.copy() for robot, taken in state.taken.items()}
        self.restarted = True

    # -- time ------------------------------------------------------------------------------------

    def _poll(self, member: Member, now: float) -> list[Action]:
        if member.sender is None:
            return []
        messages = member.sender.poll(now)
        self._note_due(member)
        return [Send(member.robot, message) for message in messages]

    def on_time(self, now: float) -> list[Action]:
        """Do what is due: retransmissions, time-outs, and members without heartbeats."""
        actions: list[Action] = []
        lost = now >= self.missed_at
        if lost:
            self.missed_at, self.missing = math.inf, self.method.expected
        if now >= self.method.deadline:
            self.method.on_time(now)
            lost = True  # other members may continue now
        for robot in [robot for robot, due in self._all_due().items() if now >= due]:
            member = self.members[robot]
            if member.alive and now >= self.limits.away_at(member):
                self._drop(member, 'silent')
                lost = True
            elif member.alive and now >= self.limits.retires_at(member):
                actions += self._retire(member, now)
                lost = True
            elif member.alive and now >= self.limits.back_at(member):
                actions += self._take_back(member, now)
                lost = True
            elif member.alive and member.sender is not None and now >= member.sender.deadline:
                actions += self._poll(member, now)
            self._note_due(member)
        if lost:
            actions += [*self._release(now), *self._finish()]
        return actions

    @property
    def deadline(self) -> float:
        """Time by which `on_time` is due, or a little earlier; infinity: never.

        A change that postpones it counts only when that time has come, so reading it is cheap.
        """
        return min(self.missed_at, self.method.deadline, *self._all_due().values())

    def deadline_of(self, robot: str) -> float:
        """Time at which `on_time` is due for this robot; infinity: never."""
        member = self._member(robot)
        return math.inf if member is None else min(self.limits.due(member), self.method.deadline)

    def _all_due(self) -> dict[str, float]:
        if self._due is None:
            self._due = {robot: self.limits.due(m) for robot, m in self.members.items()}
        return self._due

    def _note_due(self, member: Member) -> None:
        """Update the member's due time. Call it after each change that may bring it forward."""
        if self._due is not None:
            self._due[member.robot] = self.limits.due(member)

    def _retire(self, member: Member, now: float) -> list[Action]:
        detail = f'no progress for {now - member.progress:.1f} s while {member.state}'
        if self.stopping:
            self._drop(member, 'silent')
            return [Notice(member.robot, 'given_up', f'{detail}; the run ends without it')]
        if member.paid < member.progress and member.state == TRAINING:
            detail = (f'only {member.push.taken} of {self.partition.segments} rows of its push in '
                      f'{now - member.granted_at:.1f} s')
        if owed := member.owed(now):
            detail += f', after the others had waited {owed:.1f} s for it before'
        self.limits.stands_for(member, now)
        member.take_place('retire')
        return [Notice(member.robot, 'retired', f'{detail}; the others go on')]
