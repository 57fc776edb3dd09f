"""The models that a server stores on disk, and their upload.

    <directory>/<digest>/graph.json, contents.json       a complete model
    <directory>/<digest>.part/...                        still arriving
    <directory>/weights/...                              the weights of all, see `fleet_compute`

A client first says what each weight contains, and then sends only the weights that are not kept. A
client sends each file in parts. Before each part, the server names the offset at which the part
must begin. So the server stores no part twice, even after a lost call or a restart, or if two
robots send the same model.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
from fleet_compute.inlets import CodecError, lengthened, shortened
from fleet_compute.weights import FOLDER, Weights
from fleet_env.durable import flush
from safetensors import SafetensorError

from ..errors import ModelError, RemoteError
from ..model.files import (
    CONTENTS,
    GRAPH,
    MODEL,
    WEIGHTS,
    contents_in,
    load,
    save,
    save_texts,
    save_weights,
    take_weights,
)
from ..model.traced import bytes_of, content_of

if TYPE_CHECKING:
    from ..model.traced import Traced

FILES = (GRAPH, WEIGHTS)
PART_BYTES = 256 << 10
HEADER = 8     # bytes at the beginning of a safetensors file
MOST_CONTENTS = 4 << 20   # maximum bytes of a file `CONTENTS`, enough for some 40,000 weights


@dataclass(frozen=True)
class UploadRequest:
    """Request of the service `Upload`; fields as in lopinfer_msgs/Upload."""

    digest: str
    file: str
    sha256: str
    size: int
    offset: int
    data: bytes
    length: int = 0


@dataclass(frozen=True)
class UploadReply:
    """Answer of the service `Upload`; fields as in lopinfer_msgs/Upload."""

    accepted: bool
    reason: str = ''
    received: int = 0
    complete: bool = False
    missing: Sequence[str] = ()


class Store:
    """Stores at most ``models`` models under ``directory``, each file of at most ``memory`` bytes.

    If ``models`` models are stored, a new model replaces the least recently used model. ``disk``:
    maximum bytes of the kept weights. A model whose weights had to go counts as not stored.
    """

    def __init__(self, directory: Path, memory: int = 4 << 30, models: int = 64,
                 disk: int = 16 << 30) -> None:
        self.directory = directory
        self.models = models
        self.memory = memory
        self.kept = Weights(disk, directory / FOLDER)
        self._hashes: dict[Path, Any] = {}  # maps an incomplete file to the hash of its bytes
        (directory / FOLDER).mkdir(parents=True, exist_ok=True)

    def digests(self) -> set[str]:
        """Return the digests of the complete models."""
        return {p.name for p in self.directory.iterdir() if self.has(p.name)}

    def has(self, digest: str) -> bool:
        """Return whether there is a complete model."""
        return bool(MODEL.fullmatch(digest)) and self.path(digest).exists() \
            and not self._lacking(self.path(digest))

    def _lacking(self, folder: Path) -> list[str]:
        """Return the names of a model's weights that are not kept; [''] if it is damaged."""
        try:
            return [name for name, content in contents_in(folder).items()
                    if not self.kept.has(content.sha256, content.nbytes)]
        except ModelError:
            return ['']

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
        """Store a model that was traced or loaded on this machine. Raises OSError."""
        if not self.has(traced.digest):
            folder = self.directory / f'{traced.digest}.part'
            shutil.rmtree(folder, ignore_errors=True)
            save(traced, folder, self.kept)
            for file in (GRAPH, CONTENTS):
                flush(folder / file)
            self._complete(folder)

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

    def take(self, request: UploadRequest, served: Collection[str] = ()) -> UploadReply:
        """Store one part of a file; refuse an unknown file name and a file that is too large.

        An unknown name could lead to a place outside the store. ``served``: digests of models that
        must not be deleted to make room.
        """
        if not MODEL.fullmatch(request.digest) or request.file not in (CONTENTS, *FILES):
            return UploadReply(False, f"'{request.file}' of model '{request.digest}' is not a file "
                                      'of a model')
        most = min(self.memory, MOST_CONTENTS) if request.file == CONTENTS else self.memory
        if request.size > most:
            return UploadReply(False, f'{request.file} has {request.size >> 20} MiB; the server '
                                      f'accepts {most >> 20} MiB' + ' (its parameter memory)' * (
                                          most == self.memory))
        if request.size > self.kept.limit:
            return UploadReply(False, f'{request.file} has {request.size >> 20} MiB; the server '
                                      f'keeps {self.kept.limit >> 20} MiB (its parameter disk)')
        if self.has(request.digest):
            return UploadReply(True, '', request.size, True)
        folder = self.directory / f'{request.digest}.part'
        try:
            return self._take(folder, request, served)
        except CodecError as error:
            return UploadReply(False, f'a part of {request.file} is damaged: {error}')
        except ModelError as error:
            (folder / request.file).unlink()
            return UploadReply(False, str(error))
        except OSError as error:   # such as a full disk: delete the partial model
            shutil.rmtree(folder, ignore_errors=True)
            self._hashes.pop(folder / (request.file + '.part'), None)
            return UploadReply(False, f'the server cannot keep {request.file}: {error}')

    def _take(self, folder: Path, request: UploadRequest, served: Collection[str]) -> UploadReply:
        if not folder.exists() and not self._make_room(served):
            return UploadReply(False, f'the server has reached its limit of {self.models} models')
        folder.mkdir(exist_ok=True)
        path = folder / (request.file + '.part')
        if (folder / request.file).exists():
            return self._received(folder, request.file, request.size)
        received = self._append(path, request)
        if received < request.size:
            return UploadReply(True, '', received)
        if self._hashes.pop(path).hexdigest() != request.sha256 or received > request.size:
            path.unlink()
            return UploadReply(False, f'{request.file} arrived damaged; send it again')
        flush(path)   # otherwise a power loss may leave an empty file
        path.rename(folder / request.file)
        return self._received(folder, request.file, received)

    def _received(self, folder: Path, file: str, size: int) -> UploadReply:
        """Answer to the last part of a file; raise ModelError if its content is invalid."""
        if file == CONTENTS:
            for content in contents_in(folder).values():
                self.kept.use(content.sha256)   # so that it stays when the others come
        elif file == WEIGHTS:
            take_weights(folder, self.kept)
        lacks = self._lacking(folder)
        if file == WEIGHTS and lacks:
            return UploadReply(False, f'the weight {lacks[0]} was not sent, or there is no room '
                                      'for all of them (parameter disk of the server)')
        complete = not lacks and file != CONTENTS and self._complete(folder)
        return UploadReply(True, '', size, complete, lacks if file == CONTENTS else ())

    def _make_room(self, served: Collection[str]) -> bool:
        """Delete the least recently used models until there is room for one more.

        Models in ``served`` are not deleted. Returns whether there is room.
        """
        folders = [p for p in self.directory.iterdir()
                   if MODEL.fullmatch(p.name.removesuffix('.part'))]
        surplus = len(folders) - self.models + 1
        if surplus <= 0:
            return True
        idle = sorted((p for p in folders if p.name not in served),
                      key=lambda p: p.lstat().st_mtime)
        for path in idle[:surplus]:
            shutil.rmtree(path, ignore_errors=True)
            for file in [f for f in self._hashes if f.parent == path]:
                del self._hashes[file]
        return len(idle) >= surplus

    def _append(self, path: Path, request: UploadRequest) -> int:
        """Append the part if its offset is the end of the file; return the size of the file."""
        path.touch()
        os.utime(path.parent)
        received = path.stat().st_size
        if path not in self._hashes:
            with path.open('rb') as file:
                self._hashes[path] = _hash(file)
        if request.offset == received and request.data:
            data = lengthened(request.data, min(request.length, PART_BYTES) or len(request.data))
            with path.open('ab') as file:
                file.write(data)
            self._hashes[path].update(data)
            received += len(data)
        return received

    def _complete(self, folder: Path) -> bool:
        if not (folder / GRAPH).exists():
            return False
        flush(folder)
        self.remove(folder.stem)    # it has lost weights
        folder.rename(self.path(folder.stem))
        flush(self.directory)
        return True


