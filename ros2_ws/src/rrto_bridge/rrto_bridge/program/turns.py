"""Lets one thread at a time use the device: a thread keeps its turn for a whole inference.

If the turn changed after each call, the calls of the threads would alternate and form no sequence
to replay.
A thread keeps its turn until it uploads the next input, or makes no call for `GAP` seconds. The
*holder* is the thread whose turn it is.
"""

from __future__ import annotations

import threading
import time
from typing import Any

# If the holder of the turn makes no call for this time in seconds, another thread gets the turn.
GAP = 0.003
# If a thread has waited for this time in seconds, it gets its turn as soon as the holder of the
# turn has read a value.
LONGEST = 0.1


class Turns:
    """Lets the threads of a program use the device in turns.

    Call each method only while you hold `lock`. A method that waits releases the lock during the
    wait.
    """

    def __init__(self, lock: Any) -> None:
        self._changed = threading.Condition(lock)
        self.contended = False      # whether several threads use the device
        self._holder = 0            # identifier of the holder; 0 if there is no holder
        # Whether the holder of the turn has made a call since it last read a value.
        self._open = False
        self._last = 0.0            # time of the holder's last call
        self._waiting = 0           # number of threads that wait for their turn

    def enter(self, begins: bool) -> bool:
        """Wait for this thread's turn and record a call; return whether the thread waited.

        `begins`: whether the call begins an inference.
        """
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
        self.made_call()
        return waited

    def made_call(self) -> None:
        """Record that the holder of the turn has made a call."""
        self._open = True
        self._last = time.monotonic()

    def claim(self) -> None:
        """Make the current thread the holder of the turn, and record that it has made a call."""
        self._holder = threading.get_ident()
        self.made_call()

    def has_value(self) -> None:
        """Record that the holder of the turn has read a value.

        This value possibly ends the holder's inference.
        """
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
