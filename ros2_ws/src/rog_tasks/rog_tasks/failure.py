"""Says in one line which error a task's own code has raised, and where."""

from __future__ import annotations

import inspect
import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rog_tasks.errors import SourceClosed, TaskError, TaskFailed

_LIBRARIES = tuple(os.path.join(sysconfig.get_path(name), '')
                   for name in ('stdlib', 'purelib', 'platlib'))


@contextmanager
def named_failures(task: Any, besides: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise `TaskFailed`, with the text of `failure`, in place of an error of the task's code.

    :param besides: classes of errors that pass unchanged, in addition to the errors of this
        package.
    """
    passed: tuple[type[Exception], ...] = (TaskError, SourceClosed, *besides)
    try:
        yield
    except passed:
        raise
    except Exception as error:
        raise TaskFailed(failure(task, error)) from error


def failure(task: Any, error: BaseException) -> str:
    """Return a text such as "the task failed: TypeError: ... (own_task.py line 31, in loss)".

    Only the first line of an error's text is returned.
    """
    return f'the task failed: {shortened(error)}{where(task, error)}'


def shortened(error: BaseException) -> str:
    """Return the class of an error and the first line of its text."""
    said = str(error).strip().partition('\n')[0]
    return type(error).__name__ + (f': {said}' if said else '')


def where(owner: Any, error: BaseException) -> str:
    """Return where an error was raised, such as " (own_task.py line 31, in loss)".

    The place is the innermost line of the traceback that is in ``owner``, a class or an object of
    one, or in code that it calls; lines of libraries do not count. If the owner itself is not in
    the traceback, the place is where the error was raised. Without a traceback the result is ''.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ''
    own, *bases = (owner if isinstance(owner, type) else type(owner)).__mro__
    files = {file for cls in (own, *bases) if (file := _file(cls)) and
             (cls is own or not file.startswith(_LIBRARIES))}
    first = next((k for k, frame in enumerate(frames) if frame.filename in files), None)
    if first is None:
        place = frames[-1]
    else:
        place = [frame for frame in frames[first:] if frame.filename in files or not
                 frame.filename.startswith((*_LIBRARIES, '<'))][-1]
    return f' ({os.path.basename(place.filename)} line {place.lineno}, in {place.name})'


def _file(cls: type) -> str:
    try:
        return inspect.getfile(cls)
    except (TypeError, OSError):  # a built-in class, or a class that was defined in a terminal
        return ''
