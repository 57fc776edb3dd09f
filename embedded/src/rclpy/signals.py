"""SIGINT and SIGTERM shut the contexts down.

As in rclpy: SIGINT also raises KeyboardInterrupt in the main thread (Python's own handler is called
first), SIGTERM makes `spin` raise ExternalShutdownException. A Python handler only runs when the
main thread executes Python, and that may sit in DDS; so signals are read from a wakeup file
descriptor by a thread of their own, which shuts down and thereby wakes everyone.
"""

from __future__ import annotations

import os
import signal
import threading
from enum import IntEnum
from typing import Any


class SignalHandlerOptions(IntEnum):
    """Which signals rclpy.init() handles."""

    NO = 0
    SIGINT = 1
    SIGTERM = 2
    ALL = 3


_lock = threading.Lock()
_previous: dict[int, Any] = {}
_old_wakeup = -1
_pipe: tuple[int, int] | None = None
_watcher: threading.Thread | None = None


def _handle(number: int, frame: Any) -> None:
    """Runs in the main thread: what was there before us, for SIGINT KeyboardInterrupt."""
    previous = _previous.get(number)
    if callable(previous):
        previous(number, frame)


def _watch(fd: int) -> None:
    from rclpy.context import shutdown_all

    while True:
        data = os.read(fd, 64)
        if not data or 0 in data:
            os.close(fd)
            return
        if _old_wakeup >= 0:
            os.write(_old_wakeup, data)
        if any(number in _previous for number in data):
            shutdown_all()


def install_signal_handlers(options: SignalHandlerOptions = SignalHandlerOptions.ALL) -> None:
    """Handle the chosen signals. Outside the main thread this does nothing: Python forbids it."""
    global _pipe, _watcher, _old_wakeup
    if threading.current_thread() is not threading.main_thread():
        return
    chosen = [
        number
        for option, number in (
            (SignalHandlerOptions.SIGINT, signal.SIGINT),
            (SignalHandlerOptions.SIGTERM, signal.SIGTERM),
        )
        if options & option
    ]
    with _lock:
        if chosen and _pipe is None:
            _pipe = os.pipe()
            os.set_blocking(_pipe[1], False)
            _old_wakeup = signal.set_wakeup_fd(_pipe[1], warn_on_full_buffer=False)
            _watcher = threading.Thread(
                target=_watch, args=(_pipe[0],), name="rclpy signals", daemon=True
            )
            _watcher.start()
        for number in chosen:
            if number not in _previous:
                _previous[number] = signal.signal(number, _handle)


def uninstall_signal_handlers() -> None:
    """Give the signals back to whom they belonged before."""
    global _pipe, _watcher, _old_wakeup
    if threading.current_thread() is not threading.main_thread():
        return
    with _lock:
        for number, previous in list(_previous.items()):
            if signal.getsignal(number) is _handle:
                signal.signal(number, previous if previous is not None else signal.SIG_DFL)
            del _previous[number]
        if _pipe is None:
            return
        signal.set_wakeup_fd(_old_wakeup)
        pipe, watcher = _pipe, _watcher
        _pipe, _watcher, _old_wakeup = None, None, -1
    os.write(pipe[1], b"\0")
    if watcher is not None:
        watcher.join()
    os.close(pipe[1])


def _forget_in_child() -> None:
    """A forked child must not write its signals into the parent's pipe."""
    global _pipe, _watcher, _old_wakeup
    if _pipe is not None:
        signal.set_wakeup_fd(-1)
        for number, previous in _previous.items():
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)
        _previous.clear()
        _pipe, _watcher, _old_wakeup = None, None, -1


os.register_at_fork(after_in_child=_forget_in_child)


def get_current_signal_handlers_options() -> SignalHandlerOptions:
    """Return which signals are handled now."""
    value = (signal.SIGINT in _previous) * 1 + (signal.SIGTERM in _previous) * 2
    return SignalHandlerOptions(value)
