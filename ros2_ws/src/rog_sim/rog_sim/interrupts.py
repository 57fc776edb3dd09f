"""Delays Ctrl+C during a few lines that must not be interrupted."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Delay SIGINT in this thread while the context lasts.

    A process that starts during this time also blocks SIGINT, because it inherits the signal mask
    of the thread that starts it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
