"""Errors of a task or its data; each says how its author can correct it."""


class TaskError(ValueError):
    """A task that does not load, or an option of it that is refused."""


class DataError(TaskError):
    """A data set that is missing, unreadable or not what its loader expects."""
