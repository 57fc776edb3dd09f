"""Computes a model on the robot's own GPU, from a process whose device 'cuda' is a server's.

`python -m fleet_policy.own_gpu FD DEVICE PARENT` is the process in which the model is. It gets the
model and then inputs from the socket FD, sends outputs, and ends with the process PARENT.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any

import torch
from fleet_ros.own_gpu import end_process, start_process

from .computing import Network, on_device

READY = 120.0   # maximum time in seconds for the start of the process with the model


class OwnGpu:
    """A network that a process of this machine computes; without the process, this one does.

    The constructor returns when the process has the model, or cannot have it.

    :param model: the model, on the CPU; its outputs equal those of the process, to rounding.
    :param device: device of the process.
    :param environment: that of the process; 'cuda' must be this machine's GPU there.
    :param warn: function that is told once why the process does not compute.
    """

    def __init__(self, model: torch.nn.Module, device: str, environment: dict[str, str],
                 warn: Callable[[str], object]) -> None:
        self._model, self._warn = model, warn
        self._link, theirs = Pipe()
        with theirs:
            self._process = start_process(__name__, theirs.fileno(), device, environment)
        self.computes = True   # whether the process computes
        try:
            self._link.send_bytes(pickle.dumps(sys.path))   # where the model's classes are
            self._link.send_bytes(pickle.dumps(model))
            self._answer(READY)
        except Exception as error:   # a model that cannot be pickled raises any error
            self._end(error)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Return the model's output for CPU tensors, also on the CPU."""
        if self.computes:
            try:
                self._link.send_bytes(pickle.dumps(inputs))
                output, error = self._answer()
            except (OSError, EOFError) as gone:
                self._end(gone)
            else:
                if error:
                    raise RuntimeError(error)
                return output
        return self._model(*inputs)

    def _answer(self, limit: float | None = None) -> tuple[Any, str]:
        if not self._link.poll(limit):
            raise TimeoutError(f'it was not ready within {limit:g} s')
        output, error = pickle.loads(self._link.recv_bytes())
        if limit is not None and error:
            raise OSError(error)
        return output, error

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
            if network is None:
                device = torch.empty(0, device=arguments[1]).device
                network = on_device(given.to(device), device)
                answer: tuple[Any, str] = None, ''
            else:
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
