"""Keeps uploaded weights, named by their SHA-256: each weight is sent once and stored once.

Each weight is a file in host memory that the processes of all programs map. The processes share the
pages of this file; a process that writes to its tensor gets private pages. The least recently used
weight is deleted first. A process that has mapped a deleted weight can still use it.

Kept weights only save time. So an `OSError`, such as a full disk or no file descriptor left, means
that a weight is not kept or not found; it ends no program.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import re
from pathlib import Path
from typing import Any

from ..protocol.errors import OutOfMemory, RemoteError

_DIGEST = re.compile('[0-9a-f]{64}')


class Weights:
    """Keeps weights in `folder`, at most `limit` bytes in total; keeps none if `folder` is None."""

    def __init__(self, limit: int = 0, folder: Path | None = None) -> None:
        self.limit = limit
        self.folder = folder

    @property
    def used(self) -> int:
        """Number of bytes of all kept weights; 0 if the folder cannot be read."""
        try:
            return sum(size for _, size, _ in self._kept())
        except OSError:
            return 0

    def find(self, digest: str, size: int) -> mmap.mmap | None:
        """Return the bytes of a weight as private writable memory; None if they are not kept."""
        if self.folder is None or not _DIGEST.fullmatch(digest):
            return None
        try:
            with (self.folder / digest).open('rb') as file:
                os.utime(file.fileno())
                if os.fstat(file.fileno()).st_size != size:
                    return None
                return _mapped(file.fileno(), size)
        except OSError:
            return None

    def keep(self, data: Any, digest: str) -> mmap.mmap | None:
        """Keep a copy of `data`; return this copy in the form that `find` returns.

        Return None if the copy cannot be kept. Raises RemoteError for a wrong digest.
        """
        if hashlib.sha256(data).hexdigest() != digest:
            raise RemoteError(f'weights of {len(data)} bytes do not have the digest {digest[:64]}')
        size = len(data)
        if self.folder is None or not 0 < size <= self.limit:
            return None
        try:
            # If the process ends, the operating system releases the lock.
            with (self.folder / 'lock').open('w') as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                found = self.find(digest, size)
                if found is not None:
                    return found
                self._make_room(size)
                new = self.folder / 'new'
                try:
                    new.write_bytes(data)
                    new.replace(self.folder / digest)
                finally:
                    new.unlink(missing_ok=True)
        except OSError:
            return None
        return self.find(digest, size)

    def _make_room(self, size: int) -> None:
        kept = sorted(self._kept())
        used = sum(size for _, size, _ in kept)
        for _, freed, path in kept:
            if used + size <= self.limit:
                return
            Path(path).unlink(missing_ok=True)
            used -= freed

    def _kept(self) -> list[tuple[int, int, str]]:
        """Return (last use in ns, size, path) of each weight."""
        found = []
        for entry in os.scandir(self.folder) if self.folder is not None else ():
            if _DIGEST.fullmatch(entry.name):
                try:
                    status = entry.stat()
                except FileNotFoundError:   # another process has deleted the file
                    continue
                found.append((status.st_mtime_ns, status.st_size, entry.path))
        return found


def _mapped(file: int, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(file, size, access=mmap.ACCESS_COPY)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise OutOfMemory(f'weights of {size >> 20} MiB cannot be mapped: {error}') from error
