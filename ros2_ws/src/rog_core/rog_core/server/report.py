"""Says why others wait for a robot, for the server's status message."""

from __future__ import annotations

import math

from ..protocol.states import AWAY, RETIRED, TRAINING
from .member import Member


def why(member: Member, newest: int, waited_for: bool, now: float) -> str:
    """Return why others wait for a member, or no longer wait for it; empty if neither holds.

    ``newest``: the highest iteration that any robot has pushed; ``now`` in seconds.
    """
    if member.state == AWAY:
        return f'no heartbeat for {now - member.heard:.0f} s'
    if not (waited_for or member.place == RETIRED):
        return ''
    does = member.state
    if does == TRAINING:
        does = 'pushing' if math.isnan(member.computes) else 'computing'
    since = f'{does}, no progress for {now - member.progress:.1f} s'
    if member.place == RETIRED:
        return f'{since}: the others go on'
    return f'{newest - member.slowest} iterations behind, {since}'
