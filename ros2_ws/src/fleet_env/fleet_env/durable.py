"""Saves that survive a crash and a full disk; a digest shows whether a save is damaged.

A *save* is a pair of files: the payload, for example ``NAME-000012.safetensors``, and
``NAME-000012.json``, whose digest covers both. Each is written to a temporary file, flushed to the
disk and renamed. The JSON file is the last, so a payload without its JSON file does not count as a
save. The module imports only the standard library, so that a process can detect damage before it
imports anything else.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from fleet_env.errors import DurableError

_PROBE = 1 << 16  # bytes that `Kept.probe` writes as a test


def hold(path: Path, who: str) -> int:
    """Lock a directory by a file in it, until this process ends or closes the returned handle.

    :param who: role of this process for the error message, such as ``parameter server``.
    :param path: the lock file in this directory.
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
    """An undamaged save; ``path`` is the path of the payload."""

    path: Path
    payload: bytes
    meta: dict[str, Any]


class Kept:
    """The saves called ``name`` in a directory; :meth:`write` keeps only the newest ``keep``.

    ``skipped`` lists the damaged saves that :meth:`newest` found, with the reason.
    """

    def __init__(self, directory: Path, name: str, suffix: str, keep: int = 1) -> None:
        self.directory, self.name, self.suffix, self.keep = directory, name, suffix, keep
        self.skipped: list[str] = []

    def numbers(self) -> list[int]:
        """Return the numbers of all saves, ascending."""
        return self._numbers_of('.json')

    def _numbers_of(self, suffix: str) -> list[int]:
        pattern = re.compile(re.escape(self.name) + r'-([0-9]{6,})' + re.escape(suffix))
        try:
            found = [pattern.fullmatch(entry) for entry in os.listdir(self.directory)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DurableError(f'{self.directory} cannot be read: {error.strerror}') from None
        return sorted(int(match[1]) for match in found if match)

    def path(self, number: int, suffix: str = '') -> Path:
        """Return the path of a save's payload; with ``suffix``, of its file with this suffix."""
        return self.directory / f'{self.name}-{number:06d}{suffix or self.suffix}'

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

        The probe does not create the directory, because a later check may still end the run.
        """
        try:
            self.tidy()
            place = next(p for p in (self.directory, *self.directory.absolute().parents)
                         if p.exists())
            os.unlink(self._temporary(bytes(_PROBE), place))
        except OSError as error:
            raise DurableError(f'{self.directory} cannot be written: {error.strerror}') from None

    def write(self, payload: bytes, meta: dict[str, Any]) -> Path:
        """Write a save, then delete the oldest ones; return the path of its payload.

        :raises DurableError: the save could not be written; all former saves are unchanged.
        """
        there = self.numbers()
        number = there[-1] + 1 if there else 1
        path = self.path(number)
        # The digest covers the values as a reader will get them from JSON.
        meta = {**json.loads(json.dumps(meta)), 'payload': _digest(payload)}
        text = json.dumps({**meta, 'digest': _digest(_text(meta))}, indent=1)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            os.replace(self._temporary(payload), path)
            try:
                os.replace(self._temporary(text.encode()), self.path(number, '.json'))
            except BaseException:
                path.unlink()
                raise
            self._flush_directory()
            oldest = [*there, number][-self.keep:][0]
            # JSON first: if the process is killed in between, only a payload is left over.
            for suffix in ('.json', self.suffix):
                for old in self._numbers_of(suffix):
                    if old < oldest:
                        self.path(old, suffix).unlink()
        except OSError as error:
            raise DurableError(f'{path} cannot be written: {error.strerror}') from None
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
        try:
            meta = json.loads(self.path(number, '.json').read_bytes())
            if not isinstance(meta, dict) or meta.pop('digest', '') != _digest(_text(meta)):
                return 'its JSON file was changed after it was written'
            payload = self.path(number).read_bytes()
        except OSError as error:
            return f'{error.filename}: {error.strerror}'
        except ValueError:
            return 'its JSON file does not hold JSON'
        if meta.pop('payload') != _digest(payload):
            return 'it was changed after it was written'
        return Save(self.path(number), payload, meta)

    def _temporary(self, data: bytes, place: Path | None = None) -> str:
        handle, path = tempfile.mkstemp(dir=place or self.directory, prefix=f'.{self.name}-')
        try:
            with os.fdopen(handle, 'wb') as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            os.unlink(path)
            raise
        return path

    def _flush_directory(self) -> None:
        handle = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _text(meta: dict[str, Any]) -> bytes:
    return json.dumps(meta, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()
