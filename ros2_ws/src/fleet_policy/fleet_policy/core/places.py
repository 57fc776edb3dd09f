"""The data of `PolicyMachine` about a place that computes actions: latencies and requests.

A place is the robot or the server.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from statistics import median

ROBOT, SERVER = 'robot', 'server'
KEPT = 8           # number of the latest latencies from which the next latency is estimated
# a request counts as lost after LATER times the longest of the KEPT latencies, at least `patience`
LATER = 3.0
# A place gets no requests for FIRST_PENALTY seconds after the first loss. The time doubles with
# each further loss, up to MOST_PENALTY seconds.
FIRST_PENALTY, MOST_PENALTY = 0.25, 2.0


def lost_after(longest: float, patience: float) -> float:
    """Return the seconds after which an answer counts as lost; ``longest``: latest longest time."""
    return max(patience, LATER * longest)


class Place:
    """The requests that are under way at one place, and its latencies in seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.available = True
        self.reason = ''  # why the place is unavailable, or why the last failed request failed
        self.counts: Counter[str] = Counter()
        self.newest = -math.inf              # time of the newest observation that was sent
        self.sent = -math.inf                # time of the latest request
        self._under_way: dict[int, float] = {}   # maps a request to its time of sending
        self._latencies: deque[float] = deque(maxlen=KEPT)
        self._losses = 0
        self._not_before = -math.inf

    def begin(self) -> None:
        """Clear the requests under way and the losses, but keep the measured latencies."""
        self.newest = self.sent = self._not_before = -math.inf
        self._under_way.clear()
        self._losses = 0

    @property
    def busy(self) -> int:
        """Return how many requests are under way."""
        return len(self._under_way)

    def has(self, request: int) -> bool:
        """Return whether a request is under way."""
        return request in self._under_way

    @property
    def longest(self) -> float:
        """Return the longest of the latest latencies; infinity if no latency is known yet."""
        return max(self._latencies, default=math.inf)

    @property
    def usual(self) -> float:
        """Return the median of the latest latencies; NaN if no latency is known yet."""
        return median(self._latencies) if self._latencies else math.nan

    @property
    def latency(self) -> float:
        """Return the last latency; NaN if no latency is known yet."""
        return self._latencies[-1] if self._latencies else math.nan

    def can(self, now: float) -> bool:
        """Return whether the machine may ask this place for actions now."""
        return self.available and now >= self._not_before

    def ask(self, request: int, observed: float, now: float) -> None:
        """Record a request."""
        self._under_way[request] = self.sent = now
        self.newest = observed
        self.counts['requests'] += 1

    def answered(self, request: int, now: float, sent: float) -> None:
        """Record an answer, even to a request that has counted as lost."""
        self._under_way.pop(request, None)
        self._latencies.append(now - sent)
        self._losses, self._not_before = 0, -math.inf
        self.counts['answers'] += 1
        self.reason = ''

    def measured(self, seconds: float) -> None:
        """Record the duration of an inference that the node made only to measure it."""
        self._latencies.append(seconds)

    def failed(self, request: int, reason: str, now: float) -> None:
        """Record that a request has failed; for a while, `can` returns False."""
        if self._under_way.pop(request, None) is None:
            return
        self.reason = reason
        self.counts['lost'] += 1
        self._not_before = now + min(FIRST_PENALTY * 2 ** self._losses, MOST_PENALTY)
        self._losses += 1

    def expire(self, patience: float, now: float) -> None:
        """Count each request as lost that has been under way for too long.

        ``patience``: least time in seconds after which a request counts as lost.
        """
        # Before the first answer the latency is unknown, and the place may still load or compile a
        # large model. So wait longer.
        limit = lost_after(self.longest, patience) if self._latencies else 10 * patience
        for request, sent in list(self._under_way.items()):
            if now - sent > limit:
                self.failed(request, f'no answer for {now - sent:.1f} s', now)
