"""The default context, and what else rclpy keeps here."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from rclpy import _args, _profile
from rclpy.context import Context

_lock = threading.Lock()
_default: Context | None = None


def get_default_context(*, shutting_down: bool = False) -> Context:
    """Return the default context; with `shutting_down` the next call makes a new one."""
    global _default
    with _lock:
        if _default is None:
            _default = Context()
        context = _default
        if shutting_down:
            _default = None
        return context


def ok(*, context: Context | None = None) -> bool:
    """Whether the context is initialised and not shut down."""
    return (get_default_context() if context is None else context).ok()


def shutdown(*, context: Context | None = None) -> None:
    """Shut a context down; an error when it is down already."""
    (get_default_context(shutting_down=True) if context is None else context).shutdown()


def try_shutdown(*, context: Context | None = None) -> None:
    """Shut a context down if that has not happened yet."""
    global _default
    if context is not None:
        context.try_shutdown()
        return
    get_default_context().try_shutdown()
    with _lock:
        if _default is not None and not _default.ok():
            _default = None


def remove_ros_args(args: Sequence[str] | None = None) -> list[str]:
    """Return the arguments (sys.argv) without those between --ros-args and --."""
    _, others = _args.parse(sys.argv if args is None else args)
    return others


def get_rmw_implementation_identifier() -> str:
    """Return which DDS this is, in ROS 2's words."""
    return "rmw_cyclonedds_cpp"


def get_available_rmw_implementations() -> set[str]:
    """Return the only one."""
    return {"rmw_cyclonedds_cpp"}


def timeout_sec_to_nsec(timeout_sec: float | None) -> int:
    """Return a timeout in nanoseconds; -1 (for ever) for None and negative values."""
    return -1 if timeout_sec is None or timeout_sec < 0 else int(timeout_sec * 1e9)


def get_distribution() -> str:
    """Return the ROS distribution whose wire format is spoken."""
    return _profile.check_distribution()
