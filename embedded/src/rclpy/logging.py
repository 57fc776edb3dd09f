"""Loggers: lines on stderr as ROS writes them, and /rosout."""

from __future__ import annotations

import os
import sys
import threading
import time as _time
from collections.abc import Callable
from enum import IntEnum
from types import FrameType
from typing import Any


class LoggingSeverity(IntEnum):
    """How serious a message is."""

    UNSET = 0
    DEBUG = 10
    INFO = 20
    WARN = 30
    ERROR = 40
    FATAL = 50


_COLORS = {10: "\033[32m", 30: "\033[33m", 40: "\033[31m", 50: "\033[31m"}
_FILTERS = ("throttle_duration_sec", "throttle_time_source_type", "skip_first", "once")
_INTERNAL = (os.path.dirname(os.path.abspath(__file__)) + os.sep + "logging.py",)

Sink = Callable[[int, LoggingSeverity, str, str, FrameType], None]
"""Called with time (ns), severity, logger name, message and the caller's frame."""

_levels: dict[str, LoggingSeverity] = {}
_sinks: dict[str, Sink] = {}  # by logger name: what publishes on /rosout
_lock = threading.Lock()
_console = {"enabled": True}


def set_logger_level(name: str, level: int | LoggingSeverity, detailed_error: bool = False) -> None:
    """Set the level of a logger and of those below it that have none; '' is the root."""
    _levels[name] = LoggingSeverity(level)


def get_logger_level(name: str) -> LoggingSeverity:
    """Return the level that was set for exactly this logger."""
    return _levels.get(name, LoggingSeverity.UNSET)


def get_logger_effective_level(name: str) -> LoggingSeverity:
    """Return the level that counts for a logger: its own or that of the nearest one above."""
    while True:
        if not name:
            return _levels.get("", LoggingSeverity.INFO)
        level = _levels.get(name, LoggingSeverity.UNSET)
        if level:
            return level
        name = name.rpartition(".")[0]


def get_logging_severity_from_string(log_severity: str) -> LoggingSeverity:
    """Return the severity of a name in any case."""
    try:
        return LoggingSeverity[log_severity.upper()]
    except KeyError:
        names = ", ".join(s.name.lower() for s in LoggingSeverity)
        raise RuntimeError(f"{log_severity!r} is no severity: use one of {names}") from None


def initialize() -> None:
    """Do nothing: loggers need no preparation here."""


def shutdown() -> None:
    """Forget all levels."""
    _levels.clear()


def clear_config() -> None:
    """Forget all levels."""
    _levels.clear()


def configure(levels: dict[str, LoggingSeverity], console: bool) -> None:
    """Apply what the command line says."""
    _levels.update(levels)
    _console["enabled"] = console


def add_sink(name: str, sink: Sink) -> None:
    """Send messages of a logger and its children to a sink as well."""
    with _lock:
        _sinks[name] = sink


def remove_sink(name: str) -> None:
    """End what add_sink began."""
    with _lock:
        _sinks.pop(name, None)


def _format(severity: LoggingSeverity, now: int, name: str, message: str, frame: FrameType) -> str:
    template = os.environ.get(
        "RCUTILS_CONSOLE_OUTPUT_FORMAT", "[{severity}] [{time}] [{name}]: {message}"
    )
    values = {
        "severity": severity.name,
        "time": f"{now // 10**9}.{now % 10**9:09d}",
        "time_as_nanoseconds": str(now),
        "name": name,
        "function_name": frame.f_code.co_name,
        "file_name": frame.f_code.co_filename,
        "line_number": str(frame.f_lineno),
        "message": message,
    }
    # One pass by hand: the message itself may contain braces.
    pieces = template.split("{")
    text = pieces[0]
    for piece in pieces[1:]:
        key, brace, rest = piece.partition("}")
        text += values[key] + rest if brace and key in values else "{" + piece
    return text


def _write_console(severity: LoggingSeverity, line: str) -> None:
    wish = os.environ.get("RCUTILS_COLORIZED_OUTPUT", "")
    color = _COLORS.get(severity, "")
    if color and (wish == "1" or (wish != "0" and sys.stderr is not None and sys.stderr.isatty())):
        line = f"{color}{line}\033[0m"
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # nobody reads stderr any more; a log line must not end the program


def _caller() -> FrameType:
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename) in _INTERNAL:
        frame = frame.f_back
    return frame


