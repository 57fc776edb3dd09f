"""Runs inside the program: installs the device that `rrto run` requested in the environment."""

from __future__ import annotations

import gc
import os
import sys
import threading
from typing import Any

from ..client.settings import HIDES_ALL, VISIBLE, Settings


def install() -> None:
    """Make the remote device this process's 'cuda:0'; the first use of it connects to a server.

    As on CUDA, a process that has hidden all devices has none.
    """
    if os.environ.get(VISIBLE) in HIDES_ALL:
        return
    from . import intercept
    from .device import Device
    settings = Settings.from_environment(os.environ)
    intercept.install(Device(lambda: connect(settings)))
    gc.freeze()   # else Python scans all of PyTorch's objects three times at exit


def connect(settings: Settings) -> Any:
    """Return the engine of the requested mode. Without a server the main thread ends the process.

    Raises ConfigError in other threads, and when a lost server is to be replaced.
    """
    from ..client.journal import Journal
    from ..client.percall import PerCall
    from ..client.replaying import Replaying
    from ..client.shell import Link, LinkOptions
    from ..protocol.errors import ConfigError
    try:
        link = Link(LinkOptions(settings.mode, settings.server, settings.namespace,
                                settings.shaped_link()))
    except ConfigError as error:
        if threading.current_thread() is threading.main_thread():
            print(f'rrto: {error}', file=sys.stderr)
            raise SystemExit(1) from None
        raise
    journal = Journal() if settings.on_loss == 'local' else None
    link.engine = (Replaying if settings.mode == 'replay' else PerCall)(link, journal)
    return link.engine
