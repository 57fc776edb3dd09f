"""Plans a transfer to a worker: rows, full gradient or whole model, and the worker's command."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Array
from ..codecs import RAW, SMALLER, Codec
from ..errors import LocalProtocolError, RemoteProtocolError
from ..methods import Method
from ..methods.base import Model
from ..protocol.config import TransferConfig
from ..protocol.messages import Command, Kind
from ..transfer import plan as plans
from ..transfer.sender import RawRows, Rows
from .deadlines import budget, patience
from .member import Member


@dataclass(frozen=True)
class Pull:
    """One transfer to a worker; its fields are arguments of `rog_core.transfer.sender.Sender`."""

    kind: Kind
    plan: plans.Plan
    codec: Codec
    rows: Rows
    command: Command


def pull_of(member: Member, active: Sequence[Member], method: Method, model: Model,
            updated_at: np.ndarray, config: TransferConfig) -> Pull:
    """Plan the pull of a member that may start its next iteration.

    ``updated_at`` int64 (rows,): for each master row, the iteration of the newest push that carried
    this row; a change by the parent fleet counts as such a push.
    """
    partition, sending = model.partition, method.sending()
    pending = member.mirror.measure()
    differ, age = pending > 0, member.iteration - member.pulled_at
    if config.buffers == 'local':
        differ[partition.buffer_rows] = False
    candidates = differ & member.step.turn(age) & plans.due_buffers(partition, sending, age)
    time = budget(member, active) if method.time_limited else math.inf
    if sending.minimum < 1:
        scores = plans.importance(pending, updated_at - updated_at.min(),
                                  config.importance_magnitude, config.importance_age,
                                  partition.buffer_rows)
        # Bound the staleness of pulled rows, too, not only of pushed rows; this is not in the
        # paper.
        plan = plans.by_importance(partition, sending, scores, age, candidates, time)
    else:
        plan = plans.everything(partition, np.flatnonzero(candidates))
    member.pulled_at[~differ] = member.iteration
    left = patience(member, active, method)
    codec = plans.affordable(plan, partition, model.codec, SMALLER, member.link.rate, left)
    iteration, step = method.grant(member.robot, member.iteration)
    staleness = member.iteration - min(m.slowest for m in active)
    command = Command(iteration, time, staleness, str(method), patience=left, sending=sending,
                      ahead=method.goes_ahead(staleness), step=step)
    _check(command, member, method)
    # With SVRG, all robots wait at a barrier before a full gradient. At the barrier, all members
    # have the same model, apart from rounding. Only a member that was out of reach may have an
    # older model.
    current = bool((member.pulled_at >= member.iteration - 1).all())
    full = method.full_gradient_for(member.iteration, current)
    if full is not None:
        return _raw_transfer(Kind.ANCHOR, model, full, command, model.partition.trained())
    return Pull(Kind.PULL, plan, codec, member.mirror, command)


def _check(command: Command, member: Member, method: Method) -> None:
    """Raise `LocalProtocolError` if the robot would refuse the command or make no progress."""
    reason = ''
    # `Step.additive` is false if unsent rows of a step must not be added to a later result. The
    # push of such a step may arrive after the end of its round. Then the server may grant the same
    # iteration again.
    least = member.iteration + command.step.additive
    if not command.next_iteration >= least:
        reason = f'grant must return an iteration of at least {least}, got {command.next_iteration}'
    try:
        command.check()
    except RemoteProtocolError as error:
        reason = str(error)
    if reason:
        raise LocalProtocolError(f"synchronisation method '{method}', {member.robot} after "
                                 f'iteration {member.iteration}: {reason}')


def snapshot_of(model: Model) -> Pull:
    """Plan a transfer of the whole model, for a worker that joins."""
    return _raw_transfer(Kind.SNAPSHOT, model, model.master, Command())


def final_of(member: Member, model: Model, method: Method, limit: float, config: TransferConfig
             ) -> Pull:
    """Plan the transfer of the final model, which may take ``limit`` seconds.

    The plan has the rows that differ from the worker's rows, the largest difference first.
    """
    pending = member.mirror.measure()
    partition = model.partition.raw_partition
    if config.buffers == 'local':
        pending[partition.buffer_rows] = 0
    plan = plans.by_score(partition, pending, np.flatnonzero(pending > 0), limit)
    return Pull(Kind.FINAL, plan, RAW, RawRows(partition, model.master),
                Command(sync=str(method), stop=True))


def _raw_transfer(kind: Kind, model: Model, values: Array, command: Command,
                  rows: np.ndarray | None = None) -> Pull:
    partition = model.partition.raw_partition
    plan = plans.everything(partition, None if rows is None else np.flatnonzero(rows))
    return Pull(kind, plan, RAW, RawRows(partition, values), command)