class RcutilsLogger:
    """A named logger; dots in the name form a hierarchy."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._calls: dict[tuple[Any, ...], dict[str, Any]] = {}

    def get_child(self, name: str) -> RcutilsLogger:
        """Return the logger below this one."""
        if not name:
            raise ValueError("Child logger name must not be empty.")
        return RcutilsLogger(f"{self.name}.{name}" if self.name else name)

    def set_level(self, level: int | LoggingSeverity) -> None:
        """Show messages from this severity on."""
        set_logger_level(self.name, level)

    def get_effective_level(self) -> LoggingSeverity:
        """Return the level that counts for this logger."""
        return get_logger_effective_level(self.name)

    def is_enabled_for(self, severity: int | LoggingSeverity) -> bool:
        """Whether messages of this severity are shown."""
        return severity >= get_logger_effective_level(self.name)

    def _filtered(
        self, frame: FrameType, severity: int, name: str, filters: dict[str, Any]
    ) -> bool:
        """Whether a filter suppresses this call; what it needs to know is kept per call site."""
        for given in filters:
            if given not in _FILTERS:
                raise TypeError(
                    f'parameter "{given}" is not one of the recognized logging options {_FILTERS}'
                )
        if filters.get("throttle_time_source_type") and not filters.get("throttle_duration_sec"):
            raise TypeError('required parameter "throttle_duration_sec" not specified')
        key = (frame.f_code.co_filename, frame.f_lineno, frame.f_lasti)
        call = {"Logger severity": severity, "Logger name": name, "Filter parameters": filters}
        state = self._calls.setdefault(key, {**call, "last": None, "count": 0})
        for what, value in call.items():
            if state[what] != value:
                raise ValueError(f"{what} cannot be changed between calls.")
        period = filters.get("throttle_duration_sec")
        if period:
            clock = filters.get("throttle_time_source_type")
            now = clock.now().nanoseconds if clock else _time.monotonic_ns()
            last = state["last"]   # none: a machine may have started less than `period` ago
            if last is not None and now < last + period * 1e9:
                return True
            state["last"] = now
        state["count"] += 1
        if filters.get("skip_first") and state["count"] == 1:
            return True
        first = 2 if filters.get("skip_first") else 1
        return bool(filters.get("once")) and state["count"] > first

    def log(self, message: str, severity: int | LoggingSeverity, **kwargs: Any) -> bool:
        """Log a message; False when the level or a filter suppresses it.

        :param throttle_duration_sec: at most once in this many seconds from this line of code
        :param throttle_time_source_type: clock for the throttle, by default steady time
        :param skip_first: not the first time
        :param once: only the first time
        """
        severity = LoggingSeverity(severity)
        if severity < get_logger_effective_level(self.name):
            return False
        name = kwargs.pop("name", self.name)
        frame = _caller()
        if self._filtered(frame, severity, name, kwargs):
            return False
        now = _time.time_ns()
        message = str(message)
        if _console["enabled"]:
            _write_console(severity, _format(severity, now, name, message, frame))
        if _sinks:
            self._to_sink(now, severity, name, message, frame)
        return True

    @staticmethod
    def _to_sink(
        now: int, severity: LoggingSeverity, name: str, message: str, frame: FrameType
    ) -> None:
        owner = name
        while owner:
            with _lock:
                sink = _sinks.get(owner)
            if sink is not None:
                sink(now, severity, name, message, frame)
                return
            owner = owner.rpartition(".")[0]

    def debug(self, message: str, **kwargs: Any) -> bool:
        """Log with severity DEBUG."""
        return self.log(message, LoggingSeverity.DEBUG, **kwargs)

    def info(self, message: str, **kwargs: Any) -> bool:
        """Log with severity INFO."""
        return self.log(message, LoggingSeverity.INFO, **kwargs)

    def warning(self, message: str, **kwargs: Any) -> bool:
        """Log with severity WARN."""
        return self.log(message, LoggingSeverity.WARN, **kwargs)

    def warn(self, message: str, **kwargs: Any) -> bool:
        """Log with severity WARN (an older name)."""
        return self.log(message, LoggingSeverity.WARN, **kwargs)

    def error(self, message: str, **kwargs: Any) -> bool:
        """Log with severity ERROR."""
        return self.log(message, LoggingSeverity.ERROR, **kwargs)

    def fatal(self, message: str, **kwargs: Any) -> bool:
        """Log with severity FATAL."""
        return self.log(message, LoggingSeverity.FATAL, **kwargs)


_root_logger = RcutilsLogger()


def get_logger(name: str) -> RcutilsLogger:
    """Return the logger of this name."""
    if not name:
        raise ValueError("Logger name must not be empty.")
    return _root_logger.get_child(name)
