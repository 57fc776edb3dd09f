"""The ratio of measured to estimated latency of recent requests, by plan."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from statistics import median_low

ENOUGH = 4       # least number of requests of a plan whose median corrects the plan's estimate
MEDIAN = 7       # largest number of latest requests of which that median is taken
LATEST = 20      # largest number of latest requests whose longest says when an answer is late
KNOWN = 8        # least number of requests for that
AGE = 60.0       # seconds after which a request no longer counts, so a slow plan is tried again


class Feedback:
    """The latest ratios of measured to estimated latency, for each plan."""

    def __init__(self) -> None:
        self._ratios: defaultdict[int, deque[tuple[float, float]]] = defaultdict(
            lambda: deque(maxlen=LATEST))

    def note(self, plan: int, seconds: float, estimate: float, now: float) -> None:
        """Record a request that ended at ``now``; skip a request without an estimate."""
        if 0 < estimate < math.inf:
            self._ratios[plan].append((now, seconds / estimate))

    def factor(self, plan: int, now: float) -> float:
        """Return the factor that corrects an estimate; 1 until there are enough measurements."""
        ratios = self._recent(plan, now)
        return median_low(ratios[-MEDIAN:]) if len(ratios) >= ENOUGH else 1.0

    def longest(self, plan: int, now: float) -> float:
        """Return the largest ratio; infinite until there are enough measurements."""
        ratios = self._recent(plan, now)
        return max(ratios) if len(ratios) >= KNOWN else math.inf

    def _recent(self, plan: int, now: float) -> list[float]:
        return [ratio for at, ratio in self._ratios.get(plan, ()) if at > now - AGE]
