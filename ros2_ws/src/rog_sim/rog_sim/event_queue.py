"""The events of a fleet in virtual time, and the alarms among them."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Hashable

# time in seconds, number of the event, function to call
_Event = tuple[float, int, Callable[[], None]]


class EventQueue:
    """Events in order of time; events of equal time come in the order in which they were added.

    The caller keeps the present time ``now``, in virtual seconds, and passes it to `add` and
    `set_alarm`.
    """

    def __init__(self) -> None:
        self._delayed: list[_Event] = []     # heap of the events that were added with a delay
        self._soon: deque[_Event] = deque()  # events that were added without a delay
        self._count = itertools.count()
        self._alarms: dict[Hashable, float] = {}  # maps an owner to the deadline of its alarm

    def add(self, now: float, delay: float, call: Callable[[], None]) -> None:
        """Call ``call`` after ``delay`` seconds."""
        event = now + delay, next(self._count), call
        if delay:
            heapq.heappush(self._delayed, event)
        else:
            self._soon.append(event)

    def set_alarm(self, now: float, owner: Hashable, deadline: float, ring: Callable[[], None]
                  ) -> None:
        """Call the function ``ring`` at ``deadline``, in virtual seconds, or earlier.

        Of all alarms of ``owner``, only the alarm with the earliest deadline counts; the queue
        drops the others. So ``ring`` may be called earlier than ``deadline``, or more than once,
        and the owner must set its next alarm after each call.
        """
        if deadline < self._alarms.get(owner, math.inf):
            self._alarms[owner] = deadline
            self.add(now, max(deadline - now, 0.0), lambda: self._ring(owner, deadline, ring))

    def _ring(self, owner: Hashable, deadline: float, ring: Callable[[], None]) -> None:
        # This alarm no longer counts if an alarm with an earlier deadline has replaced it, even
        # if that alarm has rung already.
        if self._alarms.get(owner) == deadline:
            del self._alarms[owner]
            ring()

    def next(self) -> _Event:
        """Return the next event; there must be an event with a delay."""
        soon, delayed = self._soon, self._delayed
        return soon[0] if soon and soon[0] < delayed[0] else delayed[0]

    def pop(self) -> _Event:
        """Remove and return the next event; there must be an event with a delay."""
        soon, delayed = self._soon, self._delayed
        return soon.popleft() if soon and soon[0] < delayed[0] else heapq.heappop(delayed)
