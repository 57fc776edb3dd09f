"""How much time the fleet has for one transfer of one member. Seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .member import Member
from .methods import Method


def mta_time(members: Sequence[Member]) -> float:
    """Time that the fleet affords for a transfer: the slowest member's last MTA duration."""
    return max((max(m.push_mta, m.pull_mta) for m in members), default=0.0)


def budget(member: Member, members: Sequence[Member]) -> float:
    """Time beyond the minimum: the MTA time; none for a straggler, so that it catches up."""
    iterations = [m.iteration for m in members]
    straggler = member.iteration == min(iterations) < max(iterations)
    return 0.0 if straggler else mta_time(members)


def patience(member: Member, members: Sequence[Member], method: Method) -> float:
    """Time that the minimum of a transfer may take before somebody waits for this member.

    The fleet goes on for as many of its periods as the member's oldest row has left within the
    bound; of these the member has an even share for each of its transfers. Infinite where no
    smaller code may be chosen, or nobody else is there.
    """
    others = [m for m in members if m is not member]
    periods = [m.period for m in others if not math.isnan(m.period)]
    if not periods or not method.shrinks:
        return math.inf
    ahead = max(m.iteration for m in others) - member.slowest
    left = max(method.bound - ahead, 1.0)
    return float(np.median(periods)) * left / method.bound
