"""Bytes of uploads by SHA-256: a program's weights cross the link once and are on the host once.

Each is a file in memory, which the processes of all programs map: they share its pages, and who
writes to its tensor gets pages of its own. What was used longest ago goes first; who has mapped it
keeps it.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import re
from pathlib import Path
from typing import Any

from .errors import OutOfMemory, RemoteError

_DIGEST = re.compile('[0-9a-f]{64}')


class Weights:
    """At most `limit` bytes are kept in `folder`; without one nothing is."""

    def __init__(self, limit: int = 0, folder: Path | None = None) -> None:
        self.limit = limit
        self.folder = folder

    @property
    def used(self) -> int:
        """Bytes that are kept."""
        return sum(size for _, size, _ in self._kept())

    def find(self, digest: str, size: int) -> mmap.mmap | None:
        """The bytes, if they are here: memory to be written to, whose changes nobody else sees."""
        if self.folder is None or not _DIGEST.fullmatch(digest):
            return None
        try:
            with (self.folder / digest).open('rb') as file:
                os.utime(file.fileno())
                if os.fstat(file.fileno()).st_size != size:
                    return None
                return _mapped(file.fileno(), size)
        except FileNotFoundError:
            return None

    def keep(self, data: Any, digest: str) -> mmap.mmap | None:
        """Keep a copy; the bytes as `find` gives them, None if they are too many to keep.

        Raises RemoteError if the digest is not theirs.
        """
        if hashlib.sha256(data).hexdigest() != digest:
            raise RemoteError(f'weights of {len(data)} bytes do not have the digest {digest[:64]}')
        size = len(data)
        if self.folder is None or not 0 < size <= self.limit:
            return None
        with (self.folder / 'lock').open('w') as lock:   # the end of a process lets it go, too
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = self.find(digest, size)
            if found is not None:
                return found
            self._make_room(size)
            new = self.folder / 'new'
            try:
                new.write_bytes(data)
                new.replace(self.folder / digest)
            except OSError:   # the machine has no room for it
                new.unlink(missing_ok=True)
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
        """Time of the last use in nanoseconds, size and path of each."""
        found = []
        for entry in os.scandir(self.folder) if self.folder is not None else ():
            if _DIGEST.fullmatch(entry.name):
                try:
                    status = entry.stat()
                except FileNotFoundError:   # another process has let it go
                    continue
                found.append((status.st_mtime_ns, status.st_size, entry.path))
        return found


def _mapped(file: int, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(file, size, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise OutOfMemory(f'weights of {size >> 20} MiB can not be mapped: {error}') from error
