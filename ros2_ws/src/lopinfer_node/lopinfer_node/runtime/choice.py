"""Chooses the plan of each request, by the rates of the link and by measured latencies."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..planning.plan import DEVICE, Plan
from .execution import AnyProgram
from .feedback import Feedback

# A measured rate counts as equal to a bandwidth of the table if it is below this bandwidth by at
# most this many bytes/s.
BIN_SLACK = 0.25e6
# Another plan replaces the plan that the table has chosen only if the other plan is faster by more
# than this share.
HYSTERESIS = 0.02
TRY = 0.1  # share by which the estimate of an unmeasured plan is lowered, so that the plan is tried
# An answer counts as late after LATER times the longest latency of recent requests. But the
# request waits at least LEAST_WAIT seconds beyond the expected time, and at least as long as the
# robot alone would compute. `PlanChoice.patience` limits this wait.
LATER = 1.25
LEAST_WAIT = 0.02


@dataclass(frozen=True)
class PlannedTable:
    """The best of ``plans`` for each pair of bandwidths of uplink and downlink.

    ``bandwidths``: bytes/s, ascending, for both directions. ``chosen``: int (up, down),
    index of the best plan. ``estimates``: float (up, down), expected latency of the best plan
    in seconds (NaN: unknown). ``others`` and ``other_estimates`` (alternatives, up, down):
    index and expected latency of other plans. One of these plans replaces the chosen plan if
    the chosen plan proves slower than its estimate.
    """

    bandwidths: Sequence[float]
    plans: Sequence[Plan]
    chosen: np.ndarray
    estimates: np.ndarray
    others: np.ndarray = field(default_factory=lambda: np.empty((0, 0, 0), np.int64))
    other_estimates: np.ndarray = field(default_factory=lambda: np.empty((0, 0, 0)))
    # the device's program for each plan; empty until the shell sets it
    programs: Sequence[AnyProgram] = ()

    def ways(self, up: int, down: int) -> list[tuple[int, float]]:
        """Return plans as (index, estimate), the chosen plan first.

        ``up``, ``down``: indices in `bandwidths`.
        """
        others = zip(self.others[:, up, down], self.other_estimates[:, up, down], strict=True) \
            if len(self.others) else ()
        return [(int(plan), float(seconds)) for plan, seconds in (
            (self.chosen[up, down], self.estimates[up, down]), *others)]

    def shares(self, plan: int) -> bool:
        """Return whether the server computes any part of a plan."""
        return any(t.source == DEVICE for t in self.plans[plan].transfers)


NO_TABLE = PlannedTable((), (), np.empty(0), np.empty(0))


class PlanChoice:
    """The plan of the present request, chosen from ``table``.

    ``plan``: index of the plan. ``estimate``: latency of the plan according to the table, in s; NaN
    if unknown.
    """

    def __init__(self, table: PlannedTable) -> None:
        self.table = table
        self.plan, self.estimate = 0, math.nan
        self._feedback = Feedback()  # measured latencies of the table's plans

    def choose(self, rates: tuple[float, float], now: float) -> float:
        """Choose the plan that is expected to be the fastest.

        Return its expected latency in seconds: the estimate, corrected by measurements.

        The plan that the table has chosen is used unless another plan is faster by the share
        `HYSTERESIS`. Once the chosen plan has been measured, requests also try other plans that
        may be faster.

        :param rates: rates of uplink and downlink, bytes/s.
        """
        ways = self._ways(rates)
        expected = [estimate * self._feedback.factor(plan, now) for plan, estimate in ways]
        tries = self._feedback.known(ways[0][0], now)
        least = [seconds if not tries or self._feedback.known(plan, now) else seconds * (1 - TRY)
                 for (plan, _), seconds in zip(ways, expected, strict=True)]
        best = min(range(len(ways)), key=lambda k: least[k])
        if not least[best] < expected[0] * (1 - HYSTERESIS):
            best = 0
        self.plan, self.estimate = ways[best]
        return expected[best]

    def choose_alone(self) -> None:
        """Choose the plan for a dead link: the robot computes the whole request alone."""
        self.plan, self.estimate = self._alone()

    def shares(self) -> bool:
        """Return whether the server computes any part of the chosen plan."""
        return self.table.shares(self.plan)

    def why_alone(self, rates: tuple[float, float]) -> str:
        """Return why a plan was chosen that computes everything on the robot."""
        up, down = rates
        why = 'this is the fastest by the measured profiles' \
            if self.plan == self._ways(rates)[0][0] else \
            'by what recent requests have taken, this may be the fastest'
        return (f'at {up / 1e6:.1f} MB/s up and {down / 1e6:.1f} MB/s down the plan computes '
                f'everything on the robot: {why}')

    def patience(self, known: float, deadline: float, now: float) -> float:
        """Return for how many seconds the request waits for the server.

        Without measurements, the request waits for twice the expected time, or for the expected
        time plus ``deadline``, whichever is longer. If the robot then needs about the expected
        time to finish alone, the request takes about three times the expected time. After enough
        measurements the request waits less, because an answer that takes longer than all recent
        answers is unlikely to come soon. But within this limit it waits at least as long as the
        robot alone would compute, because after giving up, the robot must spend this computing
        time anyway.

        :param known: expected time in seconds.
        :param deadline: seconds beyond the expected time.
        """
        most = max(2 * known, known + deadline)
        longest = self.estimate * self._feedback.longest(self.plan, now)
        alone = self._seconds_alone(now)
        return most if not math.isfinite(longest) else min(most, max(
            LATER * longest, known + LEAST_WAIT, alone if math.isfinite(alone) else 0.0))

    def wait(self, others: float, now: float) -> float:
        """Return for how many seconds more the request waits, as the server serves other robots.

        :param others: seconds that the server needs for the requests of the others.

        The wait ends when the robot would be faster alone.
        """
        alone = self._seconds_alone(now)
        return min(LATER * others, alone) if math.isfinite(alone) else LATER * others

    def _seconds_alone(self, now: float) -> float:
        """Return the expected latency on the robot alone; NaN if it is unknown."""
        alone, seconds = self._alone()
        return seconds * self._feedback.factor(alone, now)

    def note(self, seconds: float, now: float) -> None:
        """Record the latency of the request, which ended at ``now``."""
        self._feedback.note(self.plan, seconds, self.estimate, now)

    def _ways(self, rates: tuple[float, float]) -> list[tuple[int, float]]:
        up, down = (max(0, bisect_right(self.table.bandwidths, rate + BIN_SLACK) - 1)
                    for rate in rates)
        return self.table.ways(up, down)

    def _alone(self) -> tuple[int, float]:
        """Return (index, estimate) of the plan for a dead link.

        Return (0, NaN) if the table is empty or this plan needs the server.
        """
        table = self.table
        if not len(table.plans) or table.shares(int(table.chosen[0, 0])):
            return 0, math.nan
        return table.ways(0, 0)[0]
