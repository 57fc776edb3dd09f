"""A timer that calls a function once, at a deadline that can be changed at any time.

ROS timers are periodic. The state machines need deadlines that change with every event, and
events can come every few milliseconds.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from rclpy.node import Node


class Alarm:
    """Calls ``callback`` once at the time that was last set (monotonic seconds).

    With a ``node`` the callback runs in the node's executor, otherwise in the alarm's own
    thread. In the alarm's own thread the callback starts earlier, because the alarm need not
    wake another thread. Waking a thread takes half a millisecond or more while the program
    computes in Python.
    """

    def __init__(self, callback: Callable[[], None], node: Node | None = None) -> None:
        self._ring = callback if node is None else node.create_guard_condition(callback).trigger
        self._changed = threading.Condition()
        self._at = math.inf
        self._wakes = math.inf    # time at which the thread wakes to look at `_at`
        self._closed = False
        self._thread = threading.Thread(target=self._run, name='alarm', daemon=True)
        self._thread.start()

    def set(self, at: float) -> None:
        """Set the time of the next call and discard the previous time; infinity: no call."""
        with self._changed:
            self._at = at
            # Waking the thread takes time from the thread that calls this, at nearly every event.
            if at < self._wakes:
                self._wakes = at
                self._changed.notify()

    def close(self) -> None:
        """Stop the alarm, and wait until its thread has ended.

        The caller must hold no lock that the callback needs. Otherwise the caller and the alarm's
        thread, which may be running the callback, would wait for each other forever.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (wait := self._at - time.monotonic()) > 0:
                    self._wakes = self._at
                    self._changed.wait(None if math.isinf(wait) else wait)
                if self._closed:
                    return
                self._at = math.inf
            self._ring()
