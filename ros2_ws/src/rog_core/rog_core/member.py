"""What the parameter server knows of one robot."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .link import LinkEstimate
from .mirror import Mirror
from .receiver import Receiver
from .sender import Sender

JOINING, WAITING, PULLING, TRAINING = 'joining', 'waiting', 'pulling', 'training'
AWAY, STOPPED = 'away', 'stopped'


@dataclass
class Member:
    """One life of one robot. ``versions``, ``pulled_at``: iteration per row, int64 (rows,)."""

    robot: str
    incarnation: int
    push: Receiver
    mirror: Mirror
    versions: np.ndarray     # V: iteration of the newest gradient of each row that the server has
    pulled_at: np.ndarray    # iteration at which the worker last got each row
    bound: float             # staleness bound that the member's last push complied with
    heard: float             # time of the last heartbeat, s
    state: str = JOINING
    iteration: int = 0       # last iteration pushed
    slowest: int = 0         # min(versions)
    told: float = 0.0        # staleness bound that the member was last told of
    sender: Sender | None = None
    attempt: int = 0         # transfers to the robot, over all its lives
    link: LinkEstimate = field(default_factory=LinkEstimate)
    push_mta: float = 0.0    # seconds that the last minimum transmission amount took
    pull_mta: float = 0.0
    rows_pushed: int = 0     # rows of the last push
    rows_pulled: int = 0     # rows of the last pull
    draining: bool = False   # its last transfer is under way
    waiting_for: list[str] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Neither away nor stopped."""
        return self.state not in (AWAY, STOPPED)
