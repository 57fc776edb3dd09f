"""Lets workers start their next iteration, and sends them the rows that they lack."""

from __future__ import annotations

import math

from ..protocol.messages import Ack, Action, Kind, Receipt, Send, Stop, TransferId
from ..protocol.states import RETIRED, WAITING
from ..transfer.sender import Sender
from .member import BUSY, LEAST, Member
from .places import drop, enter
from .pull_plan import Pull, final_of, pull_of
from .shared import Shared


class Pulls:
    """Starts, continues and ends the transfers to the members."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    # -- who may continue ------------------------------------------------------------------------

    def release(self, now: float) -> list[Action]:
        """Start the pull of every waiting member that may continue according to the method."""
        shared = self.shared
        active, deadlines, method = shared.active(), shared.deadlines, shared.method
        fleet = shared.standings()
        deadlines.follow(active)
        deadlines.forget_due()
        gone = {name for name, m in shared.members.items() if not m.alive or m.place == RETIRED}
        shared.aggregation.settle(
            fleet, frozenset(gone | (shared.missing - shared.members.keys())))
        if shared.stopping:
            return self.drain(now)
        # After a change to a smaller bound, the old bound applies to a member until its next push.
        widest = max((m.bound for m in active if method.by_row), default=0.0)
        least = widest if widest > method.row_bound else 0.0
        actions: list[Action] = []
        former = deadlines.waited_for
        waited_for: dict[str, float] = {}
        deadlines.waited_for = waited_for
        for member in () if shared.paused else active:
            if member.state == WAITING:
                member.waiting_for = method.held_up_by(member.robot, fleet, least)
                if not member.waiting_for:
                    method.on_wait(member.robot, now - member.since)
                    actions += self._start(member, now)
                else:
                    waited_for |= {robot: former.get(robot, now) for robot in member.waiting_for}
        return actions

    def _start(self, member: Member, now: float) -> list[Action]:
        shared = self.shared
        pull = pull_of(member, shared.active(), shared.method, shared.model, shared.updated_at,
                       shared.config.transfer)
        sending, step = pull.command.sending, pull.command.step
        member.granted_bound, member.step = shared.method.row_bound, step
        member.granted = member.push.granted = pull.command.next_iteration
        member.push.kind = Kind.ANCHOR if step.uncompressed else Kind.PUSH
        member.granted_at = now
        partition = shared.partition
        pushed = partition.raw_partition if step.uncompressed else partition
        segments = max(int(pushed.segments_of_row[member.trained].sum()), 1)
        member.factor = max(sending.mta * partition.rows
                            / max(sending.minimum * partition.rows, 1), 1.0)
        member.wanted = segments if step.uncompressed else math.ceil(
            max(sending.minimum, LEAST) * step.share * segments)
        member.move('pull')
        return self.transfer(member, pull, now)

    def drain(self, now: float) -> list[Action]:
        """Send each worker the final model once the server expects no more messages of workers.

        If a link cannot carry the model within ``drain_limit``, the rows that differ least from the
        worker's rows are omitted.
        """
        shared = self.shared
        living = [m for m in shared.members.values() if m.alive]
        if any(m.state in BUSY for m in living):
            return []
        shared.aggregation.flush(len(living))
        actions: list[Action] = []
        for member in living:
            if member.state == WAITING:
                member.move('drain')
                final = final_of(member, shared.model, shared.method, shared.config.drain_limit,
                                 shared.config.transfer)
                actions += self.transfer(member, final, now)
        return actions

    def finish(self) -> list[Action]:
        """Stop the server when the run is ending and no member is left."""
        shared = self.shared
        living = any(m.alive for m in shared.members.values())
        return [] if living or not shared.stopping else [Stop()]

    # -- one transfer ----------------------------------------------------------------------------

    def transfer(self, member: Member, pull: Pull, now: float) -> list[Action]:
        """Begin a transfer to a member."""
        member.attempt += 1
        member.advance(now, heard=False)
        transfer = TransferId(member.incarnation ^ self.shared.incarnation, pull.kind,
                              member.iteration, member.attempt)
        member.sender = Sender(transfer, self.shared.partition_of(pull.kind), pull.plan, pull.codec,
                               pull.rows, member.link, now, pull.command)
        return self.poll(member, now)

    def poll(self, member: Member, now: float) -> list[Action]:
        """Return the messages of the member's transfer that may be sent now."""
        if member.sender is None:
            return []
        messages = member.sender.poll(now)
        self.shared.deadlines.note_due(member)
        return [Send(member.robot, message) for message in messages]

    def on_ack(self, robot: str, ack: Ack, now: float) -> list[Action]:
        """Handle the acknowledgement of chunks of a pull."""
        member = self.shared.living(robot)
        if member is None or ack.incarnation != member.incarnation ^ self.shared.incarnation:
            return []
        sender = member.sender
        if sender is None:  # the transfer is over, but its chunks were still on the way
            member.link.on_ack(ack, now)
            return []
        before = sender.segments_arrived
        sender.on_ack(ack, now)
        member.heard = now
        if sender.segments_arrived > before:
            member.bring(sender.segments_arrived - before, before, sender.plan.wanted,
                         sender.partition.segments, self.shared.deadlines.patience, now)
        return self.poll(member, now)

    def on_receipt(self, robot: str, receipt: Receipt, now: float) -> list[Action]:
        """Handle the receipt of a pull or snapshot; it names the chunks that arrived."""
        member = self.shared.living(robot)
        if member is None or member.sender is None or not member.sender.on_receipt(receipt, now):
            return []
        sender, member.sender = member.sender, None
        kind = sender.transfer.kind
        member.advance(now, computes=kind in (Kind.PULL, Kind.ANCHOR))
        if kind in (Kind.SNAPSHOT, Kind.FINAL):
            return self._stored(member, sender, now)
        complete = self.shared.partition_of(kind).rows_complete(sender.taken())
        member.rows_pulled = int(complete.sum())
        if kind == Kind.PULL:
            member.mirror.taken(sender.codec, sender.taken_chunks())
        member.pulled_at[complete] = member.iteration
        if math.isfinite(sender.mta_duration):  # infinity means that the MTA has not arrived
            member.pull_mta = sender.mta_duration
        member.move('pulled')
        self.shared.deadlines.note_due(member)  # the end of a run may not wait for its push
        return []

    def _stored(self, member: Member, sender: Sender, now: float) -> list[Action]:
        """Handle the receipt of the final model, or of the snapshot that a joining robot gets."""
        member.mirror.stored(sender.taken_chunks())
        member.pulled_at[:] = self.shared.iteration
        if sender.transfer.kind == Kind.FINAL:
            drop(self.shared, member, 'drained', now)
            return self.finish()
        return [*enter(self.shared, member, member.pulled_at, now), *self.release(now)]
