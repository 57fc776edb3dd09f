"""Lets a member enter, retire, return and leave, as the tables `MEMBER` and `PLACE` allow.

Both tables are in `rog_core.protocol.states`. Other robots do not wait for a retired member.
"""

from __future__ import annotations

import numpy as np

from ..protocol.messages import Action, Notice
from ..protocol.states import COUNTED, TRAINING
from .member import OWED, Member
from .shared import Shared


def enter(shared: Shared, member: Member, pulled_at: np.ndarray, now: float) -> list[Action]:
    """Make a member active, at an iteration that delays no other member.

    The member's mirror must be known. If others have waited too long for earlier processes or
    connections of this robot, the member begins as a retired member. ``pulled_at``: see `Member`.
    """
    member.iteration = member.slowest = shared.start_iteration(shared.method.bound)
    member.versions[:] = member.iteration
    member.pulled_at = pulled_at
    member.since, member.bound = now, shared.method.row_bound
    member.move('enter')
    owed, actions = member.owed(now), []
    if member.place == COUNTED and owed > OWED * shared.deadlines.patience:
        member.take_place('retire')
        actions = [Notice(member.robot, 'retired', f'the others had waited {owed:.1f} s for it '
                          'before; they go on without it for a while')]
    return [*actions, *take_back(shared, member, now)]


def drop(shared: Shared, member: Member, event: str, now: float) -> None:
    """Remove a member by ``event``, an event of the table `MEMBER`; then no robot waits for it."""
    shared.deadlines.stands_for(member, now)
    member.move(event)
    member.waiting_for = []


def retire(shared: Shared, member: Member, now: float) -> list[Action]:
    """Retire a member that makes no progress; if the run is ending, drop it instead."""
    detail = f'no progress for {now - member.progress:.1f} s while {member.state}'
    if shared.stopping:
        return give_up(shared, member, detail, now)
    if member.paid < member.progress and member.state == TRAINING:
        detail = (f'only {member.push.taken} of {shared.partition.segments} rows of its push in '
                  f'{now - member.granted_at:.1f} s')
    if owed := member.owed(now):
        detail += f', after the others had waited {owed:.1f} s for it before'
    shared.deadlines.stands_for(member, now)
    member.take_place('retire')
    return [Notice(member.robot, 'retired', f'{detail}; the others go on')]


def give_up(shared: Shared, member: Member, detail: str, now: float) -> list[Action]:
    """Drop a member because the run is ending; ``detail`` says what it lacks."""
    drop(shared, member, 'silent', now)
    return [Notice(member.robot, 'given_up', f'{detail}; the run ends without it')]


def take_back(shared: Shared, member: Member, now: float) -> list[Action]:
    """Make a retired member active again, at an iteration that delays no other member.

    If other robots have waited too long for this member, it stays retired until the time
    `Deadlines.back_at`.
    """
    if now < shared.deadlines.back_at(member):
        return []
    start = shared.start_iteration(shared.method.bound)
    member.iteration = max(member.iteration, start)
    np.maximum(member.versions, start, out=member.versions)
    shared.count_slowest(member)
    member.bound = shared.method.row_bound
    member.paid = now  # otherwise a waiting member would retire and return again and again
    member.take_place('return')
    return [Notice(member.robot, 'returned', f'at iteration {member.iteration}')]
