"""When to say again that something is missed: often at first, then more rarely."""

from __future__ import annotations

import math

FIRST, MOST = 5.0, 60.0  # s until it is said again for the first time, and at most


class Reminder:
    """Says at once what is missed, and again after 5, 10, 20, 40 s, then every minute."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew: what was missed is there."""
        self._at, self._wait = -math.inf, FIRST

    def due(self, now: float) -> bool:
        """Return whether it is time to say it; ``now``: any monotonic clock, s."""
        if now < self._at:
            return False
        self._at, self._wait = now + self._wait, min(2 * self._wait, MOST)
        return True
