"""What requests took, by plan, as a share of what was estimated of them."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from statistics import median_low

ENOUGH = 4       # requests of a plan from which on their median corrects its estimate
MEDIAN = 7       # latest requests of which that is
LATEST = 20      # requests whose longest says when an answer is late,
KNOWN = 8        # once there are so many
AGE = 60.0       # seconds after which a request no longer counts: a plan is tried again


class Feedback:
    """Ratios of measured to estimated latency, the latest of each plan."""

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
