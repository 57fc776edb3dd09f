"""Delay signal handlers until the device is consistent, because a handler may raise an exception.

Python runs a handler between any two instructions of the main thread. If the device is busy at this
moment, this file sends the signal again `LATER` seconds later. The handler runs when the device has
finished its work, or only waits for the server. The handler is also delayed during the
`__del__` of a remote tensor: Python prints and ignores an exception in `__del__` or in a function
that `__del__` calls, so Ctrl+C would be lost. Ordinary tensors have no `__del__`.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

LATER = 0.001   # seconds after which a signal is sent again

_signal, _getsignal = signal.signal, signal.getsignal


def install(busy: Callable[[], bool], deletes: CodeType) -> None:
    """Delay the current signal handlers, and the handlers that the program sets later.

    A handler waits while `busy()` is true, and while the main thread runs `deletes` or a function
    that `deletes` calls.
    """
    handlers: dict[int, Any] = {}

    def run(number: int, frame: Any) -> None:
        caller = frame
        while caller is not None and caller.f_code is not deletes:
            caller = caller.f_back
        if busy() or caller is not None:
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
