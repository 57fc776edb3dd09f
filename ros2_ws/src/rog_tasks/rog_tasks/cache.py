"""What is expensive to make is kept in the user's cache directory, by what it was made from.

Files are safetensors. The name of a file is a digest of everything that its content depends on, so
that it never has to be made anew for another reason than being lost or damaged.
"""

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

PATIENCE = 3600.0
"""Seconds to wait for another process that makes the same; after them it is made twice."""

EVERY = 5.0
"""Seconds between two lines about the progress of something that takes long."""

Tensors = dict[str, Tensor]


def digest(*parts: str | bytes | memoryview) -> str:
    """Return the SHA-256 of ``parts``; where one ends and the next begins matters."""
    whole = hashlib.sha256()
    for part in parts:
        own = hashlib.sha256(part.encode() if isinstance(part, str) else part)
        whole.update(own.digest())
    return whole.hexdigest()


def digest_of(tensors: Tensors) -> str:
    """Return the SHA-256 of names, shapes, types and values."""
    parts: list[str | bytes | memoryview] = []
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().cpu().contiguous().reshape(-1).numpy().view('u1')
        parts += [f'{name} {tensor.dtype} {tuple(tensor.shape)}', values.data]
    return digest(*parts)


def cached(kind: str, key: str, make: Callable[[], Tensors]) -> Tensors:
    """Return what ``make`` returns, from the cache where it is there and whole.

    The tensors of a file are mapped into memory, which processes share until one writes to them.

    :param kind: folder in the cache: ``images``, ``weights``.
    :param key: digest of all that the tensors depend on.
    """
    root = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'rog' / kind
    path = root / f'{key}.safetensors'
    found = _read(path)
    if found is None:
        root.mkdir(parents=True, exist_ok=True)
        with _alone(path.with_suffix('.lock')):
            found = _read(path)
            if found is None:
                _write(path, make())
                found = _read(path)
    if found is None:
        raise OSError(f'{path} was written and cannot be read again; is the disk full or broken?')
    return found


class Progress:
    """Says on standard error how far something is that takes longer than `EVERY`.

    :param what: what is done: ``reading train.tar.gz``.
    :param total: steps that it has.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._said = time.monotonic()

    def step(self) -> None:
        """Count one more."""
        self._done += 1
        now = time.monotonic()
        if now - self._said >= EVERY:
            self._said = now
            print(f'{self._what}: {100 * self._done // self._total} %', file=sys.stderr, flush=True)


def _read(path: Path) -> Tensors | None:
    """Return the tensors of a file, or None if it is not there or not as it was written."""
    from safetensors import SafetensorError, safe_open

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


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a lock that ends with the process; go on without it after `PATIENCE`."""
    import fcntl

    with lock.open('w') as file:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.2)
        yield
