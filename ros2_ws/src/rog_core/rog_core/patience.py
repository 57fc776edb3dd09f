"""Who is silent, and how long the fleet waits for whom. All times are in seconds.

`Silence` is the one definition of silent: nothing was heard for the limit. The server uses it for
its robots, a robot for its server, a display for those whose statuses it shows. The limit of
machines and nodes is the setting ``heartbeat.limit``.

A robot that is heard may get nowhere: its link carries heartbeats but no rows, or its program
hangs. `Patience` says when the others go on without it, by one rule: a robot that others wait for
and that brings no new wanted row for the fleet's patience is *retired*; its next complete push
brings it back; each repetition doubles the time for which it stays away.

What else the rule needs:

- Rows count by their number. All wanted rows of a transfer pay for `TIMES` patiences, and each of
  them for its share, so that a trickle of single rows is no progress.
- A gradient that is being computed counts as progress for `TIMES` times what one usually takes.
- What a robot has cost the others, and how long it stays away for it, outlives its process: it may
  neither stop nor register again and again. A robot that has taken part for `TIMES` times what it
  has cost begins anew. So in the long run the others wait for it at most 1/`TIMES` of the time.
  Who has cost more than `LONG` patiences at once stays away for the whole of that at once; doubling
  would give it two or three more waits of this length first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from .protocol.states import COUNTED, PLACE, RETIRED

TIMES = 10
LONG = 2
# If no patience is set, it is ITERATIONS times the median time between two pushes of a robot.
ITERATIONS = 4


def fleet_patience(periods: Iterable[float], given: float, limit: float) -> float:
    """Return the patience of the fleet.

    ``periods``: seconds between two pushes of each active robot; NaN: unknown. ``given``: the
    setting ``server.patience``; if it is 0, the result is made of the periods, and is at least
    ``limit``.
    """
    known = [period for period in periods if not math.isnan(period)]
    if given or not known:
        return given or limit
    return max(ITERATIONS * median(known), limit)


class Silence:
    """The time at which somebody was last ``heard``; who was not heard for ``limit`` is silent."""

    def __init__(self, limit: float, heard: float = -math.inf) -> None:
        self.limit, self.heard = limit, heard

    def hear(self, now: float) -> None:
        """Note that a message has arrived."""
        self.heard = now

    def is_silent(self, now: float) -> bool:
        """Return whether he is silent."""
        return now >= self.silent_at

    @property
    def silent_at(self) -> float:
        """The time at which he becomes silent if nothing is heard until then."""
        return self.heard + self.limit


class Patience(Silence):
    """The patience with one robot.

    Where a method has an argument ``patience``, it is the present patience of the fleet, see
    `fleet_patience`.
    """

    def __init__(self, limit: float, now: float) -> None:
        super().__init__(limit, now)
        self.place = COUNTED          # see `rog_core.protocol.states.PLACE`
        self.progress = now           # time of the last progress of any size
        # Time up to which the robot has been fast enough; never in the future. The patience is
        # counted from this time.
        self.paid = now
        self.computes = math.nan      # start of the present gradient; NaN: none
        self.usual = math.nan         # how long a gradient usually takes
        self.awaited: float | None = None  # time since which others wait for the robot
        # The longest time for which others have waited in vain, since the robot last began anew.
        self.cost = 0.0
        self.away = 0.0               # for how long the robot had to stay away last time
        self.until = now              # it is counted at this time at the earliest

    def of_new_connection(self, now: float, patience: float) -> Patience:
        """Return the patience with a robot that registers again: what it has cost stays known."""
        self.fail(now, patience)
        other = Patience(self.limit, now)
        other.cost, other.away, other.until = self.cost, self.away, self.until
        return other

    # -- what the robot does -----------------------------------------------------------------------

    def advance(self, now: float, computes: bool = False) -> None:
        """Note a step of the protocol; ``computes``: whether the robot begins to compute."""
        # A gradient in which the robot was retired is no measure of the usual time. Only some
        # gradients include an evaluation, so the usual time falls slowly.
        if not math.isnan(self.computes) and self.place == COUNTED:
            taken = now - self.computes
            self.usual = taken if math.isnan(self.usual) else max(taken, 0.9 * self.usual)
        self.progress = self.paid = now
        self.computes = now if computes else math.nan

    def bring(self, segments: int, before: int, wanted: int, total: int, patience: float,
              now: float) -> None:
        """Note that ``segments`` new segments have arrived, after ``before`` earlier ones.

        ``wanted``: number of segments of the transfer that must arrive; the first ones count as
        these. ``total``: number of all its segments; the later ones pay 1/``total`` each.
        """
        if not math.isnan(self.computes):
            self.advance(now)
        share = segments / (wanted if before < wanted else max(total, 1))
        self.heard = self.progress = now
        self.paid = min(now, self.paid + share * TIMES * patience)

    def compute(self, now: float, patience: float, others: Iterable[float]) -> None:
        """Note that the robot still computes, which is progress unless it takes far too long.

        ``others``: what a gradient of the other robots usually takes; NaN: unknown. The longest of
        these is the measure of a robot's first gradient.
        """
        usual = self.usual
        if math.isnan(usual):
            usual = max((time for time in others if not math.isnan(time)), default=math.inf)
        if now - self.computes <= TIMES * max(usual, patience):
            self.progress = self.paid = now

    # -- what the others do ------------------------------------------------------------------------

    def wait(self, awaited: bool, now: float) -> None:
        """Note whether others wait for the robot from now on."""
        if not awaited:
            self.awaited = None
        elif self.awaited is None:
            self.awaited = now

    def retires_at(self, patience: float) -> float:
        """Return the time at which the patience ends; infinity: nobody waits for the robot."""
        if self.awaited is None or self.place == RETIRED:
            return math.inf
        return self.paid + patience

    def fail(self, now: float, patience: float) -> None:
        """Note that others have waited in vain: the robot retires, is silent or registers again."""
        if self.awaited is None:
            return
        cost, self.awaited = now - self.awaited, None
        served = now - self.until
        if served >= TIMES * max(cost, self.cost):
            self.cost, self.away = cost, 0.0
        else:
            self.cost = max(cost, self.cost)
            longest = TIMES * self.cost - served
            self.away = longest if cost > LONG * patience \
                else min(max(2 * self.away, self.cost), longest)
        self.until = now + self.away

    def stays_away(self, now: float, patience: float) -> bool:
        """Return whether it is too early to wait for the robot again."""
        return now < self.until and not math.isinf(patience)

    def retire(self, now: float, patience: float) -> None:
        """Go on without the robot until its next complete push."""
        self.fail(now, patience)
        self.place = PLACE.after(self.place, 'retire')

    def take_back(self, now: float) -> None:
        """Wait for the robot again."""
        self.paid = now  # otherwise a waiting robot would retire and return again and again
        self.place = PLACE.after(self.place, 'return')

    def lost_at(self, patience: float) -> float:
        """Return the time after which a robot that is heard but idle must register again.

        Its link is no reason, because that would lose heartbeats, too. Probably robot and server
        wait for each other.
        """
        return self.progress + patience + TIMES * self.limit

    def excuse(self, seconds: float, now: float) -> None:
        """Do not count ``seconds`` for which this process did not run."""
        self.heard = min(self.heard + seconds, now)
        self.progress = min(self.progress + seconds, now)
        self.paid += seconds
        if self.awaited is not None:
            self.awaited += seconds

    def forget(self, now: float) -> None:
        """Count anew from now on, as after a pause of the fleet."""
        self.progress = self.paid = now
        self.awaited = None
