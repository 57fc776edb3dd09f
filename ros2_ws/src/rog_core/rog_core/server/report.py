"""Makes a text for the server's status message: why other robots wait for a robot."""

from __future__ import annotations

import math

from ..protocol.states import AWAY, RETIRED, TRAINING
from .member import Member


def why(member: Member, newest: int, waited_for: bool, now: float) -> str:
    """Return the reason why other robots wait, or no longer wait, for a member.

    The text is empty if no robot waits for the member, and the member is neither away nor retired.
    ``newest``: the highest iteration that any robot has pushed. ``waited_for``: whether other
    robots wait for the member. ``now`` is in seconds.
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
