"""Errors of a task or its data; each says how to correct it."""


from collections.abc import Sequence


class TaskError(ValueError):
    """A task cannot be loaded, or has an invalid option."""


class DataError(TaskError):
    """A data set is missing, unreadable, or not what its loader expects."""


class TaskFailed(TaskError):
    """A method of the task has raised an exception, which is the cause; the text says where."""


class SourceClosed(Exception):
    """The run has ended, so waiting for a camera has ended and no more batches come."""


def some(names: Sequence[str], most: int = 10) -> str:
    """Return the first ``most`` names as a list for a message; if there are more, say how many."""
    return ', '.join(names[:most]) + (f', ... ({len(names)})' if len(names) > most else '')
