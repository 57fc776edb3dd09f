"""Checks and locks the out directory. The module imports only modules that load fast."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from fleet_env.durable import Kept, hold, read_file
from fleet_env.errors import DurableError

FORMER = 'checkpoint.safetensors'  # checkpoint of earlier versions, which wrote no digest
SERVED = 'server.json'             # file with the run's identity and the number of server starts


def kept(directory: Path, keep: int = 1) -> Kept:
    """Return the store of a directory's checkpoints; ``keep``: number of checkpoints to keep."""
    return Kept(directory, 'checkpoint', keep)


def check_directory(out: Path, resume: bool) -> None:
    """Check that the directory ``out`` can be written and, with ``resume``, be resumed.

    :raises DurableError: it cannot be written or resumed; the message says why.
    """
    store = kept(out)
    store.probe()
    if resume and store.newest() is None and (out / FORMER).exists():
        raise DurableError(f'{out / FORMER} is of an earlier version and has no digest; this '
                           'version cannot go on from it')


class Claim(NamedTuple):
    """A run that this process serves.

    ``run``: identity of the run. ``start``: number of this process among the server processes that
    have served the run, from 1.
    """

    run: int
    start: int


def run_in(out: Path) -> int:
    """Return the identity of the run in a directory; 0 if there is no run."""
    try:
        return _served(read_file(out / SERVED)).run
    except OSError:
        return 0


def claim(out: Path | None, resume: bool, held: ExitStack) -> Claim:
    """Lock a directory until ``held`` is closed; return the run and the number of this start.

    The lock ends with the process, however the process ends. So a server that holds the lock knows
    that every former server of the run is gone, and tells the robots so.

    :param out: directory of the run; None: lock nothing, and return the first start of a new run.
    :param resume: whether to continue the run in the directory.
    :raises DurableError: another process has locked the directory, or it cannot be written.
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
        # The texts of all claims have equal length. So a claim overwrites a former claim in place,
        # and the file of a run is never empty or cut off. A damaged file may be longer; it is
        # shortened.
        os.pwrite(handle, text, 0)
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
    # A new or damaged file means a new run.
    return Claim(run, start) if 0 < run < 2**64 and 0 < start < 2**32 - 1 else Claim(0, 0)
