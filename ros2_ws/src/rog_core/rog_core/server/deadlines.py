"""Deadlines of members: for their transfers, for progress, and for any message at all.

All times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..methods import Method
from ..protocol.states import COUNTED, RETIRED, WAITING
from .member import SHARE, Member

ITERATIONS = 4  # iterations for which the fleet waits for a member that makes no progress

# Heartbeat limits without progress, beyond the patience, after which a member must register again:
# hardly any link carries only heartbeats for so long.
OUT_OF_STEP = 10


class Deadlines:
    """How long the fleet waits for a member.

    ``silence``: seconds after which a silent member is away. ``pause``: seconds after which others
    no longer wait for a member that makes no progress; 0: follows the pace of the fleet.
    """

    def __init__(self, silence: float, pause: float) -> None:
        self.silence, self._pause = silence, pause
        self.patience = longest_pause((), pause, silence)  # present patience of the fleet, s
        self.waited_for: dict[str, float] = {}  # robot -> time since which others wait for it
        self.stopping, self.stop_by = False, math.inf  # whether, and by when, the run must end
        # Robot -> time at which something is due for it, or a little earlier; None: compute again.
        self._due: dict[str, float] | None = None

    def stop(self, by: float) -> None:
        """End the run; give up each member that is not done at the time ``by``."""
        self.stopping, self.stop_by = True, by
        self.forget_due()

    def follow(self, active: Sequence[Member]) -> None:
        """Adapt the patience to the pace of these members."""
        self.patience = longest_pause(active, self._pause, self.silence)

    def away_at(self, member: Member) -> float:
        """Time at which a member is away unless it sends something before."""
        return min(member.heard + self.silence, self.stop_by)

    def retires_at(self, member: Member) -> float:
        """Time by which a member that others wait for must make progress."""
        if math.isinf(self.patience):
            return math.inf
        if self.stopping:  # a longer limit, because to give up a member is worse than to retire it
            limit = max(self.patience, self.silence)
            return math.inf if member.state == WAITING else member.progress + limit
        waited = member.has_to_act and member.place == COUNTED \
            and member.robot in self.waited_for
        return self._paused_at(member) if waited else math.inf

    def _paused_at(self, member: Member) -> float:
        """Time at which the member's pause exceeds the patience that it has left.

        While the member computes, each heartbeat extends this time until the next heartbeat.
        """
        left = member.patience(self.patience, member.paid)
        least = 0.0 if math.isnan(member.computes) else self.silence / 2
        return member.paid + min(max(left, least), self.patience)

    def back_at(self, member: Member) -> float:
        """Time at which a retired member that waits is active again; infinity: it does not wait.

        At that time `Member.owed` has fallen to two patiences. So, over a long time, others wait
        for such a member at most 1/`SHARE` of the time.
        """
        if member.place != RETIRED or member.state != WAITING:
            return math.inf
        return member.stood_at + (member.stood - 2 * self.patience) * SHARE

    def stands_for(self, member: Member, now: float) -> None:
        """Add the time for which others have waited for a member until now to `Member.stood`."""
        if (since := self.waited_for.pop(member.robot, None)) is not None:
            member.stands(now - since, now)

    def out_of_step_at(self, member: Member) -> float:
        """Time after which a reachable but idle member is out of step and must register again."""
        return member.progress + self.patience + OUT_OF_STEP * self.silence

    def due(self, member: Member) -> float:
        """Time at which the server must act on a member; infinity: never."""
        if not member.alive:
            return math.inf
        due = min(self.away_at(member), self.retires_at(member), self.back_at(member))
        return due if member.sender is None else min(due, member.sender.deadline)

    def all_due(self, members: Mapping[str, Member]) -> Mapping[str, float]:
        """Return `due` of each member, or a little earlier.

        If a change postpones a due time, this is noticed only when the former time comes. So the
        answer is cheap.
        """
        if self._due is None:
            self._due = {robot: self.due(member) for robot, member in members.items()}
        return self._due

    def note_due(self, member: Member) -> None:
        """Update the member's due time. Call it after each change that may bring it forward."""
        if self._due is not None:
            self._due[member.robot] = self.due(member)

    def forget_due(self) -> None:
        """Forget all due times, as any of them may have changed; `all_due` computes them again."""
        self._due = None


def mta_time(members: Sequence[Member]) -> float:
    """Return the MTA time: how long the slowest member needed for its last minimum (MTA)."""
    return max((max(m.push_mta, m.pull_mta) for m in members), default=0.0)


def budget(member: Member, members: Sequence[Member]) -> float:
    """Return the time for a transfer of a member: the MTA time, 0 for a member that is behind."""
    iterations = [m.iteration for m in members]
    straggler = member.iteration == min(iterations) < max(iterations)
    return 0.0 if straggler else mta_time(members)


def longest_pause(members: Sequence[Member], patience: float, least: float) -> float:
    """Return how many seconds the fleet waits for a member that makes no progress.

    This is ``patience``. If that is 0, it is `ITERATIONS` times the median time from push to push,
    and at least ``least``.
    """
    periods = [m.period for m in members if not math.isnan(m.period)]
    if patience or not periods:
        return patience or least
    return max(ITERATIONS * float(np.median(periods)), least)


def patience(member: Member, members: Sequence[Member], method: Method) -> float:
    """Return how long the minimum of a transfer may take before others wait for this member.

    It is the median time from push to push of the others, times the share of the staleness bound
    that is left for the member's oldest row. It is infinite if the method does not use the smaller
    codec (option ``sparse``), or if there is no other member.
    """
    others = [m for m in members if m is not member]
    periods = [m.period for m in others if not math.isnan(m.period)]
    if not periods or not method.shrinks:
        return math.inf
    ahead = max(m.iteration for m in others) - member.slowest
    left = max(method.bound - ahead, 1.0)
    return float(np.median(periods)) * left / method.bound
