"""Makes a text for the server's status message: why other robots wait for a robot."""

from __future__ import annotations

import math

from ..protocol.states import AWAY, RETIRED, TRAINING
from .member import Member


def why(member: Member, newest: int, now: float) -> str:
    """Return the reason why other robots wait, or no longer wait, for a member.

    The text is empty if no robot waits for the member, and the member is neither away nor retired.
    ``newest``: the highest iteration that any robot has pushed. ``now`` is in seconds.
    """
    patience = member.patience
    if member.state == AWAY:
        return f'no heartbeat for {now - patience.heard:.0f} s'
    if patience.awaited is None and patience.place != RETIRED:
        return ''
    does = member.state
    if does == TRAINING:
        does = 'pushing' if math.isnan(patience.computes) else 'computing'
    since = f'{does}, no progress for {now - patience.progress:.1f} s'
    if patience.place == RETIRED:
        return f'{since}: the others go on'
    return f'{newest - member.slowest} iterations behind, {since}'
