"""Clocks."""

from __future__ import annotations

import threading
import time as _time
from collections.abc import Callable
from typing import Any

from rclpy.clock_type import ClockType
from rclpy.constants import S_TO_NS
from rclpy.duration import Duration
from rclpy.time import Time

__all__ = ["Clock", "ClockType", "ROSClock"]


class Clock:
    """Shows one kind of time. `Clock(clock_type=ROS_TIME)` makes a ROSClock, as in rclpy."""

    _clock_type: ClockType

    def __new__(cls, *, clock_type: ClockType = ClockType.SYSTEM_TIME) -> Clock:
        """Make a clock of the given kind."""
        if not isinstance(clock_type, ClockType):
            raise TypeError("Clock type must be a ClockType enum")
        made = super().__new__(ROSClock if clock_type is ClockType.ROS_TIME else cls)
        made._clock_type = clock_type
        return made

    def __init__(self, *, clock_type: ClockType = ClockType.SYSTEM_TIME) -> None:
        pass

    @property
    def clock_type(self) -> ClockType:
        """The kind of time."""
        return self._clock_type

    @property
    def _simulated(self) -> bool:
        return False

    def _now_ns(self) -> int:
        if self._clock_type is ClockType.STEADY_TIME:
            return _time.monotonic_ns()
        return _time.time_ns()

    def now(self) -> Time:
        """Return the present time."""
        return Time(nanoseconds=self._now_ns(), clock_type=self._clock_type)

    def sleep_until(self, until: Time, context: Any = None) -> bool:
        """Sleep until a time of this clock; False when the context was shut down before."""
        if until.clock_type != self._clock_type:
            raise ValueError("until's clock type does not match this clock's type")
        from rclpy.utilities import get_default_context

        context = get_default_context() if context is None else context
        wake = threading.Event()
        context.on_shutdown(wake.set)
        remove = self._on_change(wake.set)
        try:
            while context.ok():
                left = until.nanoseconds - self._now_ns()
                if left <= 0:
                    return True
                wake.wait(None if self._simulated else left / S_TO_NS)
                wake.clear()
            return False
        finally:
            remove()

    def sleep_for(self, rel_time: Duration, context: Any = None) -> bool:
        """Sleep for a while; False when the context was shut down before."""
        return self.sleep_until(self.now() + rel_time, context)

    def _on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when the clock is set; returns a function that ends this."""
        return lambda: None

    def __repr__(self) -> str:
        return f"Clock(clock_type={self._clock_type.name})"


class ROSClock(Clock):
    """Shows ROS time: system time, or what /clock says when a node runs with use_sim_time."""

    def __new__(cls, *, clock_type: ClockType = ClockType.ROS_TIME) -> ROSClock:
        """Make a clock that shows ROS time."""
        made = object.__new__(cls)
        made._clock_type = ClockType.ROS_TIME
        made._override = None
        made._listeners = []
        return made

    _override: int | None
    _listeners: list[Callable[[], None]]

    @property
    def ros_time_is_active(self) -> bool:
        """Whether /clock drives this clock."""
        return self._override is not None

    @property
    def _simulated(self) -> bool:
        return self._override is not None

    def _now_ns(self) -> int:
        override = self._override
        return _time.time_ns() if override is None else override

    def _set_override(self, nanoseconds: int | None) -> None:
        self._override = nanoseconds
        for listener in list(self._listeners):
            listener()

    def set_ros_time_override(self, time: Time) -> None:
        """Set the time that this clock shows."""
        self._set_override(time.nanoseconds)

    def _on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)
