"""Points in time."""

from __future__ import annotations

from functools import total_ordering
from typing import Any

from rclpy._message import message_class
from rclpy.clock_type import ClockType
from rclpy.constants import S_TO_NS
from rclpy.duration import Duration

CONVERSION_CONSTANT = S_TO_NS


@total_ordering
class Time:
    """A point in time of one kind of clock; times of different kinds do not compare."""

    __slots__ = ("_clock_type", "_ns")

    def __init__(
        self,
        *,
        seconds: float = 0,
        nanoseconds: int = 0,
        clock_type: ClockType = ClockType.SYSTEM_TIME,
    ) -> None:
        if not isinstance(clock_type, ClockType):
            raise TypeError("Clock type must be a ClockType enum")
        if seconds < 0:
            raise ValueError("Seconds value must not be negative")
        if nanoseconds < 0:
            raise ValueError("Nanoseconds value must not be negative")
        total = int(seconds * S_TO_NS) + int(nanoseconds)
        if total >= 2**63:
            raise OverflowError("Total nanoseconds value is too large to store in C time point.")
        self._ns = total
        self._clock_type = clock_type

    @property
    def nanoseconds(self) -> int:
        """Nanoseconds since the clock's epoch."""
        return self._ns

    @property
    def clock_type(self) -> ClockType:
        """The kind of clock."""
        return self._clock_type

    def seconds_nanoseconds(self) -> tuple[int, int]:
        """Return whole seconds and the nanoseconds beyond them."""
        return divmod(self._ns, S_TO_NS)

    def to_msg(self) -> Any:
        """Return it as builtin_interfaces/Time."""
        sec, nanosec = self.seconds_nanoseconds()
        return message_class("builtin_interfaces/msg/Time")(sec=sec, nanosec=nanosec)

    @classmethod
    def from_msg(cls, msg: Any, clock_type: ClockType = ClockType.ROS_TIME) -> Time:
        """Make one from builtin_interfaces/Time."""
        if not isinstance(msg, message_class("builtin_interfaces/msg/Time")):
            raise TypeError("Must pass a builtin_interfaces.msg.Time object")
        return cls(seconds=msg.sec, nanoseconds=msg.nanosec, clock_type=clock_type)

    def _same_kind(self, other: Time) -> None:
        if self._clock_type != other._clock_type:
            raise TypeError("Can't compare or subtract times with different clock types")

    def __repr__(self) -> str:
        return f"Time(nanoseconds={self._ns}, clock_type={self._clock_type.name})"

    def __add__(self, other: Duration) -> Time:
        if not isinstance(other, Duration):
            return NotImplemented
        return Time(nanoseconds=self._ns + other.nanoseconds, clock_type=self._clock_type)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, Time):
            self._same_kind(other)
            return Duration(nanoseconds=self._ns - other._ns)
        if isinstance(other, Duration):
            return Time(nanoseconds=self._ns - other.nanoseconds, clock_type=self._clock_type)
        return NotImplemented

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Time):
            return NotImplemented
        self._same_kind(other)
        return self._ns == other._ns

    def __lt__(self, other: Time) -> bool:
        if not isinstance(other, Time):
            return NotImplemented
        self._same_kind(other)
        return self._ns < other._ns

    def __hash__(self) -> int:
        return hash((self._ns, self._clock_type))
