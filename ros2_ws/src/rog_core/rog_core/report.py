"""State and statistics of a worker, for its status message."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .member import Member
from .states import AWAY, RETIRED, TRAINING

# What a worker is doing; times and power are counted for each of these.
COMPUTES, COMMUNICATES, STALLS = 'computing', 'communicating', 'stalled'
TIME_OF = {COMPUTES: 'compute_time', COMMUNICATES: 'communicate_time', STALLS: 'stall_time'}


@dataclass
class WorkerStatistics:
    """Counters over the run. Times in seconds, sizes in bytes."""

    bytes_sent: int = 0
    bytes_received: int = 0
    rows_pushed: int = 0
    rows_pulled: int = 0
    compute_time: float = 0.0
    communicate_time: float = 0.0
    stall_time: float = 0.0
    refused: int = 0  # pushes that the server did not use, because their norm is implausible


@dataclass(frozen=True)
class WorkerReport:
    """State and statistics; names and units are those of rog_msgs/TrainingStatus."""

    state: str
    sync: str
    iteration: int
    staleness: int
    rows_total: int
    rows_pushed: int
    rows_pulled: int
    bandwidth: float
    compute_time: float
    communicate_time: float
    stall_time: float
    bytes_sent: int
    bytes_received: int


def why(member: Member, newest: int, waited_for: bool, now: float) -> str:
    """Return why others wait for a member, or no longer do; empty if neither.

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
