"""Clocks, and callbacks for those who must know that ROS time jumps."""

from __future__ import annotations

import threading
import time as _time
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from rclpy.clock_type import ClockType
from rclpy.constants import S_TO_NS
from rclpy.duration import Duration
from rclpy.exceptions import NotInitializedException
from rclpy.time import Time

__all__ = [
    "Clock",
    "ClockChange",
    "ClockType",
    "JumpHandle",
    "JumpThreshold",
    "ROSClock",
    "TimeJump",
]


class ClockChange(IntEnum):
    """Whether a jump is one to or from simulated time."""

    ROS_TIME_NO_CHANGE = 1
    ROS_TIME_ACTIVATED = 2
    ROS_TIME_DEACTIVATED = 3
    SYSTEM_TIME_NO_CHANGE = 4


class JumpThreshold:
    """Which jumps are worth a callback.

    :param min_forward: a jump forward of at least this (positive) duration, None: none
    :param min_backward: a jump back of at least this (negative) duration, None: none
    :param on_clock_change: simulated time begins or ends
    """

    def __init__(
        self,
        *,
        min_forward: Duration | None,
        min_backward: Duration | None,
        on_clock_change: bool = True,
    ) -> None:
        if min_forward is not None and min_forward.nanoseconds <= 0:
            raise ValueError("min_forward must be a positive non-zero duration")
        if min_backward is not None and min_backward.nanoseconds >= 0:
            raise ValueError("min_backward must be a negative non-zero duration")
        if min_forward is None and min_backward is None and not on_clock_change:
            raise ValueError("At least one jump threshold must be enabled")
        self.min_forward = min_forward
        self.min_backward = min_backward
        self.on_clock_change = on_clock_change

    def _exceeded(self, jump: TimeJump) -> bool:
        if jump.clock_change in (ClockChange.ROS_TIME_ACTIVATED, ClockChange.ROS_TIME_DEACTIVATED):
            return self.on_clock_change
        if self.min_forward is not None and jump.delta >= self.min_forward:
            return True
        return self.min_backward is not None and jump.delta <= self.min_backward


class TimeJump:
    """What has happened to a clock: `delta` is new time minus old time."""

    def __init__(self, clock_change: ClockChange, delta: Duration) -> None:
        if not isinstance(clock_change, ClockChange):
            raise TypeError("clock_change must be an instance of rclpy.clock.ClockChange")
        self._clock_change = clock_change
        self._delta = delta

    @property
    def clock_change(self) -> ClockChange:
        """Whether simulated time has begun or ended."""
        return self._clock_change

    @property
    def delta(self) -> Duration:
        """New time minus old time; zero when simulated time begins or ends."""
        return self._delta


class JumpHandle:
    """A registered jump callback; `unregister`, or the end of a `with` block, ends it."""

    def __init__(
        self,
        *,
        clock: Clock,
        threshold: JumpThreshold,
        pre_callback: Callable[[], Any] | None,
        post_callback: Callable[[TimeJump], Any] | None,
    ) -> None:
        if pre_callback is None and post_callback is None:
            raise ValueError("One of pre_callback or post_callback must be callable")
        for name, callback in (("pre_callback", pre_callback), ("post_callback", post_callback)):
            if callback is not None and not callable(callback):
                raise ValueError(f"{name} must be callable if given")
        self._clock: Clock | None = clock
        self._threshold = threshold
        self._pre, self._post = pre_callback, post_callback
        clock._jump_handles.append(self)

    def unregister(self) -> None:
        """Call back no more."""
        if self._clock is not None:
            self._clock._jump_handles.remove(self)
            self._clock = None

    def __enter__(self) -> JumpHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.unregister()


_ANY_JUMP = JumpThreshold(
    min_forward=Duration(nanoseconds=1), min_backward=Duration(nanoseconds=-1)
)


