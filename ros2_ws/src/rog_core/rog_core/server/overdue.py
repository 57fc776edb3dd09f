"""Acts for the server when a deadline has passed; `Deadlines` computes the deadlines."""

from __future__ import annotations

import math

from ..protocol.messages import Action
from .places import drop, retire, take_back
from .pulls import Pulls
from .pushes import Pushes
from .shared import Shared


class Overdue:
    """Finds the members whose deadline has passed, and acts on them."""

    def __init__(self, shared: Shared, pulls: Pulls, pushes: Pushes) -> None:
        self.shared, self.pulls, self.pushes = shared, pulls, pushes

    def on_time(self, now: float) -> list[Action]:
        """Handle everything that is due: retransmissions, time-outs, missing heartbeats."""
        shared, deadlines = self.shared, self.shared.deadlines
        actions: list[Action] = []
        lost = now >= shared.missed_at
        if lost:
            shared.missed_at, shared.missing = math.inf, shared.method.expected
        if now >= shared.method.deadline:
            shared.method.on_time(now)
            lost = True  # now the method may let waiting members continue
        dues = deadlines.all_due(shared.members)
        for robot in [robot for robot, due in dues.items() if now >= due]:
            member = shared.members[robot]
            if member.alive and now >= deadlines.away_at(member):
                drop(shared, member, 'silent', now)
                lost = True
            elif now >= deadlines.drains_at(member):
                actions += self.pushes.end_iteration(member, now)
                lost = True
            elif member.alive and now >= deadlines.retires_at(member):
                actions += retire(shared, member, now)
                lost = True
            elif member.alive and now >= deadlines.back_at(member):
                actions += take_back(shared, member, now)
                lost = True
            elif member.alive and member.sender is not None and now >= member.sender.deadline:
                actions += self.pulls.poll(member, now)
            deadlines.note_due(member)
        if lost:
            actions += [*self.pulls.release(now), *self.pulls.finish()]
        return actions

    @property
    def next(self) -> float:
        """A time by which `on_time` must be called; may be earlier than needed; infinity: never."""
        shared = self.shared
        return min(shared.missed_at, shared.method.deadline,
                   *shared.deadlines.all_due(shared.members).values())

    def of(self, robot: str) -> float:
        """Return the time by which `on_time` must be called for this robot; infinity: never."""
        shared, member = self.shared, self.shared.living(robot)
        return math.inf if member is None else min(shared.deadlines.due(member),
                                                   shared.method.deadline)

    def on_held_up(self, seconds: float, now: float) -> None:
        """Take into account that this process did not run for ``seconds``.

        This time does not count as a delay of any member.
        """
        for member in self.shared.members.values():
            member.heard = min(member.heard + seconds, now)
            member.progress = min(member.progress + seconds, now)
            member.paid += seconds
        waited_for = self.shared.deadlines.waited_for
        for robot in waited_for:
            waited_for[robot] += seconds
