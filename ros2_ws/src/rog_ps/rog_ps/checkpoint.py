"""Writes and reads checkpoints: the model and the method's state, kept by `fleet_env.durable`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from fleet_env.durable import Kept, Save
from fleet_env.errors import DurableError
from rog_core.errors import RogError
from rog_core.methods import parse
from rog_core.model.partition import BUFFERS, RowPartition
from rog_core.protocol.messages import Kind, Receipt, TransferId
from rog_core.server.aggregation import ServerState
from safetensors import SafetensorError
from safetensors.numpy import load, save

SCHEMA = 'rog-checkpoint/4'
BASE = 'rog/upstream'   # name of the array ``base`` of a child fleet, see `rog_core.upstream`
UPDATE = 'rog/update/'  # prefix of the names of the method's arrays
DIVERGED = 1000.0       # a model whose norm grew by this factor since the last save has diverged
NAMED = 100             # maximum number of checkpoints with a name given by a user
OPEN = 16               # maximum number of checkpoints named by users in a fleet without a key


class CheckpointError(RogError):
    """A checkpoint cannot be written or read; the message names the checkpoint and the reason."""


def named(out: Path, name: str, most: int = NAMED) -> Path:
    """Return the directory, below ``out``, of a checkpoint to which the user gives a name.

    :param most: maximum number of checkpoints with a name.
    :raises CheckpointError: the name is not allowed, or there are ``most`` such checkpoints.
    """
    if not re.fullmatch(r'[A-Za-z0-9][\w.-]{0,63}', name, re.ASCII):
        raise CheckpointError(f"'{name[:80]}' cannot be the name of a checkpoint: letters, digits, "
                              'dot, dash, underscore')
    folder = out / 'saved'
    if not (folder / name).exists() and folder.exists() and len(list(folder.iterdir())) >= most:
        raise CheckpointError(f'{folder} holds {most} checkpoints; delete some of them')
    return folder / name


def _receipt_to_json(incarnation: int, receipt: Receipt) -> list:
    t = receipt.transfer
    return [incarnation, t.incarnation, int(t.kind), t.iteration, t.attempt, receipt.chunks,
            receipt.taken.hex(), receipt.refused]


def _receipt_from_json(entry: list) -> tuple[int, Receipt]:
    incarnation, session, kind, iteration, attempt, chunks, taken, refused = entry
    transfer = TransferId(int(session), Kind(kind), int(iteration), int(attempt))
    return int(incarnation), Receipt(transfer, int(chunks), bytes.fromhex(taken), int(refused))


def norm_of(partition: RowPartition, master: np.ndarray, former: float, *states: np.ndarray
            ) -> float:
    """Return the norm of a model's trained parameters; buffers may change by far more.

    :param former: norm of the model that was saved before; 0: unknown.
    :param states: further arrays that must be finite.
    :raises CheckpointError: the training has diverged, so the model must not replace a good one.
    """
    norm = float(np.linalg.norm(master[:partition.buffers.start].astype(np.float64)))
    if not all(np.isfinite(values).all() for values in (master, *states)):
        raise CheckpointError('the model or the state of its method holds values that are not '
                              'finite; the training has diverged')
    if former and norm > DIVERGED * former:
        raise CheckpointError(f'the norm of the model is {norm:.3g}; it was {former:.3g} when it '
                              'was saved before; the training has diverged')
    return norm


class Writer:
    """Writes a run's checkpoints.

    ``norm``: norm of the model in the last checkpoint; 0: unknown.
    """

    def __init__(self, partition: RowPartition, norm: float = 0.0) -> None:
        self.partition, self.norm = partition, norm

    def write(self, store: Kept, master: np.ndarray, state: ServerState, elapsed: float) -> Path:
        """Write a checkpoint and return its path.

        Refuse to write a diverged model, because its checkpoint would replace a good one.

        :param elapsed: seconds of training.
        :raises CheckpointError: the training has diverged, or the file cannot be written. The
            former checkpoints are unchanged.
        """
        norm = norm_of(self.partition, master, self.norm, *state.update.values())
        is_grown = master.size > self.partition.elements
        path = write(store, self.partition.grown if is_grown else self.partition, master, state,
                     elapsed)
        self.norm = norm
        return path


def write(store: Kept, partition: RowPartition, master: np.ndarray, state: ServerState,
          elapsed: float) -> Path:
    """Write a checkpoint and return its path.

    Every parameter of the model is a tensor with the parameter's name, so any safetensors reader
    can load the model. The arrays of the method are tensors 'rog/update/NAME', each as long as the
    whole model.
    """
    sizes = np.cumsum([p.size for p in partition.parameters])[:-1]
    tensors = {p.name: part.reshape(p.shape)
               for p, part in zip(partition.parameters, np.split(master, sizes), strict=True)}
    tensors['rog/updated_at'] = state.updated_at
    tensors |= {UPDATE + name: held for name, held in state.update.items()}
    if state.base is not None:
        tensors[BASE] = state.base
    try:
        return store.write(save(tensors), {
            'schema': SCHEMA, 'model': partition.digest, 'iteration': state.iteration,
            'sync': state.sync, 'elapsed_s': elapsed, 'policy': state.policy,
            'pushes': {n: _receipt_to_json(*push) for n, push in state.pushes.items()}})
    except DurableError as error:
        raise CheckpointError(str(error)) from error


def read(found: Save, partition: RowPartition, fresh: np.ndarray | None = None
         ) -> tuple[np.ndarray, ServerState, float]:
    """Return master rows, server state and elapsed seconds from a checkpoint.

    The master rows contain the frozen parameters if a robot has unfrozen one of them.

    :param fresh: a new model, float32 (elements,); a checkpoint of an earlier version, which has
        no buffers, gets them from it; None: such a checkpoint is refused.
    :raises CheckpointError: the checkpoint is of another model or schema, or is damaged.
    """
    path, meta = found.path, found.meta
    try:
        if meta['schema'] != SCHEMA:
            raise CheckpointError(f'{path} has schema {meta["schema"]}, this version reads '
                                  f'{SCHEMA}')
        is_former = fresh is not None and meta['model'] == partition.trained_digest \
            and partition.trained_digest != partition.digest
        if not is_former and meta['model'] != partition.digest:
            raise CheckpointError(f'{path} is of another model or granularity; choose another '
                                  'out directory, or start without resume')
        tensors = load(found.content)
        updated_at = tensors['rog/updated_at']
        update = {name.removeprefix(UPDATE): held for name, held in sorted(tensors.items())
                  if name.startswith(UPDATE)}
        pushes = {n: _receipt_from_json(entry) for n, entry in meta['pushes'].items()}
        if all(p.name in tensors for p in partition.frozen):
            partition = partition.grown
        base = tensors.get(BASE)
        if is_former:
            assert fresh is not None
            buffers = fresh[partition.buffers]
            more = partition.buffer_rows
            updated_at = np.append(updated_at, np.zeros(more.stop - more.start, np.int64))
            update = {n: np.append(held, np.zeros_like(buffers)) for n, held in update.items()}
            base = None if base is None else np.append(base, buffers)
            starts = partition.starts
            tensors |= {p.name: fresh[starts[k]:starts[k + 1]].reshape(p.shape)
                        for k, p in enumerate(partition.parameters) if p.role in BUFFERS}
        state = ServerState(int(meta['iteration']), parse(meta['sync']).text, updated_at,
                            pushes, dict(meta['policy']), update, base)
        master = _master(partition, tensors)
        _check('rog/updated_at', updated_at, (partition.rows,), np.int64)
        for name, held in [*((UPDATE + n, h) for n, h in update.items()),
                           *([(BASE, base)] if base is not None else [])]:
            _check(name, held, (partition.elements,), np.float32)
        return master, state, float(meta['elapsed_s'])
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f'{path} cannot be read: {error}') from error


def _check(name: str, values: np.ndarray, shape: tuple[int, ...], dtype: type) -> None:
    if values.shape != shape or values.dtype != dtype:
        raise ValueError(f'{name} is {values.dtype} of shape {values.shape}')
    if not np.isfinite(values).all():
        raise ValueError(f'{name} holds values that are not finite')


def _master(partition: RowPartition, parts: dict[str, np.ndarray]) -> np.ndarray:
    for parameter in partition.parameters:
        _check(parameter.name, parts[parameter.name], tuple(parameter.shape), np.float32)
    return np.concatenate([parts[p.name].reshape(-1) for p in partition.parameters])
