"""Stores tensors in the user's cache directory if it takes long to compute them.

The files have the format safetensors. The name of a file is a digest of all that its content
depends on, so a file is made again only if it is lost or damaged.
"""

import fcntl
import hashlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from fleet_env.command import duration
from fleet_env.durable import cache_folder
from safetensors import SafetensorError, safe_open
from torch import Tensor

PATIENCE = 3600.0
"""Seconds to wait for another process that makes the same file; then both processes make it."""

EVERY = 5.0
"""Seconds between two lines about the progress of a long operation."""

Tensors = dict[str, Tensor]


def digest(*parts: str | bytes | memoryview) -> str:
    """Return a SHA-256 of ``parts``; it also depends on the boundaries between the parts.

    A text is encoded as UTF-8. A file name that is not valid UTF-8 keeps its original bytes.
    """
    whole = hashlib.sha256()
    for part in parts:
        own = hashlib.sha256(os.fsencode(part) if isinstance(part, str) else part)
        whole.update(own.digest())
    return whole.hexdigest()


def digest_of(tensors: Tensors) -> str:
    """Return the SHA-256 of the names, shapes, dtypes and values of ``tensors``."""
    parts: list[str | bytes | memoryview] = []
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().cpu().contiguous().reshape(-1).numpy().view('u1')
        parts += [f'{name} {tensor.dtype} {tuple(tensor.shape)}', values.data]
    return digest(*parts)


def cached(kind: str, key: str, make: Callable[[], Tensors]) -> Tensors:
    """Return what ``make`` returns; read it from the cache if the cache has a valid file.

    The tensors of a file are mapped into memory. Processes share this memory until a process writes
    to it. If no file can be written, print a line on standard error and return new tensors.

    :param kind: folder in the cache: ``images``, ``weights``.
    :param key: digest of all that the tensors depend on.
    """
    root = cache_folder('rog') / kind
    path = root / f'{key}.safetensors'
    found = _read(path)
    if found is not None:
        return found
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix('.lock').open('w')
    except OSError as error:
        _say_not_kept(kind, root, error)
        return make()
    with lock:
        _wait_alone(lock)
        found = _read(path)
        if found is None:
            found = make()
            try:
                _write(path, found)
                found = _read(path) or found
            except (OSError, SafetensorError) as error:
                _say_not_kept(kind, root, error)
    return found


def _say_not_kept(kind: str, root: Path, error: Exception) -> None:
    print(f'rog: {kind} cannot be kept in {root} ({getattr(error, "strerror", None) or error}) and '
          'are made anew each time; set XDG_CACHE_HOME to a directory with room',
          file=sys.stderr, flush=True)


class Progress:
    """Prints to standard error the progress of an operation that takes longer than `EVERY` seconds.

    :param what: the operation, for example ``reading train.tar.gz``.
    :param total: number of steps of the operation.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._began = self._said = time.monotonic()

    def step(self) -> None:
        """Count one step."""
        self._done += 1
        now = time.monotonic()
        if now - self._said >= EVERY:
            self._said = now
            left = (now - self._began) * (self._total - self._done) / self._done
            print(f'{self._what}: {100 * self._done // self._total} %, about {duration(left)} left',
                  file=sys.stderr, flush=True)


def _read(path: Path) -> Tensors | None:
    """Return the tensors of a file, or None if it is missing or damaged."""
    try:
        with safe_open(str(path), 'pt') as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            written = (file.metadata() or {}).get('digest')
    except (OSError, SafetensorError):
        return None
    return tensors if written == digest_of(tensors) else None


def _write(path: Path, tensors: Tensors) -> None:
    from safetensors.torch import save_file

    new = path.with_suffix(f'.{os.getpid()}')
    try:
        save_file(tensors, str(new), {'digest': digest_of(tensors)})
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def _wait_alone(file: IO[str]) -> None:
    """Wait at most `PATIENCE` seconds for a file's lock; closing the file releases the lock."""
    end = time.monotonic() + PATIENCE
    while not _locked(file) and time.monotonic() < end:
        time.sleep(0.2)


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
