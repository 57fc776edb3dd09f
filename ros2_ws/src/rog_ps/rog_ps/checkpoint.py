"""Checkpoints: model and state of the method in one safetensors file, replaced atomically."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import numpy as np
from rog_core.aggregation import ServerState
from rog_core.errors import RogError
from rog_core.messages import Kind, Receipt, TransferId
from rog_core.methods import parse
from rog_core.partition import RowPartition
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

FILE = 'checkpoint.safetensors'
SCHEMA = 'rog-checkpoint/2'
FORMER = 'rog-checkpoint/1'  # without the state of the method
UPDATE = 'rog/update/'  # prefix of the names of the arrays of the method


class CheckpointError(RogError):
    """A checkpoint cannot be written or read; the text says which and why."""


def _receipt_to_json(incarnation: int, receipt: Receipt) -> list:
    t = receipt.transfer
    return [incarnation, t.incarnation, int(t.kind), t.iteration, t.attempt, receipt.chunks,
            receipt.taken.hex()]


def _receipt_from_json(entry: list) -> tuple[int, Receipt]:
    incarnation, session, kind, iteration, attempt, chunks, taken = entry
    transfer = TransferId(int(session), Kind(kind), int(iteration), int(attempt))
    return int(incarnation), Receipt(transfer, int(chunks), bytes.fromhex(taken))


def write(directory: Path, partition: RowPartition, master: np.ndarray, state: ServerState,
          elapsed: float) -> Path:
    """Write the checkpoint into ``directory`` and return its path.

    Every parameter is a tensor of its own name, so any safetensors reader can load the model.
    Arrays of the method are tensors 'rog/update/NAME', each as long as the whole model.
    """
    sizes = np.cumsum([p.size for p in partition.parameters])[:-1]
    tensors = {p.name: part.reshape(p.shape)
               for p, part in zip(partition.parameters, np.split(master, sizes), strict=True)}
    tensors['rog/updated_at'] = state.updated_at
    tensors |= {UPDATE + name: held for name, held in state.update.items()}
    meta = {'schema': SCHEMA, 'digest': partition.digest, 'iteration': state.iteration,
            'sync': state.sync, 'elapsed_s': elapsed, 'policy': state.policy,
            'pushes': {n: _receipt_to_json(*push) for n, push in state.pushes.items()}}
    path = directory / FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory, prefix='.checkpoint-')
        try:
            with os.fdopen(handle, 'wb') as file:
                file.write(save(tensors, {'rog': json.dumps(meta)}))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise CheckpointError(f'{path} cannot be written: {error.strerror}') from error
    return path


def read(directory: Path, partition: RowPartition) -> tuple[np.ndarray, ServerState, float]:
    """Read master rows, server state and elapsed seconds of a run of the same model."""
    path = directory / FILE
    try:
        with safe_open(str(path), 'numpy') as file:
            meta = json.loads((file.metadata() or {})['rog'])
            if meta['schema'] == FORMER:
                meta['policy'] = {}
            elif meta['schema'] != SCHEMA:
                raise CheckpointError(f'{path} has schema {meta["schema"]}, this version reads '
                                      f'{SCHEMA}')
            if meta['digest'] != partition.digest:
                raise CheckpointError(f'{path} is of another model or granularity; choose another '
                                      'out directory, or start without resume')
            parts = {p.name: file.get_tensor(p.name) for p in partition.parameters}
            updated_at = file.get_tensor('rog/updated_at')
            update = {name.removeprefix(UPDATE): file.get_tensor(name)
                      for name in sorted(file.keys()) if name.startswith(UPDATE)}
        pushes = {n: _receipt_from_json(entry) for n, entry in meta['pushes'].items()}
        state = ServerState(int(meta['iteration']), parse(meta['sync']).text, updated_at,
                            pushes, dict(meta['policy']), update)
        master = _master(partition, parts)
        if updated_at.shape != (partition.rows,) or updated_at.dtype != np.int64:
            raise ValueError(f'rog/updated_at has shape {updated_at.shape}')
        for name, held in update.items():
            _check(UPDATE + name, held, (partition.elements,))
        return master, state, float(meta['elapsed_s'])
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f'{path} cannot be read: {error}') from error


def _check(name: str, values: np.ndarray, shape: tuple[int, ...]) -> None:
    if values.shape != shape or values.dtype != np.float32:
        raise ValueError(f'{name} is {values.dtype} of shape {values.shape}')
    if not np.isfinite(values).all():
        raise ValueError(f'{name} holds values that are not finite')


def _master(partition: RowPartition, parts: dict[str, np.ndarray]) -> np.ndarray:
    for parameter in partition.parameters:
        _check(parameter.name, parts[parameter.name], tuple(parameter.shape))
    return np.concatenate([parts[p.name].reshape(-1) for p in partition.parameters])
