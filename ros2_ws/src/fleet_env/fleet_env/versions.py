"""The versions of a model in a run's folder: written whole, listed, pruned and found.

    models/1/model.safetensors    the model's `state_dict()`: its names and tensors, nothing else
    models/1/version.json         what is known about it, see `Version`
    models/2/...
    models/latest                 a symbolic link to the newest version
    models/pinned                 a link to the version that a person has chosen, if there is one

A version is written to a temporary folder, flushed to the disk and renamed. So a crash leaves only
whole versions, at whatever moment it comes. The module does not need PyTorch; `fleet_env.weights`
reads and writes the tensors.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import typing
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet_env.durable import finite, flush, read_file, write_whole
from fleet_env.errors import VersionError, why_unread

SCHEMA = 'rog-version/1'
MODELS = 'models'                    # folder of the versions in a run's folder
MODEL_FILE = 'model.safetensors'
ABOUT_FILE = 'version.json'
LATEST, PINNED = 'latest', 'pinned'
KEEP = 3                             # number of newest versions that are kept by default
_TEMPORARY = '.version-'             # beginning of the names of folders that are not whole
_NUMBER = re.compile('[1-9][0-9]*')


@dataclass(frozen=True)
class Version:
    """What ``version.json`` says about a version; an unknown number is NaN, and ``null`` there.

    ``parent``: number of the version before it in the run; 0: none. ``run``: name of the run's
    folder. ``method``: synchronisation method. ``time``: date and time of writing, ISO 8601.
    ``accuracy``: the metric of ``task``, 0 to 1, of the model that ``measured_on`` names.
    ``digest``: SHA-256 of the file of the model.
    """

    number: int
    parent: int
    run: str
    fleet: str
    method: str
    iteration: int
    time: str
    accuracy: float
    task: str
    measured_on: str
    measured_by: str
    digest: str

    @property
    def measured(self) -> bool:
        """Return whether the accuracy is known."""
        return not math.isnan(self.accuracy)


class Versions:
    """The versions in a folder ``models``; `write` keeps the newest ``keep``, best and pinned.

    ``skipped`` lists the versions that the last call of `listed` could not read, with the reason.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = KEEP) -> None:
        self.folder, self.keep = Path(folder), keep
        self.skipped: list[str] = []

    def numbers(self) -> list[int]:
        """Return the numbers of all versions, ascending.

        :raises VersionError: the folder cannot be read.
        """
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise VersionError(f'{self.folder} cannot be read: {error.strerror}') from None
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    def path(self, number: int) -> Path:
        """Return the folder of a version."""
        return self.folder / str(number)

    def read(self, number: int) -> Version:
        """Return what is known about a version.

        :raises VersionError: its ``version.json`` cannot be read or is damaged.
        """
        return read_about(self.path(number))

    def listed(self) -> list[Version]:
        """Return all versions that can be read, by ascending number."""
        found = [self._version_or_error(number) for number in self.numbers()]
        self.skipped = [str(one) for one in found if isinstance(one, VersionError)]
        return [one for one in found if isinstance(one, Version)]

    def _version_or_error(self, number: int) -> Version | VersionError:
        try:
            return self.read(number)
        except VersionError as error:
            return error

    def latest(self) -> int:
        """Return the number of the version that ``latest`` names; 0 if there is no version.

        If a crash has left no link, this is the newest version.
        """
        return self._named(LATEST) or max(self.numbers(), default=0)

    def pinned(self) -> int:
        """Return the number of the version that a person has chosen; 0: none."""
        return self._named(PINNED)

    def pin(self, number: int) -> None:
        """Choose a version for all who follow the model; 0: the newest is theirs again.

        :raises VersionError: there is no such version, or the choice cannot be written.
        """
        if number and number not in (numbers := self.numbers()):
            raise VersionError(f'version must be one of {", ".join(map(str, numbers))}, got '
                               f'{number}')
        try:
            if number:
                self._point(number, PINNED)
            else:
                (self.folder / PINNED).unlink(missing_ok=True)
                flush(self.folder)
        except OSError as error:
            raise VersionError(f'{self.folder / PINNED} cannot be written: {error.strerror}'
                               ) from None

    def choose(self, number: int) -> str:
        """Choose a version for all followers, and return in words what they get.

        :param number: see `pin`; -1: the version before the one that is offered now.
        :raises VersionError: there is no such version.
        """
        if number < 0:
            offered = self.offered()
            number = max((n for n in self.numbers() if n < offered), default=-1)
            if number < 0:
                raise VersionError(f'there is no version before {offered}')
        self.pin(number)
        return f'version {self.offered()} is offered' + (
            ', and stays until another choice' if number else ', the newest')

    def offered(self) -> int:
        """Return the number of the version that followers get: the chosen one, or the newest."""
        return self.pinned() or self.latest()

    def _named(self, link: str) -> int:
        with suppress(OSError, ValueError):
            if (named := int(os.readlink(self.folder / link))) in self.numbers():
                return named
        return 0

    def best(self) -> int:
        """Return the number of the version with the highest accuracy; 0 if none was measured.

        Of several such versions it is the newest.
        """
        return max(((v.accuracy, v.number) for v in self.listed() if v.measured),
                   default=(0.0, 0))[1]

    def write(self, model: bytes, **about: Any) -> Version:
        """Write a version and let ``latest`` name it; delete those that are not kept.

        :param model: the file of the model, see `fleet_env.weights.state_bytes`.
        :param about: the fields of `Version` except number, parent and digest.
        :raises VersionError: the version cannot be written; all former versions are unchanged.
        """
        numbers = self.numbers()
        version = Version(number=max(numbers, default=0) + 1, parent=max(numbers, default=0),
                          digest=hashlib.sha256(model).hexdigest(), **about)
        path = self.path(version.number)
        text = json.dumps(description(version), indent=2)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.tidy()
            temporary = Path(tempfile.mkdtemp(dir=self.folder, prefix=_TEMPORARY))
            try:
                temporary.chmod(0o755)
                for name, content in ((MODEL_FILE, model), (ABOUT_FILE, text.encode() + b'\n')):
                    (temporary / name).write_bytes(content)
                    flush(temporary / name)
                flush(temporary)
                os.rename(temporary, path)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            flush(self.folder)
            self._point(version.number)
        except OSError as error:
            raise VersionError(f'{path} cannot be written: {error.strerror}') from None
        self._prune()
        return version

    def tidy(self) -> None:
        """Remove what a killed process has left behind.

        :raises OSError: something cannot be removed.
        """
        for left in self.folder.glob(f'{_TEMPORARY}*'):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()

    def _point(self, number: int, name: str = LATEST) -> None:
        """Let a link name a version, in one step.

        On a disk without links there is no ``latest``; then `latest` finds the newest version.
        """
        link = self.folder / f'{_TEMPORARY}{name}'
        try:
            os.symlink(str(number), link)
        except OSError as error:
            if name == LATEST and error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                return
            raise
        os.replace(link, self.folder / name)
        flush(self.folder)

    def _prune(self) -> None:
        numbers = self.numbers()
        for number in {*numbers} - {*numbers[-self.keep:], self.best(), self.latest(),
                                          self.pinned()}:
            # Rename it first, so that a crash leaves no half of a version. If it cannot be deleted,
            # it stays; the new version is complete.
            with suppress(OSError):
                gone = self.folder / f'{_TEMPORARY}{number}'
                os.rename(self.path(number), gone)
                shutil.rmtree(gone)


