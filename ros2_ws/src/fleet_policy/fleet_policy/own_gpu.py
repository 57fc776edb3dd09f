"""Computes a model on the robot's own GPU, from a process whose device 'cuda' is a server's.

`python -m fleet_policy.own_gpu FD DEVICE PARENT` is the process in which the model is. It gets the
model and then inputs from the socket FD, sends outputs, and ends with the process PARENT.
"""

from __future__ import annotations

import math
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any

import torch
from fleet_env.command import never_collect_what_is_loaded
from fleet_ros.own_gpu import end_process, start_process

from .computing import Network, on_device
from .core.places import KEPT, lost_after

READY = 120.0   # maximum time in seconds for the start of the process with the model


class OwnGpu:
    """A network that a process of this machine computes; without the process, this one does.

    The constructor returns when the process has the model, or cannot have it.

    :param model: the model, on the CPU; its outputs equal those of the process, to rounding.
    :param device: device of the process.
    :param environment: that of the process; 'cuda' must be this machine's GPU there.
    :param patience: least time in seconds after which an answer counts as lost, see `lost_after`.
    :param warn: function that is told once why the process does not compute.
    """

    def __init__(self, model: torch.nn.Module, device: str, environment: dict[str, str],
                 patience: float, warn: Callable[[str], object]) -> None:
        self._model, self._patience, self._warn = model, patience, warn
        self._took: deque[float] = deque(maxlen=KEPT)   # seconds of the latest answers
        self._link, theirs = Pipe()
        with theirs:
            self._process = start_process(__name__, theirs.fileno(), device, environment)
        self.computes = True   # whether the process computes
        try:
            self._link.send_bytes(pickle.dumps(sys.path))   # where the model's classes are
            if error := self._ask(model, READY)[1]:
                raise OSError(error)
        except Exception as error:   # a model that cannot be pickled raises any error
            self._end(error)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Return the model's output for CPU tensors, also on the CPU."""
        if self.computes:
            # The first inference may compile, or load libraries.
            limit = lost_after(max(self._took), self._patience) if self._took else READY
            began = time.monotonic()
            try:
                output, error = self._ask(inputs, limit)
                self._took.append(time.monotonic() - began)
            except (OSError, EOFError) as gone:
                self._end(gone)
            else:
                if error:
                    raise RuntimeError(error)
                return output
        return self._model(*inputs)

    def use(self, model: torch.nn.Module) -> None:
        """Compute with another model from now on, as with the first."""
        self._model = model
        self._took.clear()
        if self.computes:
            try:
                if error := self._ask(model, READY)[1]:
                    raise OSError(error)
            except Exception as error:   # a model that cannot be pickled raises any error
                self._end(error)

    def _ask(self, given: Any, limit: float) -> tuple[Any, str]:
        """Return the answer, an output and an error; raise TimeoutError after ``limit`` seconds.

        Neither sending nor receiving waits for ever for a process that is stopped midway.
        """
        bound = struct.pack('ll', *divmod(math.ceil(limit * 1e6), 10**6))   # a struct timeval
        link = socket.socket(fileno=os.dup(self._link.fileno()))
        with link:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                link.setsockopt(socket.SOL_SOCKET, option, bound)
        try:
            self._link.send_bytes(pickle.dumps(given))
            answer: tuple[Any, str] = pickle.loads(self._link.recv_bytes())
        except BlockingIOError:
            raise TimeoutError(f'it gave no answer within {limit:.1f} s') from None
        return answer

    def _end(self, error: Exception) -> None:
        self.computes = False
        self.close()
        self._warn("the robot computes on its CPU, because the process for its GPU has failed: "
                   + (str(error) or 'it has ended'))

    def close(self) -> None:
        """End the process."""
        end_process(self._process)
        self._link.close()


def main(arguments: list[str]) -> int:
    """Compute until the parent process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)   # Ctrl+C is the parent's
    link, parent = Connection(int(arguments[0])), os.pidfd_open(int(arguments[2]))
    both: list[Any] = [link, parent]
    network: Network | None = None
    while parent not in select.select(both, [], [])[0]:
        try:
            given = pickle.loads(link.recv_bytes())
            if isinstance(given, list):
                sys.path[:] = given
                continue
            if isinstance(given, torch.nn.Module):
                device = torch.empty(0, device=arguments[1]).device
                network = on_device(given.to(device), device)
                never_collect_what_is_loaded()
                answer: tuple[Any, str] = None, ''
            else:
                assert network is not None, 'a model must come before inputs'
                with torch.no_grad():
                    answer = network(*given), ''
        except EOFError:
            break
        except Exception as error:   # the user's model may raise any error
            answer = None, f'{type(error).__name__}: {error}'
        link.send_bytes(pickle.dumps(answer))
    return 0


if __name__ == '__main__':
    raise SystemExit(main(sys.argv[1:]))
