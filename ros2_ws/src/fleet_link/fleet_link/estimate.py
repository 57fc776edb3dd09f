"""What a sender knows about its link: round trip and rate, from acknowledgements."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# RFC 9002, section 6.2.2: "When no previous RTT is available, the initial RTT SHOULD be set to 333
# milliseconds". That gives a time-out of 1 s there and in RFC 6298. Ours is shorter, because it
# costs one packet if it comes too soon, and declares nothing lost.
INITIAL_TIMEOUT = 0.333
# RFC 6298, section 2.3: "RTO <- SRTT + max (G, K*RTTVAR)". G stands here for the clock's steps and
# for the pauses of a Python process, which are some tens of milliseconds.
GRANULARITY = 0.05
# RFC 6298, section 5.7, lets a maximum be placed on the time-out if it is at least 60 s. Ours is
# lower: a probe in the longest outage of the outdoor record, 25 s, must not come long after it.
LONGEST_OUTAGE = 25.0
# The window covers more than the link carries in a round trip, so that the estimated rate can grow,
# and `QUEUE` seconds more, so that the link does not idle while this process does not run. RFC 6817
# allows a queue of 100 ms. On a link that fades from 100 to 1 Mbit/s, those would take 10 s.
GAIN, QUEUE = 1.25, 0.02
# If all round trips of so many seconds are too long for the base and this queue, the base is
# measured anew with a single packet, as BBR does: the route may have become longer.
MEMORY = 20.0
CLOCKS = 10.0            # seconds that a delay by two clocks is remembered; they drift 50 us/s

INITIAL_RATE = 250e3     # bytes/s, until the first train
LEAST_RATE = 1e3         # bytes/s
# The weight of a packet in the rate falls to 1/e after these many bytes or seconds, whichever is
# sooner: the seconds count on slow links, where 256 kB take a minute.
TRAIN_BYTES, TRAIN_TIME = 256e3, 1.0
TRUST_BYTES, TRUST_TIME = 48e3, 0.2   # a train of this length counts as much as all before it
SURE_BYTES, SURE_TIME = 192e3, 0.8    # a shorter train can at most double a known rate
LEAST_BYTES, LEAST_TIME = 24e3, 0.1   # a shorter train says nothing alone


@dataclass
class RoundTrip:
    """Round-trip time and time-out, in seconds (RFC 6298 and RFC 9002, section 5).

    ``smoothed``, ``variation``: SRTT and RTTVAR. ``latest``: the last sample, 0 before the first.
    ``base``: the round trip of an empty link.
    """

    smoothed: float = 0.05
    variation: float = 0.0
    latest: float = 0.0
    base: float = math.inf
    searching: bool = True  # whether `base` must be measured anew
    _shown: float = -math.inf  # time of the last sample that fits the base

    def sample(self, trip: float, alone: bool, few: bool, now: float) -> bool:
        """Take the round trip of a packet into account; return whether the base has become longer.

        ``alone``: whether nothing of the sender was ahead of the packet. ``few``: whether so few
        packets were ahead that their number, not the base, decides how much of the link is used.
        """
        if self.latest == 0:
            # RFC 6298, section 2.2: "SRTT <- R, RTTVAR <- R/2".
            self.smoothed, self.variation = trip, trip / 2
        else:
            # Section 2.3, RTTVAR first: "RTTVAR <- (1 - beta) * RTTVAR + beta * |SRTT - R'|",
            # "SRTT <- (1 - alpha) * SRTT + alpha * R'", alpha 1/8, beta 1/4.
            self.variation += (abs(self.smoothed - trip) - self.variation) / 4
            self.smoothed += (trip - self.smoothed) / 8
        self.latest = trip
        former = self.base
        if trip <= self.base or (self.searching and alone):
            self.base, self.searching = max(trip, 1e-6), False
            self._shown = now
        elif trip < 1.1 * (self.base if few else GAIN * (self.base + QUEUE)):
            self._shown = now
        elif now > self._shown + MEMORY:
            self.searching = True
        return self.base > former

    @property
    def queueing(self) -> float:
        """Seconds that the latest packet or its acknowledgement waited in queues."""
        return self.latest - self.base

    @property
    def timeout(self) -> float:
        """Seconds without an acknowledgement after which the sender probes for the first time."""
        if self.latest == 0:
            return INITIAL_TIMEOUT
        return self.smoothed + max(4 * self.variation, GRANULARITY)

    def forget_base(self) -> None:
        """Take the base from the next sample (RFC 9002, section 5.2)."""
        self.base, self.searching = math.inf, True


@dataclass
class Minimum:
    """The least value of the last ``memory`` to twice ``memory`` seconds."""

    memory: float
    value: float = math.inf
    _older: float = math.inf
    _newer: float = math.inf
    _since: float = -math.inf

    def add(self, value: float, now: float) -> None:
        """Take a value into account."""
        if now >= self._since + self.memory:
            self._older = self._newer if now < self._since + 2 * self.memory else math.inf
            self._newer, self._since = math.inf, now
        self._newer = min(self._newer, value)
        self.value = min(self._older, self._newer)


@dataclass
class Rate:
    """The rate at which the link delivers, bytes/s, from trains of packets.

    Packets that queue behind one another form a train. The rate is the rate at which they arrive,
    by the receiver's clock; the sender's pauses and the round trip do not count. A longer train has
    a larger weight. If a train's rate differs from the estimate by a factor of two or more, it
    replaces the estimate, so the first train after a fade corrects it.
    """

    value: float = INITIAL_RATE
    known: bool = False                    # whether a train has been measured
    _delays: Minimum = field(default_factory=lambda: Minimum(CLOCKS))
    _last: tuple[int, float] = (-1, 0.0)   # newest packet, and the time of its arrival
    _before: float = math.inf              # estimate before the present train; infinite: forgotten
    _bytes: float = 0.0                    # of this train, older bytes weighted less
    _seconds: float = 0.0                  # of this train, weighted likewise
    _length: float = 0.0                   # plain sums of the train's bytes and seconds
    _lasted: float = 0.0
    _proven: float = 0.0                   # mean of `at_least`, until the rate is known

    def sample(self, packet: int, nbytes: float, sent_at: float, arrived: float) -> None:
        """Take the arrival of ``packet`` into account.

        ``nbytes``: bytes that this acknowledgement says have arrived, those of ``packet`` and those
        of earlier packets whose acknowledgements were lost. ``arrived``: by the receiver's clock.
        """
        self._delays.add(arrived - sent_at, arrived)
        former, former_arrived = self._last
        if packet <= former:  # overtaken: the time between the arrivals does not show the rate
            return
        self._last = packet, arrived
        # If the packet was sent before the preceding one arrived, the link was busy in between. The
        # least delay converts the receiver's clock to the sender's.
        if former < 0 or sent_at > former_arrived - self._delays.value:
            # short trains count together, unless they are old
            if former < 0 or self._is_long() or arrived > former_arrived + MEMORY:
                self._bytes = self._seconds = self._length = self._lasted = 0.0
                self._before = self.value if self.known else math.inf
            return
        seconds = max(arrived - former_arrived, 1e-6)
        keep = math.exp(-max(nbytes / TRAIN_BYTES, seconds / TRAIN_TIME))
        self._bytes = self._bytes * keep + nbytes
        self._seconds = self._seconds * keep + seconds
        self._length += nbytes
        self._lasted += seconds
        if not self._is_long():
            return
        measured = self._bytes / self._seconds
        if self._length < SURE_BYTES and self._lasted < SURE_TIME:
            measured = min(measured, 2 * self._before if self.known else 8 * self.value)
        if self._before / 2 < measured < self._before * 2:
            weight = max(self._length / (self._length + TRUST_BYTES),
                         self._lasted / (self._lasted + TRUST_TIME))
            measured = self._before + (measured - self._before) * weight
        self.value, self.known = max(measured, LEAST_RATE), True

    def _is_long(self) -> bool:
        return self._length >= LEAST_BYTES or self._lasted >= LEAST_TIME

    def forget_delay(self) -> None:
        """Measure anew how long an empty link takes from clock to clock."""
        self._delays = Minimum(CLOCKS)

    def at_least(self, rate: float) -> None:
        """Note a rate at which bytes have certainly arrived."""
        if rate > self.value:
            self.value = rate
        if not self.known:
            self._proven = rate if self._proven == 0 else self._proven + (rate - self._proven) / 8

    @property
    def careful(self) -> float:
        """The rate; before a train was measured, at most what bytes are known to have arrived at.

        If an owner sends little, there is no train, and the link may be far slower than `value`.
        """
        return self.value if self.known or self._proven == 0 else min(self.value, self._proven)

    def halve(self, forget: bool) -> None:
        """Expect less after a time-out; ``forget``: let the next train count alone."""
        self.value = max(self.value / 2, LEAST_RATE)
        self._before = self.value if self.known and not forget else math.inf
