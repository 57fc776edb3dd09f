"""Estimates the delivery rate and the round-trip time of a sender's link from acknowledgements."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

# Lower limit of `LinkEstimate.chunk_bytes`. A message with such a chunk has 1300 bytes, including
# its header.
MIN_CHUNK = 1260
QUEUE_TIME = 0.02      # seconds that data may wait in the queue of the link
MIN_RTO, MAX_RTO = 0.05, 2.0  # limits of `LinkEstimate.timeout`, seconds
MIN_RATE = 1e3         # lower limit of the estimated rate, in bytes per second


@dataclass
class LinkEstimate:
    """Estimates the delivery rate (bytes/s) and the round-trip time (s) towards one peer.

    The window is the number of bytes that may be unacknowledged: 1.25 * delivery rate * (shortest
    round trip + `QUEUE_TIME`). So the rate can grow while the link has free capacity, and no long
    queue builds up when the link becomes slower. A chunk has as many bytes as the link carries in
    ``chunk_time`` seconds.

    ``scale``: in a simulation, a small model may represent a large model; each byte of the small
    model then counts as ``scale`` bytes on the link.
    """

    max_chunk: int
    chunk_time: float
    scale: float = 1.0
    rate: float = 250e3
    round_trip: float = 0.05
    delivered: int = 0
    shortest: float = 0.0  # shortest of the last 64 round-trip times in seconds; 0: not measured
    backoff: float = 1.0      # factor of `timeout`; a time-out doubles it, an answer resets it to 1
    _trips: deque[float] = field(default_factory=lambda: deque(maxlen=64), repr=False)
    _backed_off: float = -math.inf  # time of the last time-out, in seconds

    def __post_init__(self) -> None:
        self.rate /= self.scale

    @property
    def chunk_bytes(self) -> int:
        """Maximum number of bytes of ids and values in the next chunk."""
        on_air = min(max(self.rate * self.scale * self.chunk_time, MIN_CHUNK), self.max_chunk)
        return int(on_air / self.scale)

    @property
    def window_bytes(self) -> int:
        """Maximum number of bytes that may be unacknowledged."""
        return int(max(1.25 * self.rate * (self.shortest + QUEUE_TIME), 2 * self.chunk_bytes))

    @property
    def timeout(self) -> float:
        """Seconds after which an unacknowledged chunk counts as lost."""
        return min(max(3 * self.round_trip, MIN_RTO) * self.backoff, MAX_RTO)

    def sample(self, nbytes: int, sent_at: float, delivered_then: int, now: float,
               full: bool = True) -> None:
        """Update the estimate from the acknowledgement of a chunk that was sent only once.

        ``nbytes``: size of the chunk. ``delivered_then``: number of bytes that had arrived when
        the chunk was sent. ``full``: whether the window was full at that time. If the window was
        not full, the sender had no more data to send. Then the bytes that have arrived since that
        time give only a lower limit of the rate. An upper limit is the bytes of the other chunks
        that have arrived since that time, divided by the time for which this chunk waited in the
        queue.
        """
        elapsed = max(now - sent_at, 1e-6)
        self.delivered += nbytes
        trips = self._trips
        forgotten = trips[0] if len(trips) == trips.maxlen else math.inf
        trips.append(elapsed)
        if elapsed <= self.shortest or len(trips) == 1:
            self.shortest = elapsed
        elif forgotten == self.shortest:
            self.shortest = min(trips)
        # A time-out shows that the estimated round trip was wrong, so this sample replaces it.
        weight = 1 / 8 if self.backoff == 1 else 1.0
        self.round_trip += (elapsed - self.round_trip) * weight
        self.backoff = 1.0
        delivered = self.delivered - delivered_then
        measured = delivered / elapsed
        if not full:
            held_up, ahead = max(elapsed - self.shortest, 1e-6), delivered - nbytes
            most = min(1.25 * self.rate, ahead / held_up) if ahead else \
                min(self.rate, nbytes / held_up)
            measured = max(measured, most)
        self.rate += (measured - self.rate) / 8

    def is_back(self) -> None:
        """Handle the first message after a silence: reset the factor `backoff` to 1."""
        self.backoff = 1.0

    def timed_out(self, now: float) -> None:
        """Handle a chunk that was not acknowledged in time: halve the rate, double the time-out.

        The rate and the round trip are measured only with chunks that were sent once. If the
        time-out stayed shorter than the round trip, every chunk would be sent repeatedly, and the
        link would never be measured again. Within one time-out, only the first call has an effect.
        """
        if now >= self._backed_off + self.timeout:
            self._backed_off = now
            self.rate = max(self.rate / 2, MIN_RATE / self.scale)
            self.backoff = min(2 * self.backoff, MAX_RTO / MIN_RTO)
