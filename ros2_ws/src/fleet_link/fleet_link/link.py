"""The sending end of a link to one peer: what may be sent now, what has arrived, what is lost.

The rules are those of RFC 9002 (loss detection and congestion control of QUIC) and of delay-based
control (RFC 6817). The link knows numbers and sizes; what a packet carries is its owner's.

* Every transmission has a number of its own, also a repetition (RFC 9002, section 4.2). So each
  acknowledgement is a sample of the round trip, and no timer expires for want of samples.
* A time-out sends one probe, and doubles. Only an acknowledgement declares packets lost.
* The bytes in flight follow the rate at which the link delivers and the delay of an empty link. So
  little waits in the link's queue, and what no longer matters is never sent.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from .arrivals import MASK_BITS, WIRE, Ack, expanded
from .errors import PeerError
from .estimate import GAIN, GRANULARITY, LONGEST_OUTAGE, QUEUE, Rate, RoundTrip

T = TypeVar('T')

# RFC 9002, section 6.1.1: "The RECOMMENDED initial value for the packet reordering threshold
# (kPacketThreshold) is 3".
REORDER = 3
# Section 6.1.2: "The RECOMMENDED time threshold (kTimeThreshold), expressed as an RTT multiplier,
# is 9/8", of "max(smoothed_rtt, latest_rtt)", at least the granularity of timers.
LATE = 9 / 8
LEAST_LATE = 0.01
# Section 7.6.1: silence of three time-outs is "persistent congestion".
PERSISTENT = 3
LARGEST_OPENING = 4 << 20  # most bytes of the window before the rate is known
FRAME = 1300     # bytes of a packet that fills a frame on the air
# Bytes of an owner's data that fit, with their message's fields, a seal and the headers of DDS,
# into a datagram of 1400 bytes. DDS sends a larger one in two, with 170 bytes of headers each.
DATAGRAM = 1160
# Packets of this size, or larger if there are such, that may always be in flight: with one alone,
# an idle link waits for each acknowledgement. Where packets are lost without delay, as on Wi-Fi,
# four, so that `REORDER` can notice a loss.
LEAST_PACKETS, LOSSY_PACKETS = 2, 4


class _Sent(NamedTuple):
    """A transmission that is in flight."""

    item: Any
    nbytes: float
    at: float
    ahead: float            # bytes in flight before it
    delivered: float        # bytes acknowledged when it was sent, and
    arrived: float | None   # arrival of the newest of them, by the receiver's clock


class Link(Generic[T]):
    """The sending end of a link; ``T``: what its owner sends, and gets back when it arrives.

    The owner calls `send` for each transmission if `room` allows it, `on_ack` for each
    acknowledgement, `on_heard` for whatever else the peer says, and `poll` at `deadline`.

    ``scale``: each byte of the owner counts as so many on the link; `rate` is in the owner's bytes.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.trip, self.speed = RoundTrip(), Rate()
        self.delivered = 0.0     # bytes that have arrived
        self.in_flight = 0.0     # bytes that were sent, and have neither arrived nor been lost
        self.sent = 0            # number of transmissions, and number of the next one
        self.again = 0           # transmissions after a time-out
        self.timeouts = 0        # consecutive time-outs
        self._flight: OrderedDict[int, _Sent] = OrderedDict()
        self._late: OrderedDict[int, _Sent] = OrderedDict()  # lost, but may have been late only
        self._ping = -1          # number of the last `ping`
        self._newest = -1        # newest packet that is acknowledged
        self._newest_arrived: float | None = None
        self._opening = 0.0      # bytes of the window while the rate is not known
        self._packet = float(FRAME)  # bytes of the largest recent packet, at least `FRAME`
        self._lossy = False      # whether the last loss came without delay
        self._timer = math.inf   # time at which silence counts as a time-out
        self._wait = 0.0         # the present `timeout`, and `window` but for its least value
        self._limit = 0.0
        self._decide()
        self._probe = False      # whether a time-out allows one packet beyond the window

    def expect(self, rate: float, base: float) -> None:
        """Begin with a rate (bytes/s) and a round trip of the empty link (s) that are known."""
        self.speed.value, self.speed.known = rate, True
        self.trip.base, self.trip.searching = base, False
        self._decide()

    # -- what the owner may know -----------------------------------------------------------------

    @property
    def rate(self) -> float:
        """Bytes/s that the link delivers."""
        return self.speed.value / self.scale

    @property
    def known(self) -> bool:
        """Whether the rate has been measured."""
        return self.speed.known

    @property
    def round_trip(self) -> float:
        """Smoothed round-trip time in seconds."""
        return self.trip.smoothed

    @property
    def timeout(self) -> float:
        """Seconds of silence after which the sender probes."""
        return self._wait

    @property
    def window(self) -> float:
        """Bytes that may be in flight, at least a few packets; 0: one packet at a time."""
        least = (LOSSY_PACKETS if self._lossy else LEAST_PACKETS) * self._packet
        return max(self._limit, least) if self._limit >= 0 else 0

    def room(self, nbytes: int) -> bool:
        """Return whether a packet of ``nbytes`` may be sent now."""
        size = nbytes * self.scale
        if size > self._packet:
            self._packet = size
        return self._probe or not self._flight or self.in_flight + size / 2 <= self.window

    @property
    def items(self) -> list[T]:
        """What is in flight, oldest transmission first."""
        return [sent.item for sent in self._flight.values()]

    @property
    def quiet(self) -> bool:
        """Whether nothing is in flight."""
        return not self._flight

    # -- events ----------------------------------------------------------------------------------

    def send(self, item: T, nbytes: int, now: float) -> int:
        """Note a transmission; return its packet number, as it stands on the wire."""
        number, self.sent = self.sent, self.sent + 1
        # a few large packets must not widen the window for the small ones after them
        size = nbytes * self.scale
        self._packet = max(size, FRAME, self._packet - self._packet / 16)
        self._flight[number] = _Sent(item, size, now, self.in_flight, self.delivered,
                                     self._newest_arrived)
        self.in_flight += size
        if self._probe:
            self._probe = False
            self.again += 1
        self._timer = now + self._wait
        return number % WIRE

    def ping(self, item: T, nbytes: int, now: float) -> int:
        """Note a transmission for which nothing waits, of an ``item`` that only pings have.

        Return its packet number; its acknowledgement is a sample unless another ping follows it.
        """
        self._ping = self.sent
        packet = self.send(item, nbytes, now)
        self.forget(lambda other: other is item)
        return packet

    def on_ack(self, ack: Ack, now: float) -> tuple[list[T], list[T]]:
        """Handle an acknowledgement; return the items that have arrived, and those that are lost.

        An item that was sent twice can be in both lists, or come again later; the owner ignores
        what it knows already.

        :raises PeerError: the packet was never sent, or its time is not finite.
        """
        packet = expanded(ack.packet, self.sent)
        if not 0 <= packet < self.sent or not math.isfinite(ack.arrived):
            raise PeerError(f'acknowledged packet must be below {self.sent} and have a finite time '
                            f'of arrival, got {packet} at {ack.arrived}')
        before = self.delivered
        arrived: list[T] = []
        # One that counts as lost is no sample (RFC 9002, appendix A.7): it may come after an outage
        # of minutes, and the time-out would be as long.
        expected = packet in self._flight or packet == self._ping
        sent = self._arrive(packet, arrived)
        mask = ack.mask & ((1 << MASK_BITS) - 1)
        if mask:
            for known in (self._flight, self._late):
                older = []
                for number in known:
                    if number >= packet:
                        break
                    if packet - number <= MASK_BITS and mask >> packet - 1 - number & 1:
                        older.append(number)
                for number in older:
                    self._arrive(number, arrived)
        if sent is not None and expected:
            self._measure(packet, sent, self.delivered - before, ack.arrived, now)
        if arrived:
            self.timeouts, self._probe = 0, False
            self._opening = min(self._opening + self.delivered - before, LARGEST_OPENING)
        if packet > self._newest:
            self._newest, self._newest_arrived = packet, ack.arrived
        self._decide()
        lost = self._declare_lost(now)
        self._timer = now + self._wait if self._flight else math.inf
        return arrived, lost

    def on_heard(self, now: float) -> None:
        """Handle any other message of the peer: it may let a probe be sent before a long time-out.

        The link may be back, and the next probe may be `LONGEST_OUTAGE` away. So the sender probes
        if the time of two round trips is over. Time-outs still count, because the message does not
        prove that packets arrive in this direction.
        """
        if self._flight:
            latest = next(reversed(self._flight.values())).at
            pause = min(self.trip.timeout,
                        max(2 * max(self.trip.smoothed, self.trip.latest), GRANULARITY))
            self._timer = min(self._timer, max(now, latest + pause))

    def poll(self, now: float, wanted: Callable[[T], bool]) -> list[T]:
        """Return the items to send again; call this at `deadline`.

        These are items that are lost. After a time-out, it is the oldest ``wanted`` item in flight,
        which is not lost: `room` then allows one packet beyond the window, as a probe. If none is
        wanted, what is in flight counts no longer. An item that has arrived in another packet must
        not be wanted: its owner would not send it, and so no probe.
        """
        again = self._declare_lost(now)
        if now >= self._timer and self._flight:
            self.timeouts += 1
            forget = self.timeouts >= PERSISTENT
            self.speed.halve(forget)
            self._opening = 0
            if forget:
                self.trip.forget_base()
            probe = [item for item in self.items if wanted(item)][:1]
            again += probe
            self._decide()
            self._probe, self._timer = True, now + self._wait
            if not probe:
                self.forget()
        return again

    @property
    def deadline(self) -> float:
        """Time at which `poll` must be called if nothing happens before; infinity: never."""
        if not self._flight:
            return math.inf
        return min(self._timer, self._late_at())

    def forget(self, gone: Callable[[T], bool] = lambda item: True) -> None:
        """Count packets in flight no longer whose items are ``gone``.

        The owner knows from elsewhere that they have arrived or are lost, or the peer is new.
        """
        for number in [n for n, sent in self._flight.items() if gone(sent.item)]:
            self._late[number] = sent = self._flight.pop(number)
            self.in_flight -= sent.nbytes
        self._trim_late()
        if not self._flight:
            self.in_flight, self._probe, self._timer = 0.0, False, math.inf

    # -- internals -------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Compute the time-out and the window from what is known now."""
        wait = self.trip.timeout
        if self.timeouts:
            wait = min(wait * 2 ** min(self.timeouts, 30), max(LONGEST_OUTAGE, wait))
        self._wait = wait
        if not self.speed.known:
            self._limit = self._opening
        elif self.trip.searching:
            self._limit = -1
        else:
            self._limit = GAIN * self.speed.value * (self.trip.base + QUEUE)

    def _arrive(self, packet: int, arrived: list[T]) -> _Sent | None:
        sent = self._flight.pop(packet, None)
        if sent is not None:
            self.in_flight -= sent.nbytes
        else:
            sent = self._late.pop(packet, None)
        if sent is not None:
            self.delivered += sent.nbytes
            arrived.append(sent.item)
        return sent

    def _measure(self, packet: int, sent: _Sent, nbytes: float, arrived: float, now: float) -> None:
        trip = max(now - sent.at, 1e-6)
        few = sent.ahead <= LOSSY_PACKETS * sent.nbytes
        if self.trip.sample(trip, not sent.ahead, few, now):
            self.speed.forget_delay()
        # What has been delivered since this packet was sent took at most this long by both clocks:
        # a lower limit of the rate. Without it, a window too small to keep the link busy would not
        # grow, because a train needs a busy link. A pause of the sender before it does not count.
        took = trip
        if sent.ahead and sent.arrived is not None:
            took = max(trip, arrived - sent.arrived)
        self.speed.at_least((self.delivered - sent.delivered) / took)
        self.speed.sample(packet, nbytes, sent.at, arrived)

    def _declare_lost(self, now: float) -> list[T]:
        """Count packets as lost that were sent well before one that has arrived."""
        lost: list[T] = []
        while self._flight:
            number, sent = next(iter(self._flight.items()))
            if number > self._newest or (
                    number > self._newest - REORDER and now < sent.at + self._late_after):
                break
            self._late[number] = self._flight.pop(number)
            self.in_flight -= sent.nbytes
            self._lossy = self.trip.queueing < max(QUEUE, sent.nbytes / self.speed.value)
            lost.append(sent.item)
        if lost:
            self._trim_late()
        return lost

    @property
    def _late_after(self) -> float:
        return max(LATE * max(self.trip.smoothed, self.trip.latest), LEAST_LATE)

    def _late_at(self) -> float:
        """Return the time at which the oldest packet in flight counts as lost without more news."""
        number, sent = next(iter(self._flight.items()))
        return sent.at + self._late_after if number < self._newest else math.inf

    def _trim_late(self) -> None:
        while len(self._late) > MASK_BITS:
            self._late.popitem(last=False)
