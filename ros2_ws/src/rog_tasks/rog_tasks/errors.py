"""What can be wrong with a task or its data, said so that its author can put it right."""


class TaskError(ValueError):
    """A task that does not load, or an option of it that is refused."""


class DataError(TaskError):
    """A data set that is missing, unreadable or not what its loader expects."""
