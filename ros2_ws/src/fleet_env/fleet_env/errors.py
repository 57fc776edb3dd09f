"""Errors in files and settings; each message says where the fault is and how to correct it."""

import difflib
import os
from collections.abc import Iterable


class FleetEnvError(ValueError):
    """Base of all errors in files and settings, with file, line and message.

    :param message: what is wrong and what to do, one sentence each.
    :param file: path of the file, empty when the value does not come from a file.
    :param line: 1-based line number, 0 when it is not known.
    """

    def __init__(self, message: str, file: str = '', line: int = 0):
        where = file + (f', line {line}' if line else '')
        super().__init__(f'{where}: {message}' if where else message)
        self.message = message
        self.file = file
        self.line = line


def why_unread(error: Exception, path: str | os.PathLike[str]) -> str:
    """Return a text that says why the file ``path`` cannot be read.

    If the file does not exist, the text names the folder in which it should be.
    """
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    if isinstance(error, FileNotFoundError):
        folder = os.path.dirname(os.path.abspath(path))
        return f'there is no such {"file in" if os.path.isdir(folder) else "folder as"} {folder}'
    return error.strerror


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return "did you mean X?" with the most similar known word X; '' if none is similar."""
    near = difflib.get_close_matches(given, known, 1)
    return f'did you mean {near[0]!r}?' if near else ''


class TraceError(FleetEnvError):
    """A link trace cannot be read, or its samples are invalid."""


class SettingError(FleetEnvError):
    """A setting is unknown, has the wrong type or is out of bounds.

    ``path``: keys that lead from the top of the settings to this setting.
    """

    def __init__(self, message: str, file: str = '', line: int = 0,
                 path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message, file, line)
        self.path = path


class FleetFileError(SettingError):
    """A fleet file, or an override of one of its settings, is invalid; no setting has changed."""


class RecordError(FleetEnvError):
    """A run record (run.jsonl, summary.json) cannot be read or written."""


class PictureError(FleetEnvError):
    """An image (`fleet_env.pictures`) is invalid or cannot be decoded; the message names it."""


class PackageError(FleetEnvError):
    """An optional package is needed and not installed; the message says how to install it."""


class DurableError(FleetEnvError):
    """A save (`fleet_env.durable`) cannot be written, or every save is damaged."""


class VersionError(FleetEnvError):
    """A version of a model (`fleet_env.versions`) cannot be found, read or written."""


class WeightsError(VersionError):
    """The weights in a file cannot be used for a model; the message names file and tensor."""
