"""Saves that survive a crash and a full disk.

A *save* is a safetensors file, for example ``NAME-000012.safetensors``. Its metadata
hold the values that are not tensors, and a digest of everything else in the file. The
digest shows whether the save is damaged. A save is first written to a temporary file;
this file is then flushed to the disk and renamed. The module imports only the standard
library, so that a process can detect damage before it imports anything else.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fleet_env.errors import DurableError

_PROBE = 1 << 16  # bytes that `Kept.probe` writes as a test


def cache_folder(name: str) -> Path:
    """Return the folder of what may be deleted at any time: $XDG_CACHE_HOME/name."""
    return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / name


def read_file(path: str | os.PathLike[str], start: int = 0, end: int | None = None) -> bytes:
    """Return the content of a file, or its bytes from ``start`` to ``end``.

    :raises OSError: the file cannot be read, or is a device or a pipe, which possibly has
        no end.
    """
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, 'it is not a regular file', os.fspath(path))
    with Path(path).open('rb') as file:
        file.seek(start)
        return file.read(-1 if end is None else max(end - start, 0))


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file; an OSError names the file, also if the disk is full."""
    try:
        Path(path).write_text(text, encoding='utf-8')
    except OSError as error:
        # open() puts the file's name into its error; write() does not
        error.filename = os.fspath(path)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Write a file in one step: a program that reads it meanwhile sees the former one.

    :raises OSError: it cannot be written; the former file is unchanged.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}-')
    try:
        with os.fdopen(handle, 'wb') as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def flush(path: Path) -> None:
    """Flush a file, or the list of names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def finite(value: Any) -> Any:
    """Return ``value`` with None for each float that is NaN or infinite, which JSON cannot hold."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def hold(path: Path, who: str) -> int:
    """Lock a directory until this process ends or closes the returned handle.

    :param path: path of the lock file; its parent is the directory to lock.
    :param who: role of this process for the error message, such as ``parameter server``.
    :raises DurableError: another process has locked the directory, or it cannot be written.
    """
    directory = path.parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # Child processes do not inherit this kind of lock.
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise DurableError(f'another {who} that is still running writes to {directory}; stop '
                               'it, or choose another out directory') from None
    except OSError as error:
        raise DurableError(f'{directory} cannot be written: {error.strerror}') from None
    return handle


class Save(NamedTuple):
    """An undamaged save; ``content``: the bytes of the file, in the format of safetensors."""

    path: Path
    content: bytes
    meta: dict[str, Any]


class Kept:
    """The saves called ``name`` in a directory; :meth:`write` keeps only the newest ``keep``.

    ``skipped`` lists the damaged saves that :meth:`newest` found, with the reason.
    """

    def __init__(self, directory: Path, name: str, keep: int = 1) -> None:
        self.directory, self.name, self.keep = directory, name, keep
        self.skipped: list[str] = []

    def numbers(self) -> list[int]:
        """Return the numbers of all saves, ascending."""
        pattern = re.compile(re.escape(self.name) + r'-([0-9]{6,})\.safetensors')
        try:
            found = [pattern.fullmatch(entry) for entry in os.listdir(self.directory)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DurableError(f'{self.directory} cannot be read: {error.strerror}') from None
        return sorted(int(match[1]) for match in found if match)

    def path(self, number: int) -> Path:
        """Return the path of a save."""
        return self.directory / f'{self.name}-{number:06d}.safetensors'

    def tidy(self) -> None:
        """Remove the temporary files that a killed process left behind.

        :raises DurableError: a file cannot be removed.
        """
        try:
            for left in self.directory.glob(f'.{self.name}-*'):
                left.unlink()
        except OSError as error:
            raise DurableError(f'{self.directory} cannot be written: {error.strerror}') from None

    def probe(self) -> None:
        """Raise :class:`DurableError` unless the directory can be written now.

        The directory is not created if it does not exist, because a later check may still refuse
        the run.
        """
        try:
            self.tidy()
            place = next(p for p in (self.directory, *self.directory.absolute().parents)
                         if p.exists())
            os.unlink(self._temporary(bytes(_PROBE), place=place))
        except OSError as error:
            raise DurableError(f'{self.directory} cannot be written: {error.strerror}') from None

    def write(self, tensors: bytes, meta: dict[str, Any]) -> Path:
        """Write a save, then delete all but the newest ``keep`` saves; return its path.

        :param tensors: a file in the format of safetensors, without metadata.
        :param meta: JSON values.
        :raises DurableError: the save could not be written; all former saves are unchanged.
        """
        there = self.numbers()
        number = there[-1] + 1 if there else 1
        path = self.path(number)
        header, body = _split(tensors)
        metadata = header['__metadata__'] = {'meta': json.dumps(meta)}
        metadata['digest'] = _digest(header, body)
        text = json.dumps(header).encode()
        text += b' ' * (-len(text) % 8)  # align the tensors to 8 bytes
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            os.replace(self._temporary(len(text).to_bytes(8, 'little') + text, body), path)
            flush(self.directory)
        except OSError as error:
            raise DurableError(f'{path} cannot be written: {error.strerror}') from None
        for old in [*there, number][:-self.keep]:
            # if the old save cannot be deleted, it remains; the new save is complete
            with suppress(OSError):
                self.path(old).unlink()
        return path

    def newest(self) -> Save | None:
        """Return the newest undamaged save; None if there is no save at all.

        :raises DurableError: all saves are damaged; the message names each with the reason.
        """
        self.skipped = []
        for number in reversed(self.numbers()):
            found = self._read(number)
            if isinstance(found, Save):
                return found
            self.skipped.append(f'{self.path(number)} cannot be used: {found}')
        if self.skipped:
            raise DurableError('; '.join(self.skipped))
        return None

    def _read(self, number: int) -> Save | str:
        """Return a save, or the reason why it cannot be used."""
        path = self.path(number)
        try:
            content = read_file(path)
            header, body = _split(content)
            digest = header['__metadata__'].pop('digest')
            if digest == _digest(header, body):
                return Save(path, content, json.loads(header['__metadata__']['meta']))
        except OSError as error:
            return error.strerror or type(error).__name__
        except (ValueError, TypeError, AttributeError):
            pass
        except KeyError:
            return 'it has no digest, as saves of earlier versions'
        return 'it was changed after it was written'

    def _temporary(self, *parts: bytes | memoryview, place: Path | None = None) -> str:
        handle, path = tempfile.mkstemp(dir=place or self.directory, prefix=f'.{self.name}-')
        try:
            with os.fdopen(handle, 'wb') as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            os.unlink(path)
            raise
        return path


def _split(content: bytes) -> tuple[dict[str, Any], memoryview]:
    """Return the header of a safetensors file, and the bytes of its tensors."""
    size = int.from_bytes(content[:8], 'little')
    header = json.loads(content[8:8 + size])
    return header, memoryview(content)[8 + size:]


def _digest(header: dict[str, Any], body: memoryview) -> str:
    state = hashlib.blake2b(json.dumps(header, sort_keys=True).encode(), digest_size=32)
    state.update(body)
    return state.hexdigest()
