"""Errors in files and settings; each says where it is and how to correct it."""


class FleetEnvError(ValueError):
    """A file, a line of it, what is wrong there and what to do.

    :param message: what is wrong and what to do, one sentence each.
    :param file: path of the file, empty when the value did not come from one.
    :param line: 1-based line number, 0 when it is not known.
    """

    def __init__(self, message: str, file: str = '', line: int = 0):
        where = file + (f', line {line}' if line else '')
        super().__init__(f'{where}: {message}' if where else message)
        self.message = message
        self.file = file
        self.line = line


class TraceError(FleetEnvError):
    """A link trace that cannot be read, or whose samples make no sense."""


class SettingError(FleetEnvError):
    """A setting that is unknown, of the wrong type, or out of its bounds; ``path``: its keys."""

    def __init__(self, message: str, file: str = '', line: int = 0,
                 path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message, file, line)
        self.path = path


class FleetFileError(SettingError):
    """A fleet file, or an override of one, that is refused; nothing has changed."""


class RecordError(FleetEnvError):
    """A run record (run.jsonl, summary.json) that cannot be read or written."""


class DurableError(FleetEnvError):
    """A save (`fleet_env.durable`) cannot be written, or none of those there can be used."""
