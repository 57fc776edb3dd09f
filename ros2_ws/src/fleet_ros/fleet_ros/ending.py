"""Ends processes on a signal and when their launcher ends.

Threads that still compute do not delay the end.

A launcher sends its processes `SIGINT` or `SIGTERM`. After `ORDERLY` seconds it sends a
second signal, after which the processes end at once. After `LAST` more seconds the
launcher kills the processes that are left.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Maximum seconds of each wait at the end of a run, of a node or of a process.
RUN_OVER = 15.0    # the server has ended: its robots evaluate the final model
ORDERLY = 2.5      # first signal: a process ends in an orderly way
HURRY = ORDERLY - 0.5  # first signal: a server evaluates the final model
LAST = 5.0         # second signal: a process ends at once, but a server writes a checkpoint; kill
KILLED = 10.0      # a killed process is gone, unless it waits for a device
FAREWELL = 1.0     # a robot repeats its receipt for the server, or finishes a gradient
CLEANUP = 5.0      # a cleanup: the robot's gradient that is being computed ends
STAYS = 2.0        # a node that was shut down answers its lifecycle manager, as Nav2's expects
LAST_WORDS = 1.0   # reliable subscribers acknowledge a node's last status
WRITER = 0.2       # Cyclone DDS, for each reliable writer: peers acknowledge its last messages
LEAVING = 10.0     # a node's process leaves the ROS graph

LAUNCHER = 'FLEET_LAUNCHER'  # environment variable with the process id of the launcher

# If a signal is repeated within this time in seconds, it does not count as a second
# signal. The reason is that after Ctrl+C a process receives SIGINT from the terminal and
# again from `ros2 launch`.
_SAME = 0.5
_PR_SET_PDEATHSIG = 1
_parent = 0    # process id of the parent; 0 without a launcher


_raising: Interruption | None = None    # whose `raised` is open


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let `Interruption.raised` raise only at the end of this context.

    Use it for constructors of rclpy, whose destructors fail if a constructor was interrupted.
    """
    interruption = _raising
    if interruption is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    interruption._raises = False
    try:
        yield
    finally:
        interruption._raises = True
    if interruption:
        raise KeyboardInterrupt


