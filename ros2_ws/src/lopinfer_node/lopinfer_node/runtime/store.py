"""The models that a server stores on disk.

<directory>/<digest>/graph.json, contents.json       a complete model
<directory>/weights/...                              the weights of all, see `fleet_compute`
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
from fleet_compute.weights import FOLDER, Weights
from fleet_env.durable import flush
from safetensors import SafetensorError

from ..errors import ModelError, RemoteError
from ..model.files import CONTENTS, GRAPH, MODEL, contents_of, load, texts
from ..model.traced import Content, bytes_of, content_of

if TYPE_CHECKING:
    from ..model.traced import Traced


class Store:
    """Stores at most ``models`` models under ``directory``, each of at most ``memory`` bytes.

    If ``models`` models are stored, a new model replaces the least recently used model. ``disk``:
    maximum bytes of the kept weights. A model whose weights had to go counts as not stored.
    """

    def __init__(self, directory: Path, memory: int = 4 << 30, models: int = 64,
                 disk: int = 16 << 30) -> None:
        self.directory = directory
        self.models = models
        self.memory = memory
        self.kept = Weights(disk, directory / FOLDER)
        (directory / FOLDER).mkdir(parents=True, exist_ok=True)

    def digests(self) -> set[str]:
        """Return the digests of the complete models."""
        return {p.name for p in self.directory.iterdir() if self.has(p.name)}

    def has(self, digest: str) -> bool:
        """Return whether there is a complete model."""
        try:
            return bool(MODEL.fullmatch(digest)) and self._is_whole(
                (self.path(digest) / CONTENTS).read_bytes())
        except OSError:
            return False

    def _is_whole(self, contents: bytes) -> bool:
        try:
            return all(self.kept.has(c.sha256, c.nbytes) for c in contents_of(contents).values())
        except ModelError:
            return False

    def path(self, digest: str) -> Path:
        """Return the folder of a complete model."""
        return self.directory / digest

    def use(self, digest: str) -> Path:
        """Return the folder of a complete model, and mark it as used now."""
        with contextlib.suppress(OSError):   # a read-only folder can't be marked
            os.utime(self.path(digest))
        return self.path(digest)

    def twins(self, digest: str) -> list[Path]:
        """Return the folders of the complete models with the same graph, but other weights."""
        graph = (self.path(digest) / GRAPH).read_bytes()
        found = []
        for other in sorted(self.digests() - {digest}):
            path = self.path(other) / GRAPH
            with contextlib.suppress(OSError):   # deleted meanwhile
                if path.stat().st_size == len(graph) and path.read_bytes() == graph:
                    found.append(path.parent)
        return found

    def load(self, digest: str, device: str = 'cpu') -> Traced:
        """Read a complete model; raise ModelError if it does not match its digest."""
        traced = load(self.path(digest), self.kept, device)
        if traced.digest != digest:
            raise ModelError(f'{self.path(digest)}: the files were damaged on the disk')
        return traced

    def add(self, traced: Traced) -> None:
        """Store a model that was traced or loaded on this machine. Raises RemoteError, OSError."""
        if not self.has(traced.digest):
            for name, content in traced.contents.items():
                self.keep(bytes_of(traced.parameters[name]), content)
            self.put(traced.digest, (), *texts(traced).values())

    def check(self, digest: str) -> None:
        """Raise RemoteError if no model has this digest."""
        if not isinstance(digest, str) or not MODEL.fullmatch(digest):
            raise RemoteError('the digest of a model must be a SHA-256')

    def check_room(self, contents: Iterable[Content]) -> None:
        """Raise RemoteError if a model with these weights is too large."""
        size = sum({content.sha256: content.nbytes for content in contents}.values())
        for most, name in ((self.memory, 'memory'), (self.kept.limit, 'disk')):
            if size > most:
                raise RemoteError(f'its weights have {size >> 20} MiB; the server accepts '
                                  f'{most >> 20} MiB (its parameter {name})')

    def want(self, content: Content) -> bool:
        """Return whether a weight is kept; if so, it stays when others come."""
        self.kept.use(content.sha256)
        return self.kept.has(content.sha256, content.nbytes)

    def keep(self, data: Any, content: Content) -> None:
        """Keep a weight, whose content was checked. Raises OSError."""
        self.kept.write(data, content.sha256)

    def put(self, digest: str, served: Collection[str], graph: bytes, contents: bytes) -> None:
        """Store a model of these two files, whose weights are kept.

        ``served``: digests of models that must not be deleted to make room. Raises RemoteError and
        OSError; then nothing is stored.
        """
        if not self._is_whole(contents):
            raise RemoteError('there is no room for all of its weights (parameter disk of the '
                              'server)')
        self._make_room(digest, served)
        folder = self.directory / f'{digest}.part'
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir()
            for name, text in ((GRAPH, graph), (CONTENTS, contents)):
                (folder / name).write_bytes(text)
                flush(folder / name)    # otherwise a power loss may leave an empty file
            flush(folder)
            self.remove(digest)         # it has lost weights
            folder.rename(self.path(digest))
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        flush(self.directory)

    def _make_room(self, digest: str, served: Collection[str]) -> None:
        """Delete the least recently used models, but none of `served`, until one more has room.

        Raises RemoteError if there is none.
        """
        folders = [p for p in self.directory.iterdir()
                   if MODEL.fullmatch(p.name) and p.name != digest]
        idle = sorted((p for p in folders if p.name not in served),
                      key=lambda p: p.lstat().st_mtime)
        surplus = max(0, len(folders) - self.models + 1)
        if surplus > len(idle):
            raise RemoteError(f'the server has reached its limit of {self.models} models')
        for path in idle[:surplus]:
            shutil.rmtree(path, ignore_errors=True)

    def keep_weights(self, content: bytes) -> int:
        """Keep the weights of a safetensors file, so that robots need not send them.

        Returns the number of tensors. Raises ModelError if it is no such file, and OSError.
        """
        try:
            tensors = safetensors.torch.load(content)
        except (SafetensorError, ValueError, KeyError) as error:
            raise ModelError(f'not a safetensors file: {error}') from None
        for tensor in tensors.values():
            self.kept.write(bytes_of(tensor), content_of(tensor).sha256)
        return len(tensors)

    def remove(self, digest: str) -> None:
        """Delete the files of a complete model."""
        shutil.rmtree(self.path(digest), ignore_errors=True)
