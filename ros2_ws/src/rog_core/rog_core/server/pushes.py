"""Receives pushes: checks and applies rows as they arrive, and ends each push exactly once."""

from __future__ import annotations

import math

import numpy as np

from ..errors import RemoteProtocolError
from ..model.partition import Role
from ..protocol.messages import Action, Chunk, End, Notice, Receipt, Send
from ..protocol.states import DRAINING, JOINING, PULLING, TRAINING
from ..transfer.receiver import Rows
from . import buffers
from .member import Member
from .places import give_up, take_back
from .pulls import Pulls
from .push_filter import LARGEST, PushFilter
from .shared import Shared

# A push can arrive before the receipt of the pull that preceded it. Until the receipt arrives, the
# server stores at most this many messages of the push.
EARLY = 64


class Pushes:
    """Handles the pushes of the members.

    After each push, ``pulls`` lets waiting members continue.
    """

    def __init__(self, shared: Shared, pulls: Pulls) -> None:
        self.shared, self.pulls = shared, pulls
        self.filter = PushFilter(shared.config.implausible, shared.config.clip,
                                 shared.master[:shared.partition.buffers.start])

    def begin(self) -> None:
        """Forget the norms of all pushes: with another method, pushes may have different norms."""
        self.filter.begin()

    def on_chunk(self, robot: str, chunk: Chunk, now: float) -> list[Action]:
        """Handle rows of a worker's push."""
        member = self.shared.living(robot)
        if member is None:
            return []
        if member.push.is_closed(chunk.transfer):  # a repeated chunk: the receipt was lost
            assert member.push.receipt is not None
            if member.push.has(chunk.sequence):
                member.heard = now
            return [Send(robot, member.push.acknowledge(chunk, now)),
                    Send(robot, member.push.receipt)]
        if member.state != TRAINING:
            return self._untimely(member, chunk, now)
        ack, rows = member.push.on_chunk(chunk, now)
        actions: list[Action] = [Send(robot, ack)]
        if not member.push.is_open(chunk.transfer):
            return actions
        member.heard = now  # even a repeated chunk shows that the robot is running
        if rows is not None:
            actions += self._apply(member, rows, now)
        if self.shared.aggregation.counts(member) \
                and not self.shared.method.in_time(robot, chunk.transfer.iteration):
            taken = member.push.close()  # the method no longer uses this push, so end it
            assert member.push.receipt is not None
            return [*actions, Send(robot, member.push.receipt), *self._pushed(member, taken, now)]
        if (end := member.push.due) is not None:
            actions += self.on_end(robot, end, now)
        return actions

    def _untimely(self, member: Member, message: Chunk | End, now: float) -> list[Action]:
        """Handle a message of a push for which the server does not wait, or not yet."""
        if member.state == DRAINING and member.push.is_open(message.transfer):
            member.push.check(message.transfer)
            # the worker takes the final model when its push is over
            return [Send(member.robot, Receipt(message.transfer, 0, b'', 0))]
        self._keep_early(member, message, now)
        return []

    def _keep_early(self, member: Member, message: Chunk | End, now: float) -> None:
        """Store a message that has arrived before the receipt of the pull; see `early`."""
        if member.state == PULLING and len(member.early) < EARLY \
                and member.push.is_open(message.transfer):
            if isinstance(message, End):
                member.push.examine_end(message)
            else:
                member.push.examine(message)
            member.early.append(message)
            if member.sender is not None:
                # ask for the receipt again, because it may have been lost
                member.sender.on_heard(now)
                self.shared.deadlines.note_due(member)

    def early(self, robot: str) -> list[Chunk | End]:
        """Return and remove the messages of the push that arrived before the receipt of the pull.

        Until the receipt has arrived, the result is empty.
        """
        member = self.shared.living(robot)
        if member is None or member.state != TRAINING:
            return []
        messages, member.early = member.early, []
        return messages

    def _apply(self, member: Member, rows: Rows, now: float) -> list[Action]:
        """Apply the new rows that the filter accepts.

        Returns a `Notice` when the filter refuses rows of this push for the first time.
        """
        shared, push = self.shared, member.push
        known = shared.partition_of(rows.transfer.kind)
        if rows.ids[-1] >= known.segments:  # the robot has unfrozen a parameter
            shared.grow()
        self._bring(member, rows.ids.size, now)
        if known.are_buffers(rows.ids):
            return self._apply_buffers(member, rows)
        robots = len(shared.active())
        passed = self.filter.passed(push, rows, max(robots, len(shared.config.capacities)))
        if passed is not None:
            shared.aggregation.take(member, passed, robots)
        elif push.refused == 1:
            shared.refused[member.robot] += 1
            return [Notice(member.robot, 'push_refused', 'the push of iteration '
                           f'{rows.transfer.iteration} is refused: {self.filter.reason}')]
        return []

    def _apply_buffers(self, member: Member, rows: Rows) -> list[Action]:
        shared, push = self.shared, member.push
        absurd = shared.config.implausible and buffers.is_absurd(
            shared.partition, shared.master, rows.energy)
        if push.refused or absurd or rows.energy > LARGEST ** 2:
            push.refused += 1
            if push.refused > 1:
                return []
            shared.refused[member.robot] += 1
            return [Notice(member.robot, 'push_refused', 'it changes buffers, such as the '
                           'statistics of a BatchNorm, as no healthy robot does; are the inputs '
                           'of a very large scale? (server.implausible: 0 allows it)')]
        shared.aggregation.take_buffers(member, rows, shared.active(),
                                        shared.config.transfer.buffers == 'local')
        return []

    def on_end(self, robot: str, end: End, now: float) -> list[Action]:
        """Handle the end of a worker's push; from now on the worker waits for its pull."""
        member = self.shared.living(robot)
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
            member.advance(now)
            self._note_switched(member, end.switched)
            # The reported duration decides how long every transfer of the fleet sends. It may be
            # false, so limit it.
            most = (now - member.granted_at) * member.factor
            member.push_mta = min(end.mta_duration, most)
            actions += self._pushed(member, taken, now)
        return actions

    def _note_switched(self, member: Member, switched: tuple[int, ...]) -> None:
        """Note which parameters a robot has frozen or unfrozen; ignore impossible numbers."""
        parameters = self.shared.partition.grown.parameters
        if any(k < len(parameters) and parameters[k].role == Role.FROZEN for k in switched):
            self.shared.grow()
        member.trained = self.shared.partition.trained(switched)
        if switched:
            rest = self.shared.partition.trained() & ~np.any(
                [m.trained for m in self.shared.members.values() if m.alive], axis=0)
            self.shared.aggregation.rest(rest)

    def _bring(self, member: Member, segments: int, now: float) -> None:
        push, computed = member.push, not math.isnan(member.computes)
        assert push.transfer is not None
        member.bring(segments, push.taken - segments, member.wanted,
                     push.rows_of(push.transfer).segments, self.shared.deadlines.patience, now)
        if computed:  # from now on, heartbeats do not postpone the deadline of this member
            self.shared.deadlines.note_due(member)

    def _pushed(self, member: Member, taken: np.ndarray, now: float) -> list[Action]:
        self._close(member, taken)
        member.move('pushed')
        member.bound, member.since = member.granted_bound, now
        member.has_pushed(now)
        actions = take_back(self.shared, member, now)
        self.shared.aggregation.pushed(member, self.shared.standings(), now)
        return [*actions, *self.pulls.release(now)]

    def cut_short(self, member: Member) -> Receipt | None:
        """End the push that is under way, if there is one; return the receipt of the last push.

        The receipt names the chunks that have arrived. Returns None if the worker has not pushed
        yet.
        """
        taken = member.push.close()
        if taken.size:
            self._close(member, taken)
        return member.push.known()

    def end_iteration(self, member: Member, now: float) -> list[Action]:
        """End the iteration of a member without its gradient, or with a part of it.

        The run ends, so the member needs only the final model. A member of which much of the model
        is still to be sent is given up.
        """
        if member.state == JOINING:
            return give_up(self.shared, member, 'the model has not arrived yet', now)
        if member.sender is not None:  # after the receipt of the pull, this is called again
            member.sender.cut_short(now)
            return self.pulls.poll(member, now)
        actions: list[Action] = []
        if member.push.transfer is not None and member.push.is_open(member.push.transfer):
            self._close(member, member.push.close())
            assert member.push.receipt is not None
            actions = [Send(member.robot, member.push.receipt)]
        member.advance(now, heard=False)
        member.move('pushed')
        return actions

    def _close(self, member: Member, taken: np.ndarray) -> None:
        shared, push = self.shared, member.push
        assert push.transfer is not None
        shared.clipped[member.robot] += self.filter.learn(
            member.robot, push, [m.robot for m in shared.active()])
        iteration = push.transfer.iteration
        complete = shared.partition_of(push.transfer.kind).rows_complete(taken)
        member.is_whole = bool(complete[member.trained].all())
        current = complete | ~member.trained  # the robot has nothing to push in the other rows
        member.versions[current] = np.maximum(member.versions[current], iteration)
        member.iteration = max(member.iteration, iteration)
        shared.count_slowest(member)
        member.rows_pushed = int(complete.sum())
        shared.updated_at[complete] = np.maximum(shared.updated_at[complete], iteration)
        shared.iteration = max(shared.iteration, iteration)
