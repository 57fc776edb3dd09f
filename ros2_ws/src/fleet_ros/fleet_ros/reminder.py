"""Decides when to repeat a message about something missing: often at first, then less often."""

from __future__ import annotations

import math

FIRST, MOST = 5.0, 60.0  # s before the first repetition; longest pause between two repetitions, s


class Reminder:
    """Makes a message due at once, then after pauses of 5, 10, 20 and 40 s, then every minute."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again with the first message, because the missing thing has appeared."""
        self._at, self._wait = -math.inf, FIRST

    def due(self, now: float) -> bool:
        """Return whether the message is due; ``now``: time on any monotonic clock, s."""
        if now < self._at:
            return False
        self._at, self._wait = now + self._wait, min(2 * self._wait, MOST)
        return True
