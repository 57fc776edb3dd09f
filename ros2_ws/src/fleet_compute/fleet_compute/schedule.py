"""Whose request a device computes next, and which requests it computes together. Sans-I/O.

One device computes for several robots. A *part* is the steps of a program that can be computed
without waiting for a message. Requests are computed in the order of their arrival, which gives all
robots equal shares. But one that would be late in this order, and in time if it were first, is
first. Requests whose next part is the same are computed as one batch, if batches of this size have
taken less time per request than single requests. No request waits for a batch: it consists of what
waits when the device is free.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet

MOST = 16         # most requests in a batch
# Share of the time per request that a batch must save. Robots whose requests were one batch get
# their results, and ask again, at the same time: then nobody's transfer hides behind computing.
SAVING = 0.25
TRIES = 2         # measurements of a batch size that its median needs
LATEST = 7        # the median is taken over so many of the latest measurements
AGAIN = 64        # a size that saved nothing is tried again after so many opportunities
# seconds within which a request wants its result if its robot does not say so
USUAL = 1.0

Request = TypeVar('Request')


@dataclass(frozen=True, slots=True)
class Ready(Generic[Request]):
    """A request whose next part can be computed.

    `program`: what computes it; the same object for all requests of a batch. `part`: the steps of
    the program that can be computed. `arrived`, `deadline`: times in s.
    """

    request: Request
    program: Hashable
    part: Hashable
    arrived: float
    deadline: float


@dataclass(slots=True)
class _Part:
    """Measured seconds per request, for each class of sizes: 1, 2, 3 to 4, 5 to 8, 9 to 16."""

    seconds: defaultdict[int, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=LATEST)))
    skipped: int = 0        # opportunities for a batch since the last one


class Schedule(Generic[Request]):
    """Chooses by deadlines, and by the measured times of parts and batches."""

    def __init__(self) -> None:
        self._parts: WeakKeyDictionary[Hashable, defaultdict[Hashable, _Part]] = \
            WeakKeyDictionary()
        self._whole: WeakKeyDictionary[Hashable, deque[float]] = WeakKeyDictionary()
        self._never: WeakSet[Hashable] = WeakSet()      # programs that cannot be batched

    def choose(self, ready: Sequence[Ready[Request]], now: float) -> list[Ready[Request]]:
        """Return the requests whose next parts are computed now, as one batch.

        The result is empty only if `ready` is. A request that cannot be in time comes after all
        others: its robot will probably have given up.
        """
        order = sorted(ready, key=lambda r: (now + self._single_time(r) > r.deadline, r.arrived))
        if not order:
            return []
        first = min(self._at_risk(order, now), key=lambda r: r.deadline, default=order[0])
        same = [first, *(r for r in order if r is not first
                         and (r.program, r.part) == (first.program, first.part))][:MOST]
        return same[:self._size(first, len(same), now)]

    def _at_risk(self, order: Sequence[Ready[Request]], now: float) -> Iterator[Ready[Request]]:
        """Yield the requests that are in time if they are first, and late in this order.

        A robot that always waits less than its share does not get more by that: its share of the
        device is the time in which each of the waiting requests is computed once.
        """
        times = [self._single_time(r) for r in order]
        end, share = now, sum(times)
        for ready, seconds in zip(order, times, strict=True):
            end += seconds
            if now + seconds <= ready.deadline < end \
                    and ready.deadline - ready.arrived >= share:
                yield ready

    def _single_time(self, ready: Ready[Request]) -> float:
        """Return the seconds for the part alone; 0 if it has not been measured."""
        seconds = self._seconds(self._part(ready.program, ready.part), 1)
        return 0.0 if math.isnan(seconds) else seconds

    def _size(self, first: Ready[Request], most: int, now: float) -> int:
        """Return how many of `most` equal requests to compute together."""
        part = self._part(first.program, first.part)
        single = self._seconds(part, 1)
        if most == 1 or first.program in self._never or math.isnan(single):
            return 1
        sizes = sorted({most, *(2 ** k for k in range(1, most.bit_length()))}, reverse=True)
        for size in sizes:
            each = self._seconds(part, size)
            if math.isnan(each):
                part.skipped = 0
                return size     # not measured yet
            lateness = now + size * each > first.deadline >= now + single
            if each <= (1 - SAVING) * single and not lateness:
                return size
        part.skipped += 1
        if part.skipped < AGAIN:
            return 1
        part.skipped = 0
        part.seconds.pop(_size_class(most), None)   # so that the next opportunities measure it
        return most

    def note(self, program: Hashable, part: Hashable, requests: int, seconds: float) -> None:
        """Record that a part of `requests` requests together took `seconds`."""
        self._part(program, part).seconds[_size_class(requests)].append(seconds / requests)

    def note_whole(self, program: Hashable, seconds: float) -> None:
        """Record that all parts of a request took `seconds`, with its share of batches."""
        self._whole.setdefault(program, deque(maxlen=LATEST)).append(seconds)

    def never_together(self, program: Hashable) -> None:
        """Compute each request of this program alone: its operators cannot be batched."""
        self._never.add(program)

    def expected(self, program: Hashable) -> float:
        """Return the seconds that the device takes for one request of a program; 0 if unknown."""
        return median_low(self._whole.get(program) or (0.0,))

    def _part(self, program: Hashable, part: Hashable) -> _Part:
        return self._parts.setdefault(program, defaultdict(_Part))[part]

    @staticmethod
    def _seconds(part: _Part, size: int) -> float:
        """Return the median seconds per request in batches like `size`; NaN if not measured."""
        times = part.seconds.get(_size_class(size), ())
        return median_low(times) if len(times) >= (1 if size == 1 else TRIES) else math.nan


def _size_class(requests: int) -> int:
    return (requests - 1).bit_length()
