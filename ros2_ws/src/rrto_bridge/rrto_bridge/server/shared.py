"""The server's process that computes what its programs have in common; the fork server forks it."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn
from weakref import WeakValueDictionary

import torch
from fleet_compute.runner import Runner
from fleet_ros.device import limit_memory, warm_up
from fleet_ros.ending import die_with

from ..execution.sharing import load
from .parameters import PROVED, ServerSettings
from .worker import room

NAME = 'rrto_runner'    # of the process, as `ps -o comm` and `top` show it


def compute(path: Path, name: str, folder: Path, settings: ServerSettings, parent: int) -> NoReturn:
    """Compute for the programs that connect to `path`, until the process `parent` ends.

    `name`: the device. `folder`: the server's.
    """
    try:
        die_with(parent)
        Path('/proc/self/comm').write_text(NAME)
        if settings.threads:
            torch.set_num_threads(settings.threads)
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen(settings.programs)
            device = torch.device(name)
            warm_up(device)
            # The weights of all, and what a batch of the largest computes.
            memory = 2 * settings.memory << 20
            limit_memory(device, memory + room(memory))
            weights = settings.kept_weights(folder / PROVED)
            loaded: WeakValueDictionary[object, torch.Tensor] = WeakValueDictionary()
            Runner(listener, device, lambda data: load(data, weights, device, loaded),
                   lambda text: print(f'[rrto] {text}', file=sys.stderr, flush=True)).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)     # skip cleanup that belongs to the fork server
