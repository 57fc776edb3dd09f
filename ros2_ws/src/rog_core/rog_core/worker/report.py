"""State and statistics of a worker, for its status message."""

from __future__ import annotations

from dataclasses import dataclass

# Activities of a robot; time and power are counted separately for each activity.
COMPUTES, COMMUNICATES, STALLS = 'computing', 'communicating', 'stalled'
TIME_OF = {COMPUTES: 'compute_time', COMMUNICATES: 'communicate_time', STALLS: 'stall_time'}


@dataclass
class WorkerStatistics:
    """Counters since the start of the run; times are in seconds, sizes in bytes."""

    bytes_sent: int = 0
    bytes_received: int = 0
    rows_pushed: int = 0
    rows_pulled: int = 0
    compute_time: float = 0.0
    communicate_time: float = 0.0
    stall_time: float = 0.0
    refused: int = 0  # number of pushes whose norm the server found implausible


@dataclass(frozen=True)
class WorkerReport:
    """State and statistics; names and units are as in the message rog_msgs/TrainingStatus."""

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
