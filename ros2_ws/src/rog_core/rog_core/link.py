"""What a sender knows of its link: delivery rate and round-trip time, from its own acknowledgements."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MIN_CHUNK = 1280       # bytes of a chunk that fits one datagram on any link
CHUNK_TIME = 0.004     # seconds that a chunk should take
QUEUE_TIME = 0.02      # seconds of data that may be on their way beyond the round trip
MIN_RTO, MAX_RTO = 0.05, 2.0


@dataclass
class LinkEstimate:
    """Delivery rate (bytes/s) and round-trip time (s) towards one peer.

    The window lets the rate that was seen, and a quarter more, be in flight for the shortest round
    trip plus `QUEUE_TIME`, so it grows while the link has room and no queue builds up behind a link
    that fades. Chunks are sized to `CHUNK_TIME` of the link.
    """

    max_chunk: int = 14000
    rate: float = 250e3
    round_trip: float = 0.05
    delivered: int = 0
    _floor: deque = field(default_factory=lambda: deque(maxlen=64), repr=False)

    @property
    def chunk_bytes(self) -> int:
        """Bytes that the next chunk should have at most."""
        return int(min(max(self.rate * CHUNK_TIME, MIN_CHUNK), self.max_chunk))

    @property
    def window_bytes(self) -> int:
        """Bytes that may be unacknowledged."""
        shortest = min(self._floor, default=0.0)
        return int(max(1.25 * self.rate * (shortest + QUEUE_TIME), 2 * self.chunk_bytes))

    @property
    def timeout(self) -> float:
        """Seconds after which an unacknowledged chunk counts as lost."""
        return min(max(3 * self.round_trip, MIN_RTO), MAX_RTO)

    def sample(self, nbytes: int, sent_at: float, delivered_then: int, now: float) -> None:
        """Take the acknowledgement of a chunk sent once, when ``delivered_then`` bytes had arrived."""
        elapsed = max(now - sent_at, 1e-6)
        self.delivered += nbytes
        self._floor.append(elapsed)
        self.round_trip += (elapsed - self.round_trip) / 8
        self.rate += ((self.delivered - delivered_then) / elapsed - self.rate) / 8