class Clock:
    """Shows one kind of time. `Clock(clock_type=ROS_TIME)` makes a ROSClock, as in rclpy."""

    _clock_type: ClockType
    _jump_handles: list[JumpHandle]

    def __new__(cls, *, clock_type: ClockType = ClockType.SYSTEM_TIME) -> Clock:
        """Make a clock of the given kind."""
        if not isinstance(clock_type, ClockType):
            raise TypeError("Clock type must be a ClockType enum")
        made = super().__new__(ROSClock if clock_type is ClockType.ROS_TIME else cls)
        made._clock_type = clock_type
        made._jump_handles = []
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

    def create_jump_callback(
        self,
        threshold: JumpThreshold,
        *,
        pre_callback: Callable[[], Any] | None = None,
        post_callback: Callable[[TimeJump], Any] | None = None,
    ) -> JumpHandle:
        """Call back before and after the clock jumps: only a ROSClock ever does.

        The callbacks run in the thread that sets the clock, and must not block.

        :param threshold: which jumps
        :param pre_callback: called without arguments, the clock still shows the old time
        :param post_callback: called with a TimeJump, the clock shows the new time
        """
        return JumpHandle(
            clock=self,
            threshold=threshold,
            pre_callback=pre_callback,
            post_callback=post_callback,
        )

    def _on_any_jump(self, callback: Callable[[TimeJump], Any]) -> JumpHandle:
        """Call back when the clock is set to anything else."""
        return self.create_jump_callback(_ANY_JUMP, post_callback=callback)

    def sleep_until(self, until: Time, context: Any = None) -> bool:
        """Sleep until a time of this clock.

        False when the context is shut down before, or when simulated time begins or ends.

        :raises NotInitializedException: the context (by default the default one) is not in use
        """
        from rclpy.utilities import get_default_context

        context = get_default_context() if context is None else context
        if not context.ok():
            raise NotInitializedException()
        if until.clock_type != self._clock_type:
            raise ValueError("until's clock type does not match this clock's type")
        wake = threading.Event()
        changes: list[TimeJump] = []

        def jumped(jump: TimeJump) -> None:
            if jump.clock_change is not ClockChange.ROS_TIME_NO_CHANGE:
                changes.append(jump)
            wake.set()

        context.on_shutdown(wake.set)
        with self._on_any_jump(jumped):
            while context.ok() and not changes:
                left = until.nanoseconds - self._now_ns()
                if left <= 0:
                    return True
                wake.wait(None if self._simulated else left / S_TO_NS)
                wake.clear()
        return False

    def sleep_for(self, rel_time: Duration, context: Any = None) -> bool:
        """Sleep for a while; as sleep_until."""
        return self.sleep_until(self.now() + rel_time, context)

    def __repr__(self) -> str:
        return f"Clock(clock_type={self._clock_type.name})"


class ROSClock(Clock):
    """Shows ROS time: system time, or what /clock says when a node runs with use_sim_time."""

    _active = False
    _override = 0

    def __new__(cls, *, clock_type: ClockType = ClockType.ROS_TIME) -> ROSClock:
        """Make a clock that shows ROS time."""
        made = object.__new__(cls)
        made._clock_type = ClockType.ROS_TIME
        made._jump_handles = []
        return made

    @property
    def ros_time_is_active(self) -> bool:
        """Whether /clock drives this clock."""
        return self._active

    @property
    def _simulated(self) -> bool:
        return self._active

    def _now_ns(self) -> int:
        return self._override if self._active else _time.time_ns()

    def _set_ros_time_is_active(self, enabled: bool) -> None:
        """Show simulated time from now on, or system time; for the node's TimeSource."""
        if enabled == self._active:
            return
        names = ("ROS_TIME_DEACTIVATED", "ROS_TIME_ACTIVATED")
        self._jump(TimeJump(ClockChange[names[enabled]], Duration()), enabled, self._override)

    def set_ros_time_override(self, time: Time) -> None:
        """Set the time that this clock shows while simulated time is active."""
        if not isinstance(time, Time):
            raise TypeError(
                f"Time must be specified as rclpy.time.Time. Received type: {type(time)}"
            )
        if not self._active:
            self._override = time.nanoseconds
            return
        delta = Duration(nanoseconds=time.nanoseconds - self._override)
        jump = TimeJump(ClockChange.ROS_TIME_NO_CHANGE, delta)
        self._jump(jump, True, time.nanoseconds)

    def _jump(self, jump: TimeJump, active: bool, override: int) -> None:
        handles = [h for h in self._jump_handles if h._threshold._exceeded(jump)]
        for handle in handles:
            if handle._pre is not None:
                handle._pre()
        self._active, self._override = active, override
        for handle in handles:
            if handle._post is not None:
                handle._post(jump)
