"""Threads take turns by inferences, not by calls: what is interleaved never repeats.

A thread that has begun keeps its turn until it uploads the next input, or makes no call for `GAP`.
"""

from __future__ import annotations

import threading
import time
from typing import Any

GAP = 0.003      # seconds without a call after which another thread may go on
LONGEST = 0.1    # seconds that a thread waits for others that read values and go on


class Turns:
    """Call all of it with the lock held, which is given up while a thread waits."""

    def __init__(self, lock: Any) -> None:
        self._changed = threading.Condition(lock)
        self.contended = False      # several threads use the device
        self._holder = 0
        self._open = False          # it has read no value since its last call
        self._last = 0.0            # when it made a call
        self._waiting = 0

    def enter(self, begins: bool) -> bool:
        """A thread makes a call, which `begins` an inference; whether it had to wait before."""
        me = threading.get_ident()
        waited = False
        if me != self._holder and self._holder:
            self.contended = True
            waited = self._wait(me)
        elif begins and self._waiting and not self._open:
            self._holder = 0
            self._changed.notify_all()
            end = time.monotonic() + GAP
            while self._waiting and not self._holder and time.monotonic() < end:
                self._changed.wait(GAP)
            waited = True
            if self._holder:
                self._wait(me)
        self._holder = me
        self.goes_on()
        return waited

    def goes_on(self) -> None:
        """The thread whose turn it is has made a call."""
        self._open = True
        self._last = time.monotonic()

    def taken(self) -> None:
        """A thread has made the call that was expected of another one."""
        self._holder = threading.get_ident()
        self.goes_on()

    def has_value(self) -> None:
        """The thread has a value of the device: its inference may be over."""
        self._open = False
        self._last = time.monotonic()

    def _wait(self, me: int) -> bool:
        start = time.monotonic()
        waited = False
        self._waiting += 1
        try:
            while self._holder and self._holder != me:
                now = time.monotonic()
                left = self._last + GAP - now
                if left <= 0 or not self._open and now - start > LONGEST:
                    break
                waited = True
                self._changed.wait(min(left, LONGEST))
        finally:
            self._waiting -= 1
        return waited
