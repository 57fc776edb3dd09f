"""Processes that compute gradients in parallel with the event loop.

Threads of Python would take turns with the loop, so this module uses processes. They are forked
when the run begins. They inherit the task, its data, and each robot's position in the data. They
share the memory of models and gradients with the loop (`rog_core.model.flat.FlatModel`). If forking
is not possible, a thread does the same work.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import torch

_work: list[Callable[..., Any]] = []  # functions that the forked processes inherit


class GradientProcesses:
    """Calls ``work[k]`` in other processes; all calls with one k run in one process, in order."""

    def __init__(self, work: list[Callable[..., Any]]) -> None:
        self._work = work
        self._pools: list[Executor]
        count = min(os.cpu_count() or 1, len(work))
        if count > 1 and _may_fork():
            _work[:] = work
            context = multiprocessing.get_context('fork')
            self._pools = [ProcessPoolExecutor(1, context, _prepare) for _ in range(count)]
            for pool in self._pools:  # the first call forks, so make it while `_work` is filled
                pool.submit(os.getpid).result()
            _work.clear()
            self._call: Callable[..., Any] = _call
        else:
            self._pools = [ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))]
            self._call = lambda k, *arguments: self._work[k](*arguments)

    def submit(self, k: int, *arguments: Any) -> Future:
        """Start a call of ``work[k]`` with these arguments; return the future of its result."""
        return self._pools[k % len(self._pools)].submit(self._call, k, *arguments)

    def __enter__(self) -> GradientProcesses:
        return self

    def __exit__(self, *raised: object) -> None:
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)


def _may_fork() -> bool:
    # If there is a GPU, PyTorch has threads, which do not survive a fork. A daemonic process may
    # not start child processes.
    return hasattr(os, 'fork') and not torch.cuda.is_available() \
        and not multiprocessing.current_process().daemon


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(k: int, *arguments: Any) -> Any:
    return _work[k](*arguments)
