"""The ratio of measured to estimated latency of recent requests, for each plan."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from statistics import median_low

# The median of a plan's ratios corrects the plan's estimate. The largest ratio decides how long a
# request waits for the server's answer.
ENOUGH = 4       # the median needs at least this many requests of a plan
MEDIAN = 7       # the median is taken over this many of the latest requests
LATEST = 20      # the largest ratio is taken over this many of the latest requests
KNOWN = 8        # the largest ratio needs at least this many requests of a plan
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

    def known(self, plan: int, now: float) -> bool:
        """Return whether there are enough measurements to correct the estimate of a plan."""
        return len(self._recent(plan, now)) >= ENOUGH

    def factor(self, plan: int, now: float) -> float:
        """Return the factor that corrects an estimate; 1 until there are enough measurements."""
        return median_low(self._recent(plan, now)[-MEDIAN:]) if self.known(plan, now) else 1.0

    def longest(self, plan: int, now: float) -> float:
        """Return the largest recent ratio of measured to estimated latency of a plan.

        The result is infinite until there are enough requests.
        """
        ratios = self._recent(plan, now)
        return max(ratios) if len(ratios) >= KNOWN else math.inf

    def _recent(self, plan: int, now: float) -> list[float]:
        return [ratio for at, ratio in self._ratios.get(plan, ()) if at > now - AGE]
