"""Decides when to repeat the message that something is missing.

It repeats the message often at first, and rarely later.
"""

from __future__ import annotations

import math

# seconds before the first repetition; longest pause between repetitions, in seconds
FIRST, MOST = 5.0, 60.0


class Reminder:
    """Makes a message due at once, then after pauses of 5, 10, 20 and 40 s, then every minute."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Make the message due at once; call this when the missing thing has appeared."""
        self._at, self._wait = -math.inf, FIRST

    def due(self, now: float) -> bool:
        """Return whether the message is due.

        ``now``: seconds on any monotonic clock.
        """
        if now < self._at:
            return False
        self._at, self._wait = now + self._wait, min(2 * self._wait, MOST)
        return True
