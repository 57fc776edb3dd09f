"""Calls a function in a process of its own, which leaves nothing behind in this one."""

import gc
import multiprocessing
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

ENDING = 5.0  # seconds that the process may use to end after its answer


class NoAnswer(Exception):
    """The process did not answer in time."""


class Ended(Exception):
    """The process was killed, or has ended, before it answered."""


class Remote(Exception):
    """Carries the traceback of an error that was raised in the other process."""


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Collect no garbage while a process is forked; the new one calls `keep_parents_objects`.

    If a forked process collected objects of its parent, it would end what they stand for, such as
    threads of DDS, which it does not have.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def keep_parents_objects() -> None:
    """Exclude the objects of the parent from the garbage collection of a forked process."""
    gc.freeze()
    gc.enable()


def call_apart(call: Callable[[], Any], limit: float) -> Any:
    """Return what ``call`` returns in a forked process, or raise what it raises.

    The process computes with one thread. Memory, random states and data that ``call`` changes
    stay as they are in this process.

    :param limit: seconds after which the process is killed.
    :raises NoAnswer: the process took longer than ``limit``.
    :raises Ended: the process was killed, or ended by itself.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    context = multiprocessing.get_context('fork')
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(call, theirs, ours), daemon=True)
    with garbage_kept():
        process.start()
    theirs.close()
    try:
        if not ours.poll(limit):
            raise NoAnswer
        try:
            result, error, where = pickle.loads(ours.recv_bytes())
        except (EOFError, OSError):
            raise Ended from None
        process.join(ENDING)
    finally:
        ours.close()
        process.kill()
        process.join()
    if error is not None:
        raise error from Remote(where)
    return result


def _answer(call: Callable[[], Any], pipe: Connection, others: Connection) -> None:
    import torch

    keep_parents_objects()
    others.close()
    torch.set_num_threads(1)
    try:
        answer = pickle.dumps((call(), None, ''))
    except KeyboardInterrupt:  # the parent process gets it, too
        return
    except BaseException as error:  # includes a SystemExit that a task raises
        where = f'\n\n{traceback.format_exc()}'
        try:
            answer = pickle.dumps((None, error, where))
            pickle.loads(answer)  # fails if the error's constructor does not accept `error.args`
        except Exception:
            answer = pickle.dumps((None, RuntimeError(f'{type(error).__name__}: {error}'), where))
    pipe.send_bytes(answer)
