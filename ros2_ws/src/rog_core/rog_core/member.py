"""What the parameter server knows of one robot."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from .messages import Kind, Receipt, RegisterResponse
from .methods.base import Standing
from .mirror import Mirror
from .states import AWAY, DONE, JOINING, MEMBER, STOPPED
from .steps import Gradient, Step
from .transfer.link import LinkEstimate
from .transfer.receiver import Receiver
from .transfer.sender import Sender


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
    link: LinkEstimate       # of all the robot's lives
    attempt: int             # transfers to the robot, over all its lives
    state: str = JOINING     # see `rog_core.states.MEMBER`
    iteration: int = 0       # last iteration pushed
    slowest: int = 0         # min(versions)
    bound_told: float = 0.0  # staleness bound that its next push complies with
    step: Step = Gradient()  # what it was told to compute, and for which iteration
    granted: int = 0
    sender: Sender | None = None  # of the transfer to it that is under way
    request: int = 0         # number of its last registration, and the answer to it
    answer: RegisterResponse | None = None
    push_mta: float = 0.0    # seconds that the last minimum transmission amount took
    pull_mta: float = 0.0
    rows_pushed: int = 0     # rows of the last push
    rows_pulled: int = 0     # rows of the last pull
    waiting_for: list[str] = field(default_factory=list)
    since: float = 0.0       # time at which it began to wait for others, s
    pushed: float = math.nan  # time of its last push, s
    period: float = math.nan  # seconds from push to push, recent ones
    loss: float = math.nan   # of its last batch

    def move(self, event: str) -> None:
        """Change the state as `rog_core.states.MEMBER` says."""
        self.state = MEMBER.after(self.state, event)

    @property
    def standing(self) -> Standing:
        """What a method may know of it."""
        return Standing(self.iteration, self.slowest, self.link.rate, self.loss)

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
