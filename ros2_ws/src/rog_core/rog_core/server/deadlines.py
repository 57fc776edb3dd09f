"""Computes the times by which a member must continue a transfer, make progress or send a message.

A member is the server's data about one robot. All times are in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from ..methods import Method
from ..protocol.states import COUNTED, RETIRED, SENDING, WAITING
from .member import BUSY, OWED, SHARE, Member

# If no patience is set, the patience is ITERATIONS times the median time between two pushes.
ITERATIONS = 4

# A member that sends heartbeats but makes no progress for too long must register again. The time
# limit is the patience plus OUT_OF_STEP times the heartbeat limit. A bad link is an unlikely cause,
# because it would lose heartbeats too. Probably the member and the server wait for each other.
OUT_OF_STEP = 10


class Deadlines:
    """Computes how long the fleet waits for each member.

    ``silence``: seconds without a message after which a member is away. ``pause``: the patience,
    which is the number of seconds without progress after which others no longer wait for a member.
    If ``pause`` is 0, `longest_pause` computes the patience.
    """

    def __init__(self, silence: float, pause: float) -> None:
        self.silence, self._pause = silence, pause
        self.patience = longest_pause((), pause, silence)  # present patience, in seconds
        # For each robot for which other robots wait: the time at which they began to wait.
        self.waited_for: dict[str, float] = {}
        # whether the run is ending; the time by which it must end; the time after which it waits
        # for no gradient, but sends the final model
        self.stopping, self.stop_by, self.drain_at = False, math.inf, math.inf
        # For each robot, a time that is not later than the result of `due`. None: compute the times
        # of all robots again.
        self._due: dict[str, float] | None = None

    def stop(self, drain_at: float, by: float) -> None:
        """Begin to end the run.

        :param drain_at: time until which members may finish their iteration.
        :param by: time at which the server drops members that are not done.
        """
        self.stopping, self.drain_at, self.stop_by = True, drain_at, by
        self.forget_due()

    def follow(self, active: Sequence[Member]) -> None:
        """Compute the patience again from the times between the pushes of the active members."""
        self.patience = longest_pause(active, self._pause, self.silence)

    def away_at(self, member: Member) -> float:
        """Return the time at which a member becomes away if it sends nothing until then."""
        return min(member.heard + self.silence, self.stop_by)

    def drains_at(self, member: Member) -> float:
        """Return the time at which the end of a run cuts a member's iteration short."""
        sending = member.sender is None or member.sender.state == SENDING
        return self.drain_at if member.state in BUSY and sending else math.inf

    def retires_at(self, member: Member) -> float:
        """Return the time at which a member without progress retires; infinity means never."""
        if math.isinf(self.patience):
            return math.inf
        # while the run ends, an overdue member is dropped for good, so wait longer
        if self.stopping:
            limit = max(self.patience, self.silence)
            return math.inf if member.state == WAITING else member.progress + limit
        waited = member.robot in self.waited_for and member.has_to_act \
            and member.place == COUNTED
        return self._paused_at(member) if waited else math.inf

    def _paused_at(self, member: Member) -> float:
        """Return the time at which the patience for a member without progress ends.

        While the member computes, each heartbeat postpones this time beyond the next heartbeat.
        """
        left = member.patience(self.patience, member.paid)
        least = 0.0 if math.isnan(member.computes) else self.silence / 2
        return member.paid + min(max(left, least), self.patience)

    def back_at(self, member: Member) -> float:
        """Return the time at which a retired member in the state waiting becomes active again.

        Returns infinity for all other members. `Member.owed` is the patience that the member has
        used up: it grows while others wait for the member, and falls by 1 s in every `SHARE` s. At
        the returned time, it has fallen to `OWED` times the patience. So, in the long run, other
        robots wait for this member at most 1/`SHARE` of the time.
        """
        if member.place != RETIRED or member.state != WAITING:
            return math.inf
        return member.stood_at + (member.stood - OWED * self.patience) * SHARE

    def stands_for(self, member: Member, now: float) -> None:
        """Add to `Member.stood` the time for which other robots have waited for the member."""
        if (since := self.waited_for.pop(member.robot, None)) is not None:
            member.stands(now - since, now)

    def out_of_step_at(self, member: Member) -> float:
        """Return the time after which a reachable but idle member must register again."""
        return member.progress + self.patience + OUT_OF_STEP * self.silence

    def due(self, member: Member) -> float:
        """Return the time at which the server must act on a member; infinity means never."""
        if not member.alive:
            return math.inf
        due = min(self.away_at(member), self.retires_at(member), self.back_at(member))
        due = min(due, self.drains_at(member))
        return due if member.sender is None else min(due, member.sender.deadline)

    def all_due(self, members: Mapping[str, Member]) -> Mapping[str, float]:
        """Return a map from each member to a time that is not later than the result of `due`.

        If an event postpones the due time of a member, the map may keep the former, earlier time.
        So most changes of a member need no new computation.
        """
        if self._due is None:
            self._due = {robot: self.due(member) for robot, member in members.items()}
        return self._due

    def note_due(self, member: Member) -> None:
        """Compute a member's due time again, because the time may have become earlier."""
        if self._due is not None:
            self._due[member.robot] = self.due(member)

    def forget_due(self) -> None:
        """Forget all due times, because any of them may have changed.

        `all_due` computes them again.
        """
        self._due = None


def mta_time(members: Sequence[Member]) -> float:
    """Return the MTA time: the longest of the times that the members' last MTAs needed.

    MTA: minimum transmission amount, the share of the rows that every transfer must carry.
    """
    return max((max(m.push_mta, m.pull_mta) for m in members), default=0.0)


def budget(member: Member, members: Sequence[Member]) -> float:
    """Return the seconds for which a transfer to a member may send rows that are not mandatory.

    The result is the MTA time. It is 0 for a straggler, which is a member at the lowest iteration
    while other members are ahead.
    """
    iterations = [m.iteration for m in members]
    straggler = member.iteration == min(iterations) < max(iterations)
    return 0.0 if straggler else mta_time(members)


def longest_pause(members: Sequence[Member], patience: float, least: float) -> float:
    """Return how many seconds the fleet waits for a member that makes no progress.

    If ``patience`` is not 0, the result is ``patience``. Otherwise the result is `ITERATIONS` times
    the median time between two pushes, but at least ``least``.
    """
    periods = [m.period for m in members if not math.isnan(m.period)]
    if patience or not periods:
        return patience or least
    return max(ITERATIONS * median(periods), least)


def patience(member: Member, members: Sequence[Member], method: Method) -> float:
    """Return how many seconds a member's mandatory rows may take so that no robot waits for them.

    The result is the median time between two pushes of the other members, multiplied by a share.
    The share is the part of the staleness bound that is left for the member's oldest row. The
    result is infinite if the option ``sparse`` of the method is off, because only this option
    allows a smaller codec. The result is also infinite if no other member has pushed twice.
    """
    others = [m for m in members if m is not member]
    periods = [m.period for m in others if not math.isnan(m.period)]
    if not periods or not method.shrinks:
        return math.inf
    ahead = max(m.iteration for m in others) - member.slowest
    left = max(method.bound - ahead, 1.0)
    return median(periods) * left / method.bound
