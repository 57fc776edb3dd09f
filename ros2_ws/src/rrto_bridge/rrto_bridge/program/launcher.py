"""Installs the remote device in the program's process, from the variables that `rrto run` sets."""

from __future__ import annotations

import gc
import os
import sys
import threading
from typing import Any

from fleet_ros.own_gpu import HIDES_ALL, VISIBLE, own_gpu

from ..client.settings import Settings


def install() -> None:
    """Make the remote device 'cuda:0' in this process; its first use connects to a server.

    If CUDA_VISIBLE_DEVICES hides all devices, do nothing. The process then has no device, as with
    CUDA.
    """
    if os.environ.get(VISIBLE) in HIDES_ALL:
        return
    from ..client.ownprocess import Here
    from . import intercept
    from .device import Device
    settings = Settings.from_environment(os.environ)
    local = Here(own_gpu() if settings.local_device == 'auto' else '')
    intercept.install(Device(lambda: connect(settings), local))
    _explain_errors()
    # Without this line, Python's garbage collector scans all objects of PyTorch 3 times at exit.
    gc.freeze()


def _explain_errors() -> None:
    """Say after the traceback that ends the program if its torchvision is not made for PyTorch."""
    from fleet_env.vision import other_build
    former = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        former(kind, error, trace)
        if advice := other_build(error):
            print(f'rrto: {advice}', file=sys.stderr)

    sys.excepthook = hook


def connect(settings: Settings) -> Any:
    """Connect to a server; return the engine that sends it the calls in the requested mode.

    If there is no server, or it refuses, the main thread prints the reason and exits with code 1.
    Any other thread raises ConfigError, because it only waits for the return of a lost server.
    Raises LinkError if the server accepts the program, but cannot serve it.
    """
    from fleet_env.errors import SettingError
    from fleet_link.errors import KeyFileError

    from ..client.journal import Journal
    from ..client.percall import PerCall
    from ..client.replaying import Replaying
    from ..client.shell import Link, LinkOptions
    from ..protocol.errors import ConfigError
    try:
        link = Link(LinkOptions(settings.mode, settings.server, settings.namespace,
                                settings.shaped_link(), settings.security))
    except (ConfigError, SettingError, KeyFileError) as error:
        if threading.current_thread() is threading.main_thread():
            print(f'rrto: {error}', file=sys.stderr)
            raise SystemExit(1) from None
        raise
    journal = Journal() if settings.on_loss == 'local' else None
    link.engine = (Replaying if settings.mode == 'replay' else PerCall)(link, journal)
    return link.engine
