"""The images in a folder or an archive of class folders, read in place.

An image's class is the name of the folder that holds it. Nothing is unpacked to disk. From a plain
tar or a zip, only the bytes of the image are read. This is impossible with a compressed tar, so the
encoded images that one robot needs are held in memory.
"""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from fleet_env.pictures import LARGEST, SUFFIXES, Picture

from rog_tasks.errors import DataError

ARCHIVES = ('.tar', '.tar.gz', '.tgz', '.zip')


class Files:
    """Image files below ``path``, which is a folder or an archive.

    ``names`` are the sorted names of the images. ``others`` are the names of the files that are not
    images; hidden files are left out.

    :param memory: maximum bytes that the encoded images of a compressed tar may take in memory.
    :raises DataError: the path is missing, cannot be read or holds no images. An archive is also
        refused if it contains a link, or a name that leads out of the archive, because this can be
        an attack.
    """

    def __init__(self, path: str, memory: float) -> None:
        self.path = Path(path)
        self._memory = memory
        # name -> encoded image; None: ``path`` is not a compressed tar
        self._held: dict[str, bytes] | None = None
        self._size: Callable[[str], int]
        self._read: Callable[[str], bytes]
        if self.path.is_dir():
            names = self._folder()
        elif not self.path.is_file():
            raise DataError(f'{self.path.absolute()} is not there; name a folder or an archive '
                            f'({", ".join(ARCHIVES)}) of class folders')
        elif self.path.suffix == '.zip':
            names = self._zip()
        elif self.path.name.endswith(ARCHIVES):
            names = self._tar()
        else:
            raise DataError(f'{self.path} is neither a folder nor an archive '
                            f'({", ".join(ARCHIVES)})')
        self.names = sorted(filter(is_image, names))
        self.others = sorted(n for n in names if not is_image(n) and not is_hidden(n))
        if not self.names:
            raise DataError(f'{self.path} holds no images ({", ".join(SUFFIXES)})')

    def class_of(self, name: str) -> str:
        """Return the name of the folder that holds an image."""
        return PurePosixPath(name).parent.name or self.path.name

    def hold(self, names: Collection[str]) -> None:
        """Load these images into memory if ``path`` is a compressed tar.

        `read` finds images of a compressed tar only in memory, because it does not unpack the
        tar.

        :raises DataError: the images would take more memory than is allowed.
        """
        if self._held is None:
            return  # images are read in place
        needed = sum(map(self._size, self._held.keys() | set(names)))
        if needed > self._memory:
            raise DataError(f'{self.path}: its images take {needed / 2**20:.1f} MiB of memory, '
                            f'{self._memory / 2**20:g} are allowed; unpack it to a folder, or '
                            'raise memory')
        wanted = set(names) - self._held.keys()
        if not wanted:
            return
        with self._errors(), tarfile.open(self.path, 'r|gz') as archive:
            for member in archive:
                if member.name in wanted and member.size == self._size(member.name):
                    stream = archive.extractfile(member)
                    self._held[member.name] = stream.read() if stream else b''

    def read(self, name: str) -> Picture:
        """Return an image.

        :raises DataError: a file is too large or cannot be read; the message names the file.
        """
        shown = f'{self.path}/{name}' if self.path.is_dir() else f'{name} in {self.path}'
        try:
            size = self._size(name)
            if not 0 < size <= LARGEST:
                raise DataError(f'{shown}: {size} bytes; an image has 1 to {LARGEST}')
            return Picture(shown, self._read(name))
        except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:
            raise DataError(f'{shown}: cannot be read: {error}') from error

    def _folder(self) -> list[str]:
        def size(name: str) -> int:
            status = (self.path / name).stat()
            if not stat.S_ISREG(status.st_mode):
                raise OSError('it is not a regular file')
            return status.st_size
        self._size, self._read = size, lambda name: (self.path / name).read_bytes()
        with self._errors():
            return list(_below(self.path, '', frozenset()))

    def _zip(self) -> list[str]:
        with self._errors():
            archive = zipfile.ZipFile(self.path)
        self._size, self._read = lambda name: archive.getinfo(name).file_size, archive.read
        for info in archive.infolist():
            self._check(info.filename, stat.S_ISLNK(info.external_attr >> 16))
        # If two files have the same name, the last one counts, as in a tar.
        return list({info.filename: None for info in archive.infolist() if not info.is_dir()})

    def _tar(self) -> list[str]:
        places = {}
        plain = self.path.suffix == '.tar'
        with self._errors(), tarfile.open(self.path, 'r|' if plain else 'r|gz') as archive:
            for member in archive:
                self._check(member.name, member.issym() or member.islnk())
                if member.isreg():
                    places[member.name] = member.offset_data, member.size
        self._size = lambda name: places[name][1]
        if plain:
            self._read = lambda name: _part(self.path, *places[name])
        else:
            self._held = {}
            self._read = self._held.__getitem__
        return list(places)

    def _check(self, name: str, link: bool) -> None:
        """Refuse a link, or a name that leads out of the archive."""
        path = PurePosixPath(name.replace('\\', '/'))
        if link or path.is_absolute() or '..' in path.parts:
            what = 'is a link' if link else 'leads out of the archive'
            raise DataError(f'{name[:200]!r} in {self.path} {what}; an archive must hold only '
                            'folders and files')

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f'{self.path} cannot be read: {error}; is it whole?') from error


def is_image(name: str) -> bool:
    """Return whether a file has the suffix of an image and is not hidden."""
    return name.lower().endswith(SUFFIXES) and not is_hidden(name)


def is_hidden(name: str) -> bool:
    """Return whether a part of a name begins with a dot, as in ._name.jpg of macOS."""
    return any(part.startswith('.') for part in PurePosixPath(name).parts if part != '..')


def _below(folder: Path, prefix: str, above: frozenset[str]) -> Iterator[str]:
    """Yield the names of the files below a folder; follow links, but not to a folder above.

    :param above: the real paths of the folders that contain ``folder``.
    """
    real = os.path.join(os.path.realpath(folder), '')
    if any(one.startswith(real) for one in above):
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir():
                yield prefix + entry.name
            elif not is_hidden(entry.name):
                yield from _below(Path(entry.path), f'{prefix}{entry.name}/', above | {real})


def _part(path: Path, start: int, size: int) -> bytes:
    with path.open('rb') as stream:
        stream.seek(start)
        return stream.read(size)
