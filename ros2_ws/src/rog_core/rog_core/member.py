"""What the parameter server knows of one robot."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from .link import LinkEstimate
from .messages import Kind, Receipt, RegisterResponse, Work
from .mirror import Mirror
from .policy import Progress
from .receiver import Receiver
from .sender import DONE, Sender

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
    told: float = 0.0        # staleness bound that the member was last told of,
    work: Work | None = None  # what it computes,
    granted: int = 0         # and for which iteration
    sender: Sender | None = None
    whole: bool = False      # the mirror is what the worker holds, but for the transfer under way
    request: int = 0         # number of its last registration,
    answer: RegisterResponse | None = None  # and what it was told
    attempt: int = 0         # transfers to the robot, over all its lives
    link: LinkEstimate = field(default_factory=LinkEstimate)
    push_mta: float = 0.0    # seconds that the last minimum transmission amount took
    pull_mta: float = 0.0
    rows_pushed: int = 0     # rows of the last push
    rows_pulled: int = 0     # rows of the last pull
    draining: bool = False   # its last transfer is under way
    waiting_for: list[str] = field(default_factory=list)
    since: float = 0.0       # time at which it began to wait for others, s
    pushed: float = math.nan  # time of its last push, s
    period: float = math.nan  # seconds from push to push, recent ones
    loss: float = math.nan   # of its last batch

    @property
    def progress(self) -> Progress:
        """What a policy may know of it."""
        return Progress(self.iteration, self.slowest, self.link.rate, self.loss)

    def has_pushed(self, now: float) -> None:
        """Take the time of a push."""
        passed = now - self.pushed
        if passed > 0:
            former = passed if math.isnan(self.period) else self.period
            self.period = former + (passed - former) / 8
        self.pushed = now

    @property
    def alive(self) -> bool:
        """Neither away nor stopped."""
        return self.state not in (AWAY, STOPPED)

    def reconcile(self, pull: Receipt | None) -> None:
        """Take what the worker says that it has of the transfer that was under way."""
        sender, self.sender = self.sender, None
        if sender is None:
            return
        if sender.state != DONE:
            sender.abort(pull if pull is not None and pull.transfer == sender.transfer else None)
        if sender.transfer.kind == Kind.PULL:
            self.mirror.taken(sender.codec, sender.taken_chunks())
