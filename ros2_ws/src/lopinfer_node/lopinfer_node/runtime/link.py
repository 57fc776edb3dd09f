"""Estimate a sender's link from the acknowledgements of its own pieces.

Pieces that queue behind one another form a train. The bandwidth is the rate at which the pieces of
a train arrive: bytes divided by the time in which the link is busy, measured by the receiver's
clock. The sender's pauses and the round trip do not count. Only about the last `TRAIN_BYTES` bytes
of a train influence its rate. A longer train has a larger weight in the estimate. If a train's rate
differs from the estimate by a factor of two or more, the train's rate replaces the estimate. So
after a fade of the link the first train of a request or probe corrects the estimate. A probe is too
short to show a large increase of the rate, because a busy receiver may read all pieces of the probe
at once.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from .wire import MAX_PIECE

INITIAL_RATE = 5e6       # bytes/s, assumed until the first packet train has been measured
# seconds that sending a piece should take; short, because a fade of the link loses whole pieces
PIECE_TIME = 0.003
MIN_PIECE = 4096         # minimum bytes of a piece
QUEUE_TIME = 0.02        # seconds that the window covers in addition to one round trip
MIN_WINDOW, MAX_WINDOW = 4 * MIN_PIECE, 4 << 20  # bounds of the window, bytes
MIN_RTO, MAX_RTO = 0.05, 2.0   # bounds of the time-out, in seconds
MIN_RATE = 1e4           # lowest estimate of the rate, bytes/s
TRAIN_BYTES = 256e3      # the weight of a piece falls to exp(-1) after this many further bytes
TRUST_BYTES = 48e3       # a train of this many bytes counts as much as all trains before it
SURE_BYTES = 192e3       # a train of fewer bytes can at most double the estimated rate
MIN_TRAIN = 24e3         # bytes; a shorter packet train is too inaccurate to be measured


@dataclass
class LinkEstimate:
    """Estimates bandwidth (bytes/s), round trip (s), window and time-out towards one peer."""

    max_piece: int = MAX_PIECE
    rate: float = INITIAL_RATE
    round_trip: float = 0.02
    known: bool = False       # whether the rate of a train has been measured
    delivered: int = 0        # bytes of pieces that the receiver has acknowledged
    backoff: float = 1.0      # factor on the time-out; each time-out that fires doubles it
    _trips: deque[float] = field(default_factory=lambda: deque([0.02], 64), repr=False)
    _delays: deque[float] = field(default_factory=lambda: deque(maxlen=64), repr=False)
    _backed_off: float = -math.inf
    _last: tuple[int, float] = (-1, 0.0)   # newest packet, and the time of its arrival
    _before: float = math.inf              # estimate before the present train; infinite: unknown
    # bytes of this train, older bytes weighted less; `_seconds`: its time, weighted likewise
    _bytes: float = 0.0
    _seconds: float = 0.0
    _length: float = 0.0                   # plain sum of the train's bytes

    @property
    def piece_bytes(self) -> int:
        """Return the size of the next transfer's pieces in bytes."""
        return int(min(max(self.rate * PIECE_TIME, MIN_PIECE), self.max_piece))

    @property
    def window_bytes(self) -> int:
        """Return how many bytes may be unacknowledged at once.

        These are the bytes that the link carries in one round trip, plus a margin.
        """
        wanted = 1.25 * self.rate * (min(self._trips) + QUEUE_TIME)
        return int(min(max(wanted, MIN_WINDOW), MAX_WINDOW))

    @property
    def timeout(self) -> float:
        """Return the seconds after which an unacknowledged piece counts as lost."""
        patience = max(3 * self.round_trip, 2 * self.window_bytes / self.rate, MIN_RTO)
        return min(patience * self.backoff, MAX_RTO)

    def sample(self, packet: int, nbytes: int, sent_at: float, delivered_then: int, arrived: float,
               now: float) -> None:
        """Update the estimate with the acknowledgement of ``packet``.

        ``sent_at`` and ``now``: times at which the packet was sent and its acknowledgement arrived.
        ``delivered_then``: bytes that had been acknowledged when the packet was sent.
        ``arrived``: time at which the receiver got the packet, by the receiver's clock.
        """
        trip = max(now - sent_at, 1e-6)
        # The bytes acknowledged during this round trip give a lower limit of the link's rate.
        # Without this limit, a window that is too small to keep the link busy would never grow,
        # because a train needs a busy link.
        self.rate = max(self.rate, (self.delivered - delivered_then) / trip)
        self._trips.append(trip)
        weight = 1 / 8 if self.backoff == 1 else 1.0
        self.round_trip += (trip - self.round_trip) * weight
        self.backoff = 1.0
        self._delays.append(arrived - sent_at)
        former, former_arrived = self._last
        if packet <= former:
            # A packet that was sent later has already arrived. The order has changed on the way,
            # so the time between the arrivals does not show the rate.
            return
        self._last = packet, arrived
        # If the sender sent this packet before the preceding packet arrived, the link was busy
        # between the two arrivals, and the train continues. The least delay converts the time of
        # arrival from the receiver's clock to the sender's clock.
        if packet == former + 1 and sent_at <= former_arrived - min(self._delays):
            self._extend(nbytes, max(arrived - former_arrived, 1e-6))
        else:
            self._bytes = self._seconds = self._length = 0.0
            self._before = self.rate if self.known else math.inf

    def _extend(self, nbytes: int, seconds: float) -> None:
        keep = math.exp(-nbytes / TRAIN_BYTES)
        self._bytes = self._bytes * keep + nbytes
        self._seconds = self._seconds * keep + seconds
        self._length += nbytes
        if self._length < MIN_TRAIN:
            return
        measured = self._bytes / self._seconds
        if self._length < SURE_BYTES:
            measured = min(measured, 2 * self._before)
        if not self._before / 2 < measured < self._before * 2:
            self.rate = measured
        else:
            weight = self._length / (self._length + TRUST_BYTES)
            self.rate = self._before + (measured - self._before) * weight
        self.rate, self.known = max(self.rate, MIN_RATE), True

    def timed_out(self, now: float) -> None:
        """Reduce the estimated rate, which also reduces the window, and extend the time-out.

        Call this when a piece was not acknowledged in time.
        """
        if now >= self._backed_off + self.timeout:
            self._backed_off = now
            self.rate = max(self.rate / 2, MIN_RATE)
            self._before = self.rate if self.known else math.inf
            self.backoff = min(2 * self.backoff, MAX_RTO / MIN_RTO)
