"""A link in virtual time: two directions, each one FIFO queue, with loss, outages and delays."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from fleet_link.arrivals import Ack, Arrivals
from fleet_link.link import Link

HEADERS = 96  # bytes on the air around a packet's data
ACK = 100


@dataclass
class Direction:
    """One direction; ``rate`` (bit/s at a time; 0: an outage) and ``delay`` (s) are functions."""

    rate: Callable[[float], float]
    delay: Callable[[float], float] = lambda now: 0.02
    loss: float = 0.0
    repeated: float = 0.0   # probability that a packet arrives twice
    overtaken: float = 0.0  # probability that a packet is late by up to 30 ms
    limit: float = 20.0     # seconds of queue; what would wait longer is dropped
    free: float = 0.0       # time at which the queue is empty
    waits: list[float] = field(default_factory=list)

    def arrivals(self, nbytes: int, now: float, rand: random.Random) -> list[float]:
        """Send a packet; return the times of its arrivals, none if it is lost."""
        start = max(now, self.free)
        if start - now > self.limit:
            return []
        left, at = 8.0 * nbytes, start
        while left > 0:  # the rate changes at whole tenths of a second
            step = (int(at * 10 + 1e-6) + 1) / 10 - at
            rate = self.rate(at)
            if left <= rate * step:
                at += left / rate
                break
            left -= rate * step
            at += step
            if at - now > self.limit:  # lost in an outage, in the air and not in a queue
                return []
        self.free = at
        self.waits.append(at - now)
        if rand.random() < self.loss:
            return []
        at += self.delay(at)
        if rand.random() < self.overtaken:
            at += 0.03 * rand.random()
        return [at, at + 0.001] if rand.random() < self.repeated else [at]


@dataclass
class World:
    """A sender with ``data`` items of ``size`` bytes, and a receiver; `run` moves time."""

    up: Direction
    down: Direction
    size: int = 1300
    data: float = float('inf')
    heartbeat: float = 1.0          # seconds between two other messages of the receiver
    seed: int = 1
    skew: float = 1234.5            # receiver's clock minus sender's
    first: int = 0                  # number of the first packet
    now: float = 0.0

    def __post_init__(self) -> None:
        self.rand = random.Random(self.seed)
        self.link: Link[int] = Link()
        self.link.sent = self.first
        self.inbox = Arrivals()
        self.got: dict[int, float] = {}     # item -> time of its first arrival
        self.known: set[int] = set()        # items that the sender knows to have arrived
        self.twice = 0                      # packets whose item had arrived before
        self._events: list[tuple[float, int, str, object]] = []
        self._count = itertools.count()
        self._fresh, self._again = 0, []
        self._polled = float('inf')
        self._put(0.0, 'heartbeat', None)
        self._send()

    def _put(self, at: float, kind: str, value: object) -> None:
        heapq.heappush(self._events, (at, next(self._count), kind, value))

    def _send(self) -> None:
        while True:
            while self._again and self._again[-1] in self.known:
                self._again.pop()
            if not self._again and self._fresh >= self.data or not self.link.room(self.size):
                break
            if self._again:
                item = self._again.pop()
            else:
                item, self._fresh = self._fresh, self._fresh + 1
            packet = self.link.send(item, self.size, self.now)
            for at in self.up.arrivals(self.size + HEADERS, self.now, self.rand):
                self._put(at, 'packet', (packet, item))
        if self.link.deadline < float('inf') and self.link.deadline != self._polled:
            self._polled = self.link.deadline
            self._put(max(self._polled, self.now), 'poll', None)

    def run(self, until: float) -> None:
        """Move time to ``until``, or to the arrival of all data."""
        while self._events and self._events[0][0] <= until and len(self.known) < self.data:
            self.now, _, kind, value = heapq.heappop(self._events)
            if kind == 'packet':
                packet, item = value
                self.twice += item in self.got
                self.got.setdefault(item, self.now)
                ack = Ack(packet, self.inbox.note(packet), self.now + self.skew)
                for at in self.down.arrivals(ACK, self.now, self.rand):
                    self._put(at, 'ack', ack)
            elif kind == 'heartbeat':
                self._put(self.now + self.heartbeat, 'heartbeat', None)
                for at in self.down.arrivals(ACK, self.now, self.rand):
                    self._put(at, 'heard', None)
            elif kind == 'ack':
                assert isinstance(value, Ack)
                arrived, lost = self.link.on_ack(value, self.now)
                self.known.update(arrived)
                self._again += lost
            elif kind == 'heard':
                self.link.on_heard(self.now)
            elif self.now >= self.link.deadline:
                self._again += self.link.poll(self.now, lambda item: item not in self.known)
            self._send()
        self.now = min(until, self.now) if len(self.known) >= self.data else until

    def share(self, mbit: float, seconds: float) -> float:
        """Return the share of the link's bytes that carried an item for the first time."""
        return len(self.got) * (self.size + HEADERS) * 8 / (mbit * 1e6 * seconds)


def fixed(mbit: float) -> Callable[[float], float]:
    """Return a constant rate."""
    return lambda now: mbit * 1e6
