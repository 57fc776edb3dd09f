"""What a worker gets: rows, a full gradient, or the whole model, and the word on how to go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from . import plan as plans
from .codecs import RAW, SMALLER, Codec
from .member import Member
from .messages import Command, Kind
from .patience import budget, patience
from .rules import Rules
from .sync import SyncMethod


@dataclass(frozen=True)
class Pull:
    """One transfer to a worker; ``encode`` as in `rog_core.sender.Sender`."""

    kind: Kind
    plan: plans.Plan
    codec: Codec
    encode: Callable[[np.ndarray], np.ndarray]
    command: Command


def pull_of(member: Member, active: Sequence[Member], rules: Rules, updated_at: np.ndarray,
            f1: float, f2: float) -> Pull:
    """Plan the pull of a member that the method lets go on.

    ``updated_at`` int64 (rows,): newest iteration in each master row. ``f1``, ``f2``: see
    `rog_core.plan.importance`.
    """
    method, partition = rules.policy.method, rules.partition
    pending = member.mirror.measure()
    candidates = pending > 0
    time = budget(member, active)
    if method.adaptive:
        scores = plans.importance(pending, updated_at - updated_at.min(), f1, f2)
        # Not in the paper: what a worker reads is bounded like what it writes.
        late = member.iteration - member.pulled_at >= method.bound
        plan = plans.adaptive(partition, method, scores, late & candidates & method.by_row,
                              candidates, time)
    else:
        plan = plans.everything(partition, np.flatnonzero(candidates))
    member.pulled_at[~candidates] = member.iteration
    left = patience(member, active, method)
    codec = plans.affordable(plan, partition, rules.codec, SMALLER, member.link.rate, left)
    iteration, work = rules.policy.grant(member.robot, member.iteration)
    staleness = member.iteration - min(m.slowest for m in active)
    command = Command(iteration, time, staleness, str(method), patience=left, work=work)
    # It holds the model of the barrier, but for rounding, unless it was out of reach then.
    current = (member.pulled_at >= member.iteration - 1).all()
    if method.is_full(member.iteration) and current \
            and rules.full_gradient.is_of(member.iteration):
        return _anchor(rules, command)
    return Pull(Kind.PULL, plan, codec, lambda ids: member.mirror.encode(codec, ids), command)


def snapshot_of(member: Member) -> Pull:
    """The whole model, for a worker that joins."""
    plan = plans.everything(member.mirror.partition.raw_cut)
    return Pull(Kind.SNAPSHOT, plan, RAW, member.mirror.encode_snapshot, Command())


def final_of(member: Member, method: SyncMethod, limit: float) -> Pull:
    """What the worker's model lacks, most different rows first, for ``limit`` seconds at most."""
    pending = member.mirror.measure()
    plan = plans.by_score(member.mirror.partition.raw_cut, pending, np.flatnonzero(pending > 0),
                          limit)
    return Pull(Kind.FINAL, plan, RAW, member.mirror.encode_snapshot,
                Command(sync=str(method), stop=True))


def _anchor(rules: Rules, command: Command) -> Pull:
    """The fleet's full gradient, for a worker that holds the model it is of."""
    cut, mean = rules.partition.raw_cut, rules.full_gradient.mean()
    return Pull(Kind.ANCHOR, plans.everything(cut), RAW,
                lambda ids: RAW.snapshot(cut, mean, ids), command)
