"""Errors of a task or its data; each says how its author can correct it."""


from collections.abc import Sequence


class TaskError(ValueError):
    """A task that does not load, or an option of it that is refused."""


class DataError(TaskError):
    """A data set that is missing, unreadable or not what its loader expects."""


class SourceClosed(Exception):
    """The run is over, and so is waiting for a camera; no more batches come."""


def some(names: Sequence[str], most: int = 10) -> str:
    """Return a list for a message that stays readable however many names there are."""
    return ', '.join(names[:most]) + (f', ... ({len(names)})' if len(names) > most else '')