def announce(digest: str, nbytes: int, call: Callable[[UploadRequest], UploadReply]) -> None:
    """Ask the server whether it accepts weights of ``nbytes`` bytes.

    Raises RemoteError if the server refuses.
    """
    # A file of no bytes would be complete already; the file has at least the size of its header.
    reply = call(UploadRequest(digest, WEIGHTS, '', nbytes + HEADER, 0, b''))
    if not reply.accepted:
        raise RemoteError(f'the server refuses the model: {reply.reason}')


def send_traced(traced: Traced, folder: Path, call: Callable[[UploadRequest], UploadReply]
                ) -> None:
    """Send a model; its files are written to ``folder``, with the weights that the server lacks.

    Raises RemoteError if the server refuses the model, and every error that ``call`` raises.
    """
    save_texts(traced, folder)
    missing = send_file(folder / CONTENTS, traced.digest, call).missing
    save_weights(traced, folder, set(missing))
    send_model(folder, traced.digest, call)


def send_model(folder: Path, digest: str, call: Callable[[UploadRequest], UploadReply]) -> None:
    """Send graph and weights of a model, each from the first byte that the server lacks.

    Raises RemoteError if the server refuses the model, and every error that ``call`` raises.
    """
    for name in FILES:
        send_file(folder / name, digest, call)


def send_file(path: Path, digest: str, call: Callable[[UploadRequest], UploadReply]) -> UploadReply:
    """Send a file of a model from the first byte that the server lacks; return the last answer."""
    with path.open('rb') as file:
        sha256 = _hash(file).hexdigest()
        size, offset, part = path.stat().st_size, 0, b''
        while True:
            reply = call(UploadRequest(digest, path.name, sha256, size, offset,
                                       bytes(shortened(part)), len(part)))
            if not reply.accepted:
                raise RemoteError(f'the server refuses the model: {reply.reason}')
            if reply.received >= size:
                return reply
            offset = reply.received
            file.seek(offset)
            part = file.read(PART_BYTES)


def _hash(file: Any) -> Any:
    state = hashlib.sha256()  # not hashlib.file_digest, which needs Python 3.11
    while block := file.read(1 << 20):
        state.update(block)
    return state
