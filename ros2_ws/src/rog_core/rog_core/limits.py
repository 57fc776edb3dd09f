"""Until when a member must be heard of, and make progress. All times in seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .member import SHARE, Member
from .patience import longest_pause
from .states import COUNTED, RETIRED, WAITING

OUT_OF_STEP = 10  # heartbeat limits: so long, as a rule, no link carries nothing but heartbeats


class Limits:
    """How long the fleet waits for a member.

    ``silence``: until one of which nothing is heard is away. ``pause``: until others do not wait
    any more for one that makes no progress; 0: as the pace of the fleet makes it.
    """

    def __init__(self, silence: float, pause: float) -> None:
        self.silence, self._pause = silence, pause
        self.patience = longest_pause((), pause, silence)  # now
        self.waited_for: dict[str, float] = {}  # robots that others wait for, and since when
        self.stopping, self.stop_by = False, math.inf  # the run; who is late then is given up

    def follow(self, active: Sequence[Member]) -> None:
        """Take the pace of these members as that of the fleet."""
        self.patience = longest_pause(active, self._pause, self.silence)

    def away_at(self, member: Member) -> float:
        """Time at which it is away, unless something of it is heard before."""
        return min(member.heard + self.silence, self.stop_by)

    def retires_at(self, member: Member) -> float:
        """Time until which it must make progress: others wait for it."""
        if math.isinf(self.patience):
            return math.inf
        if self.stopping:  # to be given up is worse than to be retired
            limit = max(self.patience, self.silence)
            return math.inf if member.state == WAITING else member.progress + limit
        waited = member.has_to_act and member.place == COUNTED \
            and member.robot in self.waited_for
        return self._paused_at(member) if waited else math.inf

    def _paused_at(self, member: Member) -> float:
        """Time at which a pause is as long as the patience that it has left.

        While it computes its heartbeats pay, each until the next.
        """
        left = member.patience(self.patience, member.paid)
        least = 0.0 if math.isnan(member.computes) else self.silence / 2
        return member.paid + min(max(left, least), self.patience)

    def back_at(self, member: Member) -> float:
        """Time from which a retired member that waits is counted again; infinity: it goes on.

        It owes no more than two patiences then, so others stand for it for a `SHARE` of the time.
        """
        if member.place != RETIRED or member.state != WAITING:
            return math.inf
        return member.stood_at + (member.stood - 2 * self.patience) * SHARE

    def stands_for(self, member: Member, now: float) -> None:
        """Count the time that others have stood for a member until now."""
        if (since := self.waited_for.pop(member.robot, None)) is not None:
            member.stands(now - since, now)

    def out_of_step_at(self, member: Member) -> float:
        """Time from which a member that is heard and does nothing has other ideas than we have."""
        return member.progress + self.patience + OUT_OF_STEP * self.silence

    def due(self, member: Member) -> float:
        """Time at which something must be done about it; infinity: never."""
        if not member.alive:
            return math.inf
        due = min(self.away_at(member), self.retires_at(member), self.back_at(member))
        return due if member.sender is None else min(due, member.sender.deadline)
