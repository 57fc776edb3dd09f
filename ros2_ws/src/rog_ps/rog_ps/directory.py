"""The out directory: whether it can be used. Imports nothing that takes long."""

from __future__ import annotations

from pathlib import Path

from fleet_env.durable import Kept
from fleet_env.errors import DurableError

FORMER = 'checkpoint.safetensors'  # of versions whose checkpoints had no digest


def kept(directory: Path, keep: int = 1) -> Kept:
    """Return the checkpoints in a directory."""
    return Kept(directory, 'checkpoint', '.safetensors', keep)


def check_directory(out: Path, resume: bool) -> Kept:
    """Refuse an ``out`` directory where nothing can be written, or resumed; needs no model.

    :raises DurableError: says what is wrong.
    """
    store = kept(out)
    store.probe()
    if resume and store.newest() is None and (out / FORMER).exists():
        raise DurableError(f'{out / FORMER} is of an earlier version and has no digest; this '
                           'version cannot go on from it')
    return store
