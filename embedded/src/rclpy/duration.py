"""Spans of time."""

from __future__ import annotations

from functools import total_ordering
from typing import Any

from rclpy._message import message_class
from rclpy.constants import S_TO_NS

_LIMIT = 2**63


@total_ordering
class Duration:
    """A span of time, positive or negative, in whole nanoseconds."""

    __slots__ = ("_ns",)

    def __init__(self, *, seconds: float = 0, nanoseconds: int = 0) -> None:
        total = int(seconds * S_TO_NS) + int(nanoseconds)
        if not -_LIMIT <= total < _LIMIT:
            raise OverflowError("Total nanoseconds value is too large to store in C duration.")
        self._ns = total

    @property
    def nanoseconds(self) -> int:
        """The span in nanoseconds."""
        return self._ns

    def to_msg(self) -> Any:
        """Return it as builtin_interfaces/Duration."""
        sec, nanosec = divmod(self._ns, S_TO_NS)
        return message_class("builtin_interfaces/msg/Duration")(sec=sec, nanosec=nanosec)

    @classmethod
    def from_msg(cls, msg: Any) -> Duration:
        """Make one from builtin_interfaces/Duration."""
        return cls(seconds=msg.sec, nanoseconds=msg.nanosec)

    def __repr__(self) -> str:
        return f"Duration(nanoseconds={self._ns})"

    def __str__(self) -> str:
        return "Infinite" if self == Infinite else f"{self._ns} nanoseconds"

    def __eq__(self, other: object) -> bool:
        return self._ns == other._ns if isinstance(other, Duration) else NotImplemented

    def __lt__(self, other: Duration) -> bool:
        return self._ns < other._ns if isinstance(other, Duration) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._ns)


Infinite = Duration(nanoseconds=2**63 - 1)
