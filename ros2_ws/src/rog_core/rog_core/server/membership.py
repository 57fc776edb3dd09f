"""Decides which robots take part: registrations, heartbeats, and robots that leave."""

from __future__ import annotations

import numpy as np

from ..protocol.messages import (
    Action,
    Kind,
    Notice,
    Receipt,
    RegisterRequest,
    RegisterResponse,
)
from ..protocol.states import COMPUTING, JOINING, STARVED
from ..transfer.link import RowLink
from ..transfer.receiver import Receiver
from .admission import refusal
from .member import Member
from .mirror import Mirror
from .places import drop, enter
from .pull_plan import snapshot_of
from .pulls import Pulls
from .pushes import Pushes
from .shared import Shared


class Membership:
    """Admits robots, handles their heartbeats, and removes robots that leave."""

    def __init__(self, shared: Shared, pulls: Pulls, pushes: Pushes) -> None:
        self.shared, self.pulls, self.pushes = shared, pulls, pushes

    def on_register(self, request: RegisterRequest, now: float
                    ) -> tuple[RegisterResponse, list[Action]]:
        """Answer a registration; a refusal leaves the server unchanged."""
        shared, robot = self.shared, request.robot
        refused = self._refusal(request, now)
        if refused is not None:
            return refused, []
        if shared.restarted:
            shared.restarted = False
            shared.missed_at = now + shared.config.heartbeat_limit
        former = shared.members.get(robot)
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
            actions = self._begin(member, former, request, push, now)
        member.request = request.number
        member.answer = RegisterResponse(
            True, incarnation=shared.incarnation, iteration=shared.iteration, attempt=attempt,
            sync=str(shared.method), push=push)
        return member.answer, actions

    def _refusal(self, request: RegisterRequest, now: float) -> RegisterResponse | None:
        shared = self.shared
        if shared.stopping:
            return RegisterResponse(False, 'the run is over; the server is stopping', over=True)
        refused = refusal(request, shared.partition, shared.codec, shared.members, now,
                          shared.config.heartbeat_limit)
        if refused is None and (reason := shared.method.refusal(request.robot)):
            refused = RegisterResponse(False, reason)
        return refused

    def _known_push(self, request: RegisterRequest) -> Receipt | None:
        """Return the receipt of the last push by the process that registers.

        The receipt names the chunks that have arrived. If the server has restarted since this push,
        the receipt comes from the checkpoint. Returns None if the server has no push of this
        process.
        """
        member = self.shared.members.get(request.robot)
        if member is not None and member.incarnation == request.incarnation:
            return self.pushes.cut_short(member)
        incarnation, receipt = self.shared.former_pushes.get(request.robot, (None, None))
        return receipt if incarnation == request.incarnation else None

    def _admit(self, request: RegisterRequest, now: float) -> Member:
        shared, robot, incarnation = self.shared, request.robot, request.incarnation
        former = shared.members.get(robot)
        receiver = Receiver(shared.partition, frozenset({Kind.PUSH, Kind.ANCHOR}),
                            incarnation ^ shared.incarnation, shared.codec,
                            floor=request.attempt + 1)
        transfer, rows = shared.config.transfer, shared.partition.rows
        link, attempt = (former.link, former.attempt) if former is not None else (
            RowLink(transfer.chunk_bytes, transfer.chunk_time, transfer.traffic), 0)
        if former is not None and former.incarnation != incarnation:
            link.forget()
        member = Member(robot, incarnation, receiver, Mirror(shared.partition, shared.master),
                        np.zeros(rows, np.int64), np.zeros(rows, np.int64),
                        shared.partition.trained(), shared.method.row_bound, now, link, attempt,
                        progress=now, paid=now)
        if former is not None:
            shared.deadlines.stands_for(former, now)
            member.stood, member.stood_at = former.stood, former.stood_at
        shared.members[robot] = member
        shared.aggregation.forget(robot, len(shared.active()))
        return member

    def _begin(self, member: Member, former: Member | None, request: RegisterRequest,
               push: Receipt | None, now: float) -> list[Action]:
        """Let a new member continue with the rows that its process has, or send it the model.

        ``former``: the earlier member of the same process; None if there is none. ``push``: receipt
        of the last push of this process; None if there is none.
        """
        if push is not None:
            member.push.restore(push)
        if former is not None and former.mirror.known:  # the process still has its rows
            former.reconcile(request.pull)
            member.mirror = former.mirror
            actions = enter(self.shared, member, former.pulled_at, now)
        else:
            actions = self.pulls.transfer(member, snapshot_of(self.shared.model), now)
        return [*actions, *self.pulls.release(now)]

    def on_heartbeat(self, robot: str, incarnation: int, now: float, loss: float, state: str
                     ) -> list[Action]:
        """Handle a heartbeat of a robot; see `ServerMachine.on_heartbeat`."""
        shared, member = self.shared, self.shared.members.get(robot)
        if member is None or not shared.is_member(robot, incarnation):
            return []
        member.heard, member.loss = now, loss
        deadlines = shared.deadlines
        if state == COMPUTING and member.as_usual(now, deadlines.patience, shared.members.values()):
            member.progress = now
            member.paid = now
        if state not in (COMPUTING, STARVED) and member.has_to_act \
                and now >= deadlines.out_of_step_at(member):
            return self._register_again(member, now)
        if member.sender is None:
            return []
        member.sender.on_heard(now)
        return self.pulls.poll(member, now)

    def _register_again(self, member: Member, now: float) -> list[Action]:
        """Drop a member if the member and the server wait for each other.

        A forged receipt can cause this situation. The worker notices that it was dropped and
        registers again. Then worker and server continue with the rows that they really have.
        """
        detail = f'no progress for {now - member.progress:.1f} s while {member.state}'
        drop(self.shared, member, 'silent', now)
        return [Notice(member.robot, 'out_of_step', f'{detail}; it must register again'),
                *self.pulls.release(now), *self.pulls.finish()]

    def on_leave(self, robot: str, incarnation: int, now: float) -> list[Action]:
        """Handle a worker's message that it leaves the fleet."""
        if not self.shared.is_member(robot, incarnation):
            return []
        drop(self.shared, self.shared.members[robot], 'leave', now)
        return [*self.pulls.release(now), *self.pulls.finish()]
