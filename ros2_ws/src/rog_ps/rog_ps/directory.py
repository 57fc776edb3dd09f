"""Checks and locks the out directory. Imports nothing that takes long."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from fleet_env.durable import Kept, hold
from fleet_env.errors import DurableError

FORMER = 'checkpoint.safetensors'  # of versions whose checkpoints had no digest
SERVED = 'server.json'             # identity of the run, and how often its server was started


def kept(directory: Path, keep: int = 1) -> Kept:
    """Return the checkpoints in a directory."""
    return Kept(directory, 'checkpoint', '.safetensors', keep)


def check_directory(out: Path, resume: bool) -> None:
    """Refuse an ``out`` directory that cannot be written or resumed; needs no model.

    :raises DurableError: says what is wrong.
    """
    store = kept(out)
    store.probe()
    if resume and store.newest() is None and (out / FORMER).exists():
        raise DurableError(f'{out / FORMER} is of an earlier version and has no digest; this '
                           'version cannot go on from it')


class Claim(NamedTuple):
    """A run, served by this process; ``start``: counts the processes that have served it."""

    run: int
    start: int


def run_in(out: Path) -> int:
    """Return the identity of the run in a directory; 0: there is none."""
    try:
        return _served((out / SERVED).read_bytes()).run
    except OSError:
        return 0


def claim(out: Path | None, resume: bool, held: ExitStack) -> Claim:
    """Lock a directory until ``held`` is closed, and count this start of its run.

    The lock also ends with the process, however it ends. So a server that claims a run knows, and
    tells the robots, that every former server of the run is gone. Without a directory each process
    is a new run.

    :raises DurableError: another process has locked it, or it cannot be written.
    """
    new = Claim(secrets.randbits(63) | 1, 1)
    if out is None:
        return new
    handle = hold(out / SERVED, 'parameter server')
    held.callback(os.close, handle)
    try:
        former = _served(os.read(handle, 1024))
        taken = Claim(former.run, former.start + 1) if resume and former.run else new
        text = json.dumps({'run': f'{taken.run:016x}', 'start': f'{taken.start:08d}'}).encode()
        os.pwrite(handle, text, 0)  # as long as the former text, so that it is never half written
        os.ftruncate(handle, len(text))
        os.fsync(handle)
    except OSError as error:
        raise DurableError(f'{out / SERVED} cannot be written: {error.strerror}') from None
    return taken


def _served(data: bytes) -> Claim:
    try:
        found = json.loads(data)
        run, start = int(found['run'], 16), int(found['start'])
    except (ValueError, KeyError, TypeError):
        run = start = 0
    # A new or damaged file counts as that of a new run.
    return Claim(run, start) if 0 < run < 2**64 and 0 < start < 2**32 - 1 else Claim(0, 0)
