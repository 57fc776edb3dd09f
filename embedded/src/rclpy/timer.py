"""Timers and rates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rclpy._reader import Entity
from rclpy.clock import Clock
from rclpy.exceptions import InvalidHandle, ROSInterruptException


class Timer(Entity):
    """Calls back periodically. Made by Node.create_timer.

    It counts in steady time, so setting the system's clock does not disturb it; with use_sim_time
    it follows /clock. A timer that falls behind skips calls, it does not catch up.
    """

    def __init__(
        self,
        callback: Callable[[], Any] | None,
        callback_group: Any,
        timer_period_ns: int,
        clock: Clock,
        *,
        context: Any = None,
        autostart: bool = True,
    ) -> None:
        if timer_period_ns < 0:
            raise ValueError("timer period must not be negative")
        self.callback = callback
        self.callback_group = callback_group
        self._clock = clock
        self._period = int(timer_period_ns)
        self._node = lambda: None  # type: ignore[assignment]
        self._destroyed = False
        self._canceled = not autostart
        self._simulated = clock._simulated
        self._last = self._now()
        self._next = self._last + self._period

    def _now(self) -> int:
        return self._clock._now_ns() if self._simulated else time.monotonic_ns()

    def _sync_clock(self) -> None:
        """Start anew when the clock has changed to or from simulated time."""
        if self._clock._simulated != self._simulated:
            self._simulated = self._clock._simulated
            self._last = self._now()
            self._next = self._last + self._period

    @property
    def handle(self) -> Timer:
        """The timer itself: there is no other handle."""
        return self

    @property
    def clock(self) -> Clock:
        """The clock that it goes by."""
        return self._clock

    @property
    def timer_period_ns(self) -> int:
        """The period in nanoseconds; a change counts from the next call on."""
        return self._period

    @timer_period_ns.setter
    def timer_period_ns(self, value: int) -> None:
        self._period = int(value)

    def is_ready(self) -> bool:
        """Whether a call is due."""
        return not self._canceled and not self._destroyed and self._now() >= self._next

    def is_canceled(self) -> bool:
        """Whether it was cancelled."""
        return self._canceled

    def cancel(self) -> None:
        """Stop calling, until reset."""
        self._canceled = True
        self._changed()

    def reset(self) -> None:
        """Start (again): the next call is one period from now."""
        self._last = self._now()
        self._next = self._last + self._period
        self._canceled = False
        self._changed()

    def _changed(self) -> None:
        node = self._node()
        executor = None if node is None else node.executor
        if executor is not None:
            executor._timers_changed()

    def time_since_last_call(self) -> int:
        """Return nanoseconds since the last call (or the start)."""
        return self._now() - self._last

    def time_until_next_call(self) -> int | None:
        """Return nanoseconds to the next call, negative when it is due, None when cancelled."""
        return None if self._canceled else self._next - self._now()

    def _advance(self) -> None:
        """Note that the callback is called now."""
        now = self._now()
        self._last = now
        self._next += self._period
        if self._next < now:
            behind = now - self._next
            self._next += (behind // self._period + 1) * self._period if self._period else behind

    def _invoke(self, _: Any) -> Any:
        return None if self.callback is None else self.callback()

    def destroy(self) -> None:
        """Delete it; use Node.destroy_timer."""
        self._destroyed = True
        self._changed()


class Rate:
    """Sleeps at a fixed rate; an executor must be spinning in another thread."""

    def __init__(self, timer: Timer, *, context: Any) -> None:
        self._timer = timer
        self._condition = threading.Condition()
        self._ticks = 0
        self._is_shutdown = False
        self._is_destroyed = False
        timer.callback = self._tick
        context.on_shutdown(self._on_shutdown)

    def _tick(self) -> None:
        with self._condition:
            self._ticks += 1
            self._condition.notify_all()

    def _on_shutdown(self) -> None:
        self._is_shutdown = True
        self.destroy()

    def destroy(self) -> None:
        """Wake all sleepers; the rate cannot be used any more."""
        with self._condition:
            self._is_destroyed = True
            self._condition.notify_all()

    def sleep(self) -> None:
        """Block until the timer's next tick."""
        if self._is_shutdown:
            raise ROSInterruptException()
        if self._is_destroyed:
            raise RuntimeError("Rate cannot sleep because it has been destroyed")
        if self._timer._destroyed:
            raise InvalidHandle("Rate cannot sleep because the timer has been destroyed")
        with self._condition:
            before = self._ticks
            self._condition.wait_for(lambda: self._ticks != before or self._is_destroyed)
        if self._is_shutdown:
            raise ROSInterruptException()
