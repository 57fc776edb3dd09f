"""Errors of a task or its data; the text of each error says how to correct the error."""


from collections.abc import Sequence


class TaskError(ValueError):
    """A task cannot be loaded, or has an invalid option."""


class DataError(TaskError):
    """A data set is missing, unreadable, or not what its loader expects."""


class TaskFailed(TaskError):
    """A method of the task has raised an exception.

    This exception is the cause of the error; the text says where it was raised.
    """


class SourceClosed(Exception):
    """The run has ended: no more batches come, and waiting calls raise this error."""


def some(names: Sequence[str], most: int = 10) -> str:
    """Return the first ``most`` names for a message; if there are more, append the total number."""
    return ', '.join(names[:most]) + (f', ... ({len(names)})' if len(names) > most else '')
