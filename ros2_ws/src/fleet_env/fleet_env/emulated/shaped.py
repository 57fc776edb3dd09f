"""An emulated link: a token bucket delays messages at the sender.

A fleet with real links does not use this module.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable

from fleet_env.links.bucket import TokenBucket
from fleet_env.links.trace import LinkTrace
from fleet_env.settings.fleet import LinkConfig
from fleet_env.settings.fleet_file import link_trace


class ShapedLink:
    """First-in first-out link that follows a trace and adds a fixed delay.

    :param trace: rate over time; None: unlimited.
    :param latency: delay in seconds.
    :param epoch: wall-clock time at which the trace begins. It is the same in every process of a
        fleet, so that both directions of a link fade together. 0: the trace begins now.
    """

    def __init__(self, trace: LinkTrace | None = None, latency: float = 0.0,
                 epoch: float = 0.0) -> None:
        self.latency = latency
        # Monotonic time at which the trace begins.
        self.start = time.monotonic() - (time.time() - epoch if epoch else 0.0)
        self._trace = trace
        self._bucket = TokenBucket(trace, self.start) if trace is not None else None
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    @classmethod
    def from_config(cls, link: LinkConfig, epoch: float) -> ShapedLink:
        """Build the link that the settings describe; without trace and rate it is unlimited."""
        if not link.emulate:
            return cls()
        limited = link.trace or link.rate
        return cls(link_trace(link) if limited else None, link.latency, epoch)

    def hold(self) -> None:
        """Ignore the trace until `begin`; until then only ``latency`` delays messages."""
        self._bucket = None

    def begin(self, start: float) -> None:
        """Start the trace at ``start``, monotonic seconds; only the first call has an effect."""
        if self._bucket is None and self._trace is not None:
            self.start, self._bucket = start, TokenBucket(self._trace, start)

    def send(self, nbytes: int, publish: Callable[[], None], now: float, lossy: bool = False
             ) -> None:
        """Send a message of ``nbytes``; `release` calls ``publish`` when it has left the link.

        An unlimited link without latency calls ``publish`` at once.

        :param lossy: True: a dead link drops the message, as a radio does. False: the message
            waits, as in a reliable connection.
        """
        if lossy and self.is_dead(now):
            return
        if self._bucket is None and not self.latency:
            publish()
            return
        at = (now if self._bucket is None else self._bucket.offer(nbytes, now)) + self.latency
        heapq.heappush(self._queue, (at, next(self._count), publish))

    def release(self, now: float) -> None:
        """Publish every message that has left the link by ``now``."""
        while self._queue and self._queue[0][0] <= now:
            heapq.heappop(self._queue)[2]()

    @property
    def delays(self) -> bool:
        """Return whether the link can delay a message."""
        return self._trace is not None or self.latency > 0

    @property
    def deadline(self) -> float:
        """Return the earliest time at which `release` has work to do; infinity if it has none."""
        return self._queue[0][0] if self._queue else math.inf

    def is_dead(self, now: float) -> bool:
        """Return whether the link carries nothing now, in either direction."""
        return self.rate(now) == 0.0

    def rate(self, now: float) -> float:
        """Return the rate now, Mbit/s; NaN for a real link and for an unlimited link."""
        return math.nan if self._bucket is None else self._bucket.rate_at(now)
