"""One-shot deadlines for a single-threaded executor.

ROS timers are periodic; the machines ask for moments that move with every event,
milliseconds apart.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from rclpy.node import Node


class Alarm:
    """Calls ``callback`` in the node's executor at the time last set (monotonic seconds)."""

    def __init__(self, node: Node, callback: Callable[[], None]) -> None:
        self._guard = node.create_guard_condition(callback)
        self._changed = threading.Condition()
        self._at = math.inf
        self._closed = False
        self._thread = threading.Thread(target=self._run, name='alarm', daemon=True)
        self._thread.start()

    def set(self, at: float) -> None:
        """Ring at ``at`` instead of any former time; infinity: not at all."""
        with self._changed:
            if at < self._at:
                self._at = at
                self._changed.notify()
            else:
                self._at = at  # the thread wakes at the former time and looks again

    def close(self) -> None:
        """Stop; the callback is not called any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (wait := self._at - time.monotonic()) > 0:
                    self._changed.wait(None if math.isinf(wait) else wait)
                if self._closed:
                    return
                self._at = math.inf
            self._guard.trigger()