class Interruption:
    """Records the signals that this process receives.

    As a condition (``if interruption``), the object is false until the first signal arrives.

    ``at_once``: whether the process must end at once. This is true after a second signal of
    the same number. It is also true after a signal that arrives when the launcher has already
    ended.

    :param then: called at each signal, in Python's signal handler.
    """

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.number = 0
        self._then = then
        self.at_once = False
        self._first: dict[int, float] = {}
        self._raises = False
        self._terminal = os.isatty(1)
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._on_signal)

    def __bool__(self) -> bool:
        return bool(self.number)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise KeyboardInterrupt in this context when a signal arrives.

        If a signal has arrived earlier, raise KeyboardInterrupt at once.
        """
        global _raising
        self._raises, _raising = True, self
        try:
            if self:
                raise KeyboardInterrupt
            yield
        finally:
            self._raises, _raising = False, None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self.number = self.number or number
        alone = _launcher_is_gone()
        if alone or (number == signal.SIGHUP and self._terminal):
            _silence()
        if alone or now - self._first.setdefault(number, now) > _SAME:
            self.at_once = True
            _end_within(LAST)
        self._then()
        if self._raises:
            raise KeyboardInterrupt


@contextmanager
def importing() -> Iterator[None]:
    """Let Ctrl+C end this process at once in this context; use it for slow imports.

    Without this, Ctrl+C would raise a KeyboardInterrupt. This error prints a traceback, or
    has no effect in a library that catches every exception.
    """
    ours = threading.current_thread() is threading.main_thread() \
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM interrupt a program of the user by an exception, wherever it waits.

    In this context SIGINT raises KeyboardInterrupt and SIGTERM raises SystemExit, so that the
    program can end in an orderly way. A second SIGTERM does not interrupt this end, but ends the
    process at once. Signal handlers that the program has set itself stay. If the program does not
    catch the KeyboardInterrupt, Python ends by SIGINT as usual, but without a traceback.
    """
    first: list[float] = []  # time of the first SIGTERM

    def end(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not first:
            first.append(now)
            raise SystemExit(128 + number)
        if now - first[0] > _SAME:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    ours = threading.current_thread() is threading.main_thread() \
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        _hide_interrupts()
        raise
    finally:
        if ours and signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def signals_held() -> Iterator[None]:
    """Let no signal interrupt this context; those that come act at its end.

    An object that has started a thread could otherwise be lost before anybody can close it. A
    thread that is left when Python ends aborts the process: "terminate called without an active
    exception".
    """
    former = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _hide_interrupts() -> None:
    """Make Python print no traceback if a KeyboardInterrupt ends this process."""
    former = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            former(kind, error, trace)

    sys.excepthook = hook


def launched() -> dict[str, str]:
    """Return the environment variable that makes child processes end when this process ends.

    The child processes must call `end_with_launcher`. Then they end even if this process is killed
    (kill -9).
    """
    return {LAUNCHER: str(os.getpid())}


def end_with_launcher() -> None:
    """Arrange that this process receives SIGTERM when its launcher ends."""
    global _parent
    if LAUNCHER not in os.environ:
        return
    _parent = os.getppid()
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if _launcher_is_gone():
        os.kill(os.getpid(), signal.SIGTERM)


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent ends; Linux only.

    More exactly, a thread of the parent has started this process. The kernel kills this process
    when that thread ends.

    :param parent: process id of the parent.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the call of prctl


def _launcher_is_gone() -> bool:
    launcher = os.environ.get(LAUNCHER, '')
    if not launcher.isdigit():
        return False
    if _parent and os.getppid() != _parent:
        return True
    try:
        os.kill(int(launcher), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _silence() -> None:
    """Discard further output, because writing to a closed pipe is an error."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    os.close(null)


def limit_leaving() -> None:
    """Let the kernel end this process by SIGALRM if it is still there after `LEAVING` seconds.

    Call this before the process destroys its node. Fast DDS can wait for ever in `destroy_node`.
    No thread of Python could end the process then, because `destroy_node` holds Python's lock
    (GIL).
    """
    if threading.current_thread() is threading.main_thread():
        _end_within(LEAVING)


@contextmanager
def limited_leaving() -> Iterator[None]:
    """`limit_leaving` while the context is open, for a process that has more to do after it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    limit_leaving()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def _end_within(seconds: float) -> None:
    """Let the kernel end this process by SIGALRM after ``seconds`` seconds, even if it hangs.

    If an earlier call has set a limit that comes sooner, this limit stays.
    """
    ours = signal.getsignal(signal.SIGALRM) is signal.SIG_DFL  # else the timer is of other code
    left = signal.getitimer(signal.ITIMER_REAL)[0] if ours else 0.0
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, left or seconds))


def ignore_signals() -> None:
    """Ignore SIGINT, SIGTERM and SIGHUP while the process ends.

    At exit Python restores the default signal handlers, and then tears down libraries. With the
    default handler, a Ctrl+C during this time would kill a process that has succeeded.
    """
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def leave_at_exit(code: int) -> None:
    """Make this process end with ``code`` and without tearing down imported libraries.

    There are two reasons. First, the processes of a fleet have little time to end, and tearing
    down PyTorch takes longer. Second, at exit the interpreter unwinds a thread that still computes.
    If the thread's stack has C++ frames, this aborts the process: "terminate called without an
    active exception".
    """
    atexit.register(leave, code)  # runs before all functions that were registered earlier


def leave(code: int) -> None:
    """End this process at once, without waiting for any thread.

    Otherwise Python would wait, for example, for the threads of a `ThreadPoolExecutor`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
