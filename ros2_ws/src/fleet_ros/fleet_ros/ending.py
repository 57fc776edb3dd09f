"""How processes end: signals, a launcher that is gone, and threads that cannot be interrupted.

A launcher asks its processes to end, by `SIGINT` or `SIGTERM`; those that have not ended `ORDERLY`
seconds later are asked again, and then end at once; `LAST` seconds later they are killed.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ORDERLY = 2.5  # s that a process has to end in order
LAST = 1.5     # s that it has when it is asked again, before it is killed
LAUNCHER = 'FLEET_LAUNCHER'  # variable with the process id of the launcher

_SAME = 0.5    # s in which a signal that comes again is the same: Ctrl+C reaches a process from the
#                terminal, and once more from `ros2 launch`
_BOUND = 5     # s after which a process that was told to end at once is ended by the kernel
_PR_SET_PDEATHSIG = 1
_parent = 0    # process id of the parent, when there is a launcher


class Interruption:
    """Which signals have come: none (false), one, or one again, to end `at_once`."""

    def __init__(self) -> None:
        self.number = 0
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
        """Within this a signal raises KeyboardInterrupt, also one that came before."""
        self._raises = True
        try:
            if self:
                raise KeyboardInterrupt
            yield
        finally:
            self._raises = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self.number = self.number or number
        alone = _launcher_is_gone()
        if alone or (number == signal.SIGHUP and self._terminal):
            _silence()
        if alone or now - self._first.setdefault(number, now) > _SAME:
            self.at_once = True
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_BOUND)  # whatever still hangs then
        if self._raises:
            raise KeyboardInterrupt


def launched() -> dict[str, str]:
    """Return the variable by which processes that this one starts end with it, even by kill -9."""
    return {LAUNCHER: str(os.getpid())}


def end_with_launcher() -> None:
    """From now on SIGTERM comes when the process that has started this one, a launcher, ends."""
    global _parent
    if LAUNCHER not in os.environ:
        return
    _parent = os.getppid()
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if _launcher_is_gone():
        os.kill(os.getpid(), signal.SIGTERM)


def die_with(parent: int) -> None:
    """From now on this process is killed when ``parent``, which has started it, ends; Linux only.

    More exactly: when the parent's thread that started it does.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before


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
    """Nobody reads what is written any more, and writing to a closed pipe is an error."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    os.close(null)


def ignore_signals() -> None:
    """Let no signal interrupt the end any more.

    At exit Python restores the default handlers, and only then are libraries torn down: a Ctrl+C
    meanwhile must not turn a clean end into a death by signal.
    """
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def leave_at_exit(code: int) -> None:
    """Let this process end as soon as its program has, without tearing down what it has imported.

    To tear PyTorch down takes longer than a fleet may take to end. And the interpreter ends a
    thread that still computes by unwinding it, which aborts the process when there are frames of
    C++ on its stack: "terminate called without an active exception".
    """
    atexit.register(_leave, code)  # comes before everything that was registered earlier


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
