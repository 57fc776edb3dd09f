"""A link whose rate follows a trace; packets leave it first in, first out. Sans-I/O."""

import math

from fleet_env.links.trace import LinkTrace

_MBIT_PER_BYTE = 8e-6


class TokenBucket:
    """Compute when each packet leaves the link.

    The rate of the trace fills the bucket. Capacity that an idle link does not use is lost. So
    the bytes that leave in any interval never exceed the integral of the rate over the interval,
    plus the packet that is under way when the interval begins. The link is never idle while a
    packet waits, and keeps the order of packets. For a trace of n samples, every call costs
    O(log n).

    :param trace: rate of the link; a rate of 0 lets nothing through.
    :param start: time, on the caller's clock in seconds, at which the trace begins.
    """

    def __init__(self, trace: LinkTrace, start: float = 0.0):
        self.trace = trace
        self.start = start
        self._now = -math.inf
        self._departure = -math.inf
        # Amount of data in Mbit that the link could carry from `start` until the last queued packet
        # leaves.
        self._busy_until = -math.inf

    def offer(self, nbytes: int, now: float) -> float:
        """Queue ``nbytes`` at time ``now``; return the time at which the last byte leaves.

        The result is infinite if all rates of the trace are 0. Time does not go back: if ``now`` is
        earlier than ``start``, or than ``now`` of a previous call, the latest of these is used.

        :raises ValueError: ``nbytes`` is negative.
        """
        if nbytes < 0:
            raise ValueError(f'nbytes is {nbytes}; it must be at least 0')
        now = self._advance(now)
        if nbytes:
            begin = max(self._busy_until, self.trace.carried(now - self.start))
            self._busy_until = begin + nbytes * _MBIT_PER_BYTE
            left = self.start + self.trace.time_to_carry(self._busy_until)
            self._departure = max(left, self._departure, now)
        return max(self._departure, now)

    def backlog_bytes(self, now: float) -> float:
        """Return the bytes that still wait at time ``now``."""
        now = self._advance(now)
        if now >= self._departure:
            return 0.0
        waiting = self._busy_until - self.trace.carried(now - self.start)
        return max(waiting, 0.0) / _MBIT_PER_BYTE

    def rate_at(self, now: float) -> float:
        """Return the rate of the link at time ``now``, Mbit/s; 0 means no link."""
        return self.trace.rate(now - self.start)

    def clear(self, now: float) -> None:
        """Drop all bytes that still wait at time ``now``, because the sender gave them up."""
        now = self._advance(now)
        if now < self._departure:
            self._departure = now
            self._busy_until = self.trace.carried(now - self.start)

    def _advance(self, now: float) -> float:
        # The link carries nothing before `start`.
        self._now = max(self._now, now, self.start)
        return self._now
