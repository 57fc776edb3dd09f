"""Keeps weights on the disk, named by their SHA-256: each is sent once and stored once.

All servers of a machine share one folder, so a weight that one of them has got is there for the
others, and after a restart. Each weight is a file that processes map. They share its pages; a
process that writes to its tensor gets private pages. The least recently used weight is deleted
first. A process that has mapped a deleted weight can still use it. A file that was damaged, as by a
loss of power, is found by its digest and deleted.

Kept weights only save time. So an `OSError`, such as a full disk or no file descriptor left, means
that a weight is not kept or not found; it ends no program.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import mmap
import os
import re
from pathlib import Path
from typing import Any

from fleet_env.durable import cache_folder
from fleet_env.errors import SettingError
from fleet_env.settings.base import Settings, setting

FOLDER = 'weights'     # name of the folder of weights in a server's folder
_DIGEST = re.compile('[0-9a-f]{64}')


class Weights:
    """Keeps weights in `folder`, at most `limit` bytes in total; keeps none if `folder` is None.

    `proved`: a folder that does not outlast the machine's power, for marks of the weights that need
    not be checked again; None: each is checked whenever it is found.
    """

    def __init__(self, limit: int = 0, folder: Path | None = None, proved: Path | None = None
                 ) -> None:
        self.limit = limit
        self.folder = folder
        self._proved = proved

    @property
    def used(self) -> int:
        """Number of bytes of all kept weights; 0 if the folder cannot be read."""
        try:
            return sum(size for _, size, _ in self._kept())
        except OSError:
            return 0

    def has(self, digest: str, size: int) -> bool:
        """Return whether a weight is kept; nothing always is."""
        try:
            return not size or self.folder is not None \
                and (self.folder / digest).stat().st_size == size
        except OSError:
            return False

    def use(self, digest: str) -> None:
        """Count a weight, if it is kept, as used now."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                os.utime(self.folder / digest)

    def find(self, digest: str, size: int) -> mmap.mmap | None:
        """Return the bytes of a weight as private writable memory; None if they are not kept.

        Raises MemoryError.
        """
        try:
            with self._opened(digest, size) as file:
                found = _mapped(file.fileno(), size)
            return found if self._is_right(found, digest) else None
        except OSError:
            return None

    def read(self, digest: str, memory: memoryview) -> bool:
        """Read a weight of the size of `memory` into it; return False if it is not kept."""
        try:
            with self._opened(digest, len(memory)) as file:
                return file.readinto(memory) == len(memory) and self._is_right(memory, digest)
        except OSError:
            return False

    def _opened(self, digest: str, size: int) -> io.FileIO:
        if self.folder is None or not _DIGEST.fullmatch(digest):
            raise FileNotFoundError
        file = io.FileIO(self.folder / digest)
        try:
            os.utime(file.fileno())
            if os.fstat(file.fileno()).st_size != size:
                raise FileNotFoundError
        except OSError:
            file.close()
            raise
        return file

    def _is_right(self, found: Any, digest: str) -> bool:
        if self._proved is not None and (self._proved / digest).exists():
            return True
        if hashlib.sha256(found).hexdigest() != digest:
            assert self.folder is not None
            (self.folder / digest).unlink(missing_ok=True)
            return False
        self._mark(digest)
        return True

    def _mark(self, digest: str) -> None:
        if self._proved is not None:
            (self._proved / digest).touch()

    def keep(self, data: Any, digest: str) -> mmap.mmap | None:
        """Keep a copy of `data`; return this copy in the form that `find` returns.

        Return None if the copy cannot be kept. Raises ValueError for a wrong digest, and
        MemoryError.
        """
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f'weights of {len(data)} bytes do not have the digest {digest[:64]}')
        try:
            self.write(data, digest)
        except OSError:
            return None
        return self.find(digest, len(data))

    def write(self, data: Any, digest: str) -> None:
        """Keep a copy of `data`, whose digest is `digest`. Raises OSError if it cannot be kept."""
        size = len(data)
        if self.folder is None or size > self.limit:
            raise OSError(errno.ENOSPC, f'it takes more than the {self.limit >> 20} MiB for kept '
                                        'weights (parameter disk)')
        if not size:
            return
        # If the process ends, the operating system releases the lock.
        with (self.folder / 'lock').open('w') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.find(digest, size) is not None:
                return
            self._make_room(size)
            new = self.folder / 'new'
            try:
                new.write_bytes(data)
                new.replace(self.folder / digest)
            finally:
                new.unlink(missing_ok=True)
        self._mark(digest)

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
        raise MemoryError(f'weights of {size >> 20} MiB cannot be mapped: {error}') from error


class StoreSettings(Settings):
    """Where a server keeps weights, and how many."""

    directory: str = setting('', 'folder of what robots have sent, the same for all servers of a '
                                 'machine; empty: fleet in $XDG_CACHE_HOME or ~/.cache', empty=True)
    disk: int = setting(16384, 'most disk for kept weights, which need not be sent again', 'MiB',
                        ge=0, le=1 << 24)

    def make_directory(self) -> Path:
        """Return the folder, in which a folder of weights is; create what does not exist.

        :raises SettingError: it cannot be created.
        """
        folder = Path(self.directory).expanduser() if self.directory else cache_folder('fleet')
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / FOLDER).mkdir(0o700, exist_ok=True)
        except OSError as error:
            raise SettingError(f"parameter directory must be a folder or a new one, got '{folder}',"
                               f' which cannot be created: {error.strerror}') from error
        return folder

    def kept_weights(self, proved: Path | None = None) -> Weights:
        """Return the weights in `make_directory`, which it may raise; `proved`: see `Weights`."""
        return Weights(self.disk << 20, self.make_directory() / FOLDER, proved)
