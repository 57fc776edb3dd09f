"""Processes that compute gradients in parallel with the event loop.

Threads of one Python process take turns, so a gradient and the event loop would not run
at the same time. Therefore this module uses processes. The processes are forked when
the run begins. They inherit the task, its data, and each robot's position in the data.
The models and gradients are in memory that the processes share with the loop
(`rog_core.model.flat.FlatModel`).

The loop itself writes to the pipes of the processes and reads from them. An executor of
`concurrent.futures` would use threads for the pipes, and the loop would wait for these threads
about as long as a small gradient takes. If forking is not possible, a thread computes the
gradients.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import select
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any

import torch
from rog_tasks.apart import garbage_kept, keep_parents_objects

from .interrupts import interrupts_blocked

# Maximum number of unread results of a process. A pipe holds 64 KiB, and a result takes some 50
# bytes. If both directions of a pipe were full, loop and process would wait for each other for
# ever.
UNREAD = 64
ENDING = 5.0  # seconds that a process may use to finish its last call; then it is killed
Work = Sequence[Callable[..., Any]]
Result = Callable[[], Any]  # waits for a call; returns its result, or raises its error


class GradientProcesses:
    """Calls the functions of ``work`` in other processes.

    All calls of the same function run in one process, in order.

    :raises BrokenProcessPool: a process was killed or has ended; any method can raise this
        error.
    """

    def __init__(self, work: Work) -> None:
        count = min(os.cpu_count() or 1, len(work))
        self._workers: list[_Process | _Thread] = \
            [_Process(work) for _ in range(count)] if count > 1 and _may_fork() else [_Thread(work)]

    def submit(self, k: int, *arguments: Any) -> Result:
        """Start a call of ``work[k]`` with ``arguments``.

        Return a function that waits for the result.
        """
        return self._workers[k % len(self._workers)].submit(k, *arguments)

    def __enter__(self) -> GradientProcesses:
        return self

    def __exit__(self, *raised: object) -> None:
        for worker in self._workers:
            worker.close()
        # A process ends only when all copies of the parent's end of its pipe are closed. Processes
        # that were forked later have inherited such copies, so they must end first.
        for worker in reversed(self._workers):
            worker.join()


class _Process:
    """A forked process, and the calls that it has not answered yet."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context('fork')
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(work, theirs, self._pipe))
        # SIGINT stays blocked in the forked process. So Ctrl+C does not end this process; the
        # parent process ends it.
        with interrupts_blocked(), garbage_kept():
            self._process.start()
        theirs.close()
        self._readable = select.poll()
        self._readable.register(self._pipe, select.POLLIN)
        self._unanswered: deque[list[Any]] = deque()

    def submit(self, k: int, *arguments: Any) -> Result:
        if len(self._unanswered) == UNREAD:
            self._receive()
        answer: list[Any] = []  # empty until the answer arrives
        # If Ctrl+C came between `send_bytes` and `append`, the answer would have no entry in
        # `_unanswered`.
        with interrupts_blocked():
            try:
                self._pipe.send_bytes(pickle.dumps((k, arguments)))
            except OSError:
                raise self._broken() from None
            self._unanswered.append(answer)
        return lambda: self._result(answer)

    def _result(self, answer: list[Any]) -> Any:
        while not answer:
            self._receive()
        result, error, where = answer
        if error is not None:
            raise error from _Remote(where)
        return result

    def _receive(self) -> None:
        """Receive the next answer; Ctrl+C can interrupt the wait, but not the reading."""
        self._readable.poll()
        with interrupts_blocked():
            try:
                message = self._pipe.recv_bytes()
            except (EOFError, OSError):
                raise self._broken() from None
            self._unanswered.popleft().extend(pickle.loads(message))

    @staticmethod
    def _broken() -> BrokenProcessPool:
        return BrokenProcessPool('a process that computes gradients was killed or has ended; is '
                                 'there enough memory?')

    def close(self) -> None:
        self._pipe.close()

    def join(self) -> None:
        self._process.join(ENDING)
        self._process.kill()
        self._process.join()


class _Thread:
    """Makes calls like `_Process`, but in a thread of this process."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._pool = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))

    def submit(self, k: int, *arguments: Any) -> Result:
        return self._pool.submit(self._work[k], *arguments).result

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        self._pool.shutdown(wait=True)


class _Remote(Exception):
    """Carries the traceback of an error that was raised in another process."""


def _may_fork() -> bool:
    # Do not fork if there is a GPU, because PyTorch then has threads, which do not survive a fork.
    # Do not fork in a daemonic process either: it may not start child processes.
    return hasattr(os, 'fork') and not torch.cuda.is_available() \
        and not multiprocessing.current_process().daemon


def _serve(work: Work, pipe: Connection, others: Connection) -> None:
    """Answer each call with (result, error, traceback) until the pipe is closed.

    This function runs in a forked process.
    """
    keep_parents_objects()
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    others.close()  # this copy of the parent's side would keep the pipe open after the parent exits
    try:
        while True:
            k, arguments = pickle.loads(pipe.recv_bytes())
            pipe.send_bytes(_answer(work[k], arguments))
    except (EOFError, OSError):
        return


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _answer(call: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
    try:
        return pickle.dumps((call(*arguments), None, ''))
    except BaseException as error:  # includes a SystemExit that a task raises
        where = f'\n\n{traceback.format_exc()}'
        try:
            answer = pickle.dumps((None, error, where))
            pickle.loads(answer)  # fails if the error's constructor does not accept `error.args`
            return answer
        except Exception:
            return pickle.dumps((None, RuntimeError(f'{type(error).__name__}: {error}'), where))
