"""What a worker gets: rows, a full gradient, or the whole model, and the word on how to go on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .arrays import Array
from .codecs import RAW, SMALLER, Codec
from .config import TransferConfig
from .member import Member
from .messages import Command, Kind
from .methods import Method
from .methods.base import Model
from .mirror import Whole
from .patience import budget, patience
from .transfer import plan as plans
from .transfer.sender import Rows


@dataclass(frozen=True)
class Pull:
    """One transfer to a worker."""

    kind: Kind
    plan: plans.Plan
    codec: Codec
    rows: Rows
    command: Command


def pull_of(member: Member, active: Sequence[Member], method: Method, model: Model,
            updated_at: np.ndarray, config: TransferConfig) -> Pull:
    """Plan the pull of a member that the method lets go on.

    ``updated_at`` int64 (rows,): newest iteration in each master row.
    """
    partition, sending = model.partition, method.sending()
    pending = member.mirror.measure()
    candidates = pending > 0
    time = budget(member, active) if method.time_limited else math.inf
    if sending.minimum < 1:
        scores = plans.importance(pending, updated_at - updated_at.min(),
                                  config.importance_magnitude, config.importance_age)
        # Not in the paper: what a worker reads is bounded like what it writes.
        plan = plans.by_importance(partition, sending, scores, member.iteration - member.pulled_at,
                                   candidates, time)
    else:
        plan = plans.everything(partition, np.flatnonzero(candidates))
    member.pulled_at[~candidates] = member.iteration
    left = patience(member, active, method)
    codec = plans.affordable(plan, partition, model.codec, SMALLER, member.link.rate, left)
    iteration, step = method.grant(member.robot, member.iteration)
    staleness = member.iteration - min(m.slowest for m in active)
    command = Command(iteration, time, staleness, str(method), patience=left, sending=sending,
                      ahead=method.pipelined and staleness + 1 < method.bound, step=step)
    # It holds the model of the barrier, but for rounding, unless it was out of reach then.
    current = bool((member.pulled_at >= member.iteration - 1).all())
    whole = method.whole_for(member.iteration, current)
    if whole is not None:
        return _whole(Kind.ANCHOR, model, whole, command)
    return Pull(Kind.PULL, plan, codec, member.mirror, command)


def snapshot_of(model: Model) -> Pull:
    """The whole model, for a worker that joins."""
    return _whole(Kind.SNAPSHOT, model, model.master, Command())


def final_of(member: Member, model: Model, method: Method, limit: float) -> Pull:
    """What the worker's model lacks, most different rows first, for ``limit`` seconds at most."""
    pending = member.mirror.measure()
    cut = model.partition.raw_cut
    plan = plans.by_score(cut, pending, np.flatnonzero(pending > 0), limit)
    return Pull(Kind.FINAL, plan, RAW, Whole(cut, model.master),
                Command(sync=str(method), stop=True))


def _whole(kind: Kind, model: Model, values: Array, command: Command) -> Pull:
    cut = model.partition.raw_cut
    return Pull(kind, plans.everything(cut), RAW, Whole(cut, values), command)
