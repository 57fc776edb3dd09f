"""Time limits of transfers, in seconds: how long the fleet can wait for one member."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..methods import Method
from .member import Member

ITERATIONS = 4  # iterations for which the fleet waits for a member that makes no progress


def mta_time(members: Sequence[Member]) -> float:
    """Return the MTA time: how long the slowest member needed for its last minimum (MTA)."""
    return max((max(m.push_mta, m.pull_mta) for m in members), default=0.0)


def budget(member: Member, members: Sequence[Member]) -> float:
    """Return the time for a transfer of a member: the MTA time, 0 for a member that is behind."""
    iterations = [m.iteration for m in members]
    straggler = member.iteration == min(iterations) < max(iterations)
    return 0.0 if straggler else mta_time(members)


def longest_pause(members: Sequence[Member], patience: float, least: float) -> float:
    """Return how many seconds the fleet waits for a member that makes no progress.

    This is ``patience``. If that is 0, it is `ITERATIONS` times the median time from push to push,
    and at least ``least``.
    """
    periods = [m.period for m in members if not math.isnan(m.period)]
    if patience or not periods:
        return patience or least
    return max(ITERATIONS * float(np.median(periods)), least)


def patience(member: Member, members: Sequence[Member], method: Method) -> float:
    """Return how long the minimum of a transfer may take before others wait for this member.

    It is the median time from push to push of the others, times the share of the staleness bound
    that is left for the member's oldest row. It is infinite if the method does not use the smaller
    codec (option ``sparse``), or if there is no other member.
    """
    others = [m for m in members if m is not member]
    periods = [m.period for m in others if not math.isnan(m.period)]
    if not periods or not method.shrinks:
        return math.inf
    ahead = max(m.iteration for m in others) - member.slowest
    left = max(method.bound - ahead, 1.0)
    return float(np.median(periods)) * left / method.bound
