"""Handlers of signals wait for the device: they may raise, and nothing may stay half done.

Python runs a handler between any two instructions of the main thread. While the device is busy
there, the signal is sent again a little later; while it only waits for the server, or when it is
done, the handler runs. So it is in the `__del__` of a tensor, which native tensors do not have:
what is raised there, or in what runs meanwhile, Python prints and forgets, and Ctrl+C would be
lost.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

LATER = 0.001   # seconds after which a signal comes again

_signal, _getsignal = signal.signal, signal.getsignal


def install(busy: Callable[[], bool], deletes: CodeType) -> None:
    """Let the handlers that are there, and those that the program sets, wait.

    They wait while `busy()`, and while the main thread runs `deletes`, or what it has called.
    """
    handlers: dict[int, Any] = {}

    def run(number: int, frame: Any) -> None:
        while frame is not None and frame.f_code is not deletes:
            frame = frame.f_back
        if busy() or frame is not None:
            threading.Thread(target=again, args=(number,), daemon=True).start()
        else:
            handlers[number](number, frame)

    def again(number: int) -> None:
        time.sleep(LATER)
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, number)

    def set_handler(number: int, handler: Any) -> Any:
        before = get_handler(number)
        _signal(number, run if callable(handler) else handler)
        handlers[int(number)] = handler
        return before

    def get_handler(number: int) -> Any:
        found = _getsignal(number)
        return handlers[int(number)] if found is run else found

    module: Any = signal
    module.signal, module.getsignal = set_handler, get_handler
    if threading.current_thread() is threading.main_thread():
        for number in signal.valid_signals():
            if callable(_getsignal(number)):
                set_handler(number, _getsignal(number))