def read_about(folder: Path) -> Version:
    """Return the content of ``version.json`` in the folder of a version.

    :raises VersionError: it cannot be read or is damaged, or another schema is in it.
    """
    path = folder / ABOUT_FILE
    try:
        return version_from(json.loads(read_file(path)))
    except (OSError, ValueError, RecursionError) as error:
        raise VersionError(f'{path} cannot be read: {why_unread(error, path)}') from error


def description(version: Version) -> dict[str, Any]:
    """Return the content of ``version.json``; `version_from` reads it."""
    return {'schema': SCHEMA, **finite(dataclasses.asdict(version))}


def write_apart(folder: Path, version: Version, model: bytes) -> None:
    """Keep one version in a folder of its own, in place of the one that is there.

    A reader that comes between the two files, or after a crash there, finds none.

    :raises OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / MODEL_FILE, model)
    write_whole(folder / ABOUT_FILE, json.dumps(description(version), indent=2).encode() + b'\n')


def read_apart(folder: Path, besides: str = '') -> tuple[Version, bytes] | None:
    """Return the version that `write_apart` keeps, and the file of its model.

    None: there is none, it is being replaced, or its digest is ``besides``.
    """
    try:
        version = read_about(folder)
        if version.digest == besides:
            return None
        model = (folder / MODEL_FILE).read_bytes()
    except (VersionError, OSError):
        return None
    return (version, model) if hashlib.sha256(model).hexdigest() == version.digest else None


def version_from(data: Any) -> Version:
    """Return the version that the content of a ``version.json`` describes.

    :raises ValueError: it is not such a content, or of another schema.
    """
    if not isinstance(data, dict):
        raise ValueError('it must be an object')
    if data.get('schema') != SCHEMA:
        raise ValueError(f'its schema must be {SCHEMA}, got {data.get("schema")!r}')
    return Version(**{name: _value(data, name, kind)
                      for name, kind in typing.get_type_hints(Version).items()})


def _value(data: dict[str, Any], name: str, kind: type) -> Any:
    if name not in data:
        raise ValueError(f'it lacks {name!r}')
    value = data[name]
    if type(value) is int and not 0 <= value < 1 << 32:     # as in fleet_msgs/ModelVersion
        raise ValueError(f'{name!r} must have at most 32 bits')
    if kind is float:
        value = math.nan if value is None else value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    elif isinstance(value, kind) and not isinstance(value, bool):
        return value
    raise ValueError(f'{name!r} must be of type {kind.__name__}, got {value!r}')


def find_model(place: str | os.PathLike[str]) -> Path:
    """Return the file of the weights that a user names.

    :param place: a file; the folder of a version; a folder ``models`` or the folder of a run, of
        which this is the latest version.
    :raises VersionError: nothing of the kind is there; the message says what may be given.
    """
    path = Path(place).expanduser()
    if path.is_file():
        return path
    if not path.exists():
        raise VersionError(f'there is no {path}; give the file of a state_dict, a version, or the '
                           'folder of a run')
    if not path.is_dir():
        raise VersionError(f'{path} is neither a file nor a folder')
    if (path / MODEL_FILE).is_file():
        return path / MODEL_FILE
    for folder in (path, path / MODELS):
        versions = Versions(folder)
        if (number := versions.latest()) and (versions.path(number) / MODEL_FILE).is_file():
            return versions.path(number) / MODEL_FILE
    raise VersionError(f'{path} has no model: it must be a version ({MODEL_FILE}), a folder of '
                       f'versions ({LATEST}), or the folder of a run ({MODELS}/{LATEST})')


def check_digest(file: Path, content: bytes) -> None:
    """Check the file of a version against the digest in ``version.json`` beside it.

    :raises VersionError: the file was changed after it was written.
    """
    if file.name != MODEL_FILE or not (file.parent / ABOUT_FILE).exists():
        return
    if read_about(file.parent).digest != hashlib.sha256(content).hexdigest():
        raise VersionError(f'{file} was changed after it was written; take another version (rog '
                           'models list)')


def models_folder(run: str | os.PathLike[str]) -> Path:
    """Return the folder of the versions; ``run`` is the folder of a run, or this folder itself."""
    path = Path(run).expanduser()
    return path if path.name == MODELS and not (path / MODELS).exists() else path / MODELS


def newest_run(runs: Iterable[Path]) -> Path | None:
    """Return the run among folders whose models were written last; None without any."""
    found = [(folder.stat().st_mtime_ns, run) for run in runs
             if (folder := run / MODELS).is_dir()]
    return max(found, default=(0, None))[1]
