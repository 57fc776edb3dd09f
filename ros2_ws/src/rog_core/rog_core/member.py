"""A member: what the parameter server knows of one robot."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from .messages import Chunk, Kind, Receipt, RegisterResponse
from .methods.base import Standing
from .mirror import Mirror
from .states import (
    AWAY,
    COUNTED,
    DONE,
    JOINING,
    MEMBER,
    PLACE,
    PULLING,
    STOPPED,
    TRAINING,
)
from .steps import Gradient, Step
from .transfer.link import LinkEstimate
from .transfer.receiver import Receiver
from .transfer.sender import Sender

BUSY = (JOINING, PULLING, TRAINING)  # it is its turn to do something
USUAL = 10  # a gradient that takes so many times longer than usual is no progress any more


@dataclass
class Member:
    """One process of one robot. ``versions``, ``pulled_at``: iteration per row, int64 (rows,)."""

    robot: str
    incarnation: int
    push: Receiver
    mirror: Mirror
    versions: np.ndarray     # V: iteration of the newest gradient of each row that the server has
    pulled_at: np.ndarray    # iteration at which the worker last got each row
    bound: float             # staleness bound under which its last push was made
    heard: float             # time of the last heartbeat, s
    link: LinkEstimate       # kept when the robot registers again
    attempt: int             # number of the last transfer to the robot, never reused
    state: str = JOINING     # see `rog_core.states.MEMBER`
    iteration: int = 0       # last iteration pushed
    slowest: int = 0         # min(versions)
    granted_bound: float = 0.0  # staleness bound under which its next push is made
    step: Step = Gradient()  # step of the iteration that was granted last
    granted: int = 0         # that iteration
    sender: Sender | None = None  # of the transfer to it that is under way
    request: int = 0         # number of its last registration
    answer: RegisterResponse | None = None  # to that registration
    push_mta: float = 0.0    # seconds that the last minimum transmission amount took
    pull_mta: float = 0.0
    rows_pushed: int = 0     # rows of the last push
    rows_pulled: int = 0     # rows of the last pull
    waiting_for: list[str] = field(default_factory=list)
    since: float = 0.0       # time at which it began to wait for others, s
    pushed: float = math.nan  # time of its last push, s
    period: float = math.nan  # running mean of the seconds between two pushes
    loss: float = math.nan   # of its last batch
    place: str = COUNTED     # see `rog_core.states.PLACE`
    early: list[Chunk] = field(default_factory=list)  # of a push, before its pull's receipt
    progress: float = math.nan  # time at which it last made progress, s
    computes: float = math.nan  # time since when it computes its present gradient; NaN: it does not
    usual: float = math.nan  # seconds that a gradient takes it, as a rule

    def move(self, event: str) -> None:
        """Change the state as `rog_core.states.MEMBER` says."""
        self.state = MEMBER.after(self.state, event)

    def take_place(self, event: str) -> None:
        """Change the place as `rog_core.states.PLACE` says."""
        self.place = PLACE.after(self.place, event)

    def advance(self, now: float, computes: bool = False, heard: bool = True) -> None:
        """Note that it makes progress; ``computes``: it begins to compute.

        ``heard``: by what it has sent, which shows that it lives as a heartbeat does.
        """
        if heard:
            self.heard = now
        if not math.isnan(self.computes):
            taken = now - self.computes
            # One that evaluates now and then is slow as a rule.
            self.usual = taken if math.isnan(self.usual) else max(taken, 0.9 * self.usual)
        self.progress, self.computes = now, now if computes else math.nan

    def as_usual(self, now: float, least: float, fleet: Iterable[Member]) -> bool:
        """Whether its gradient takes less than `USUAL` times its usual time, or ``least``, s.

        For its first gradient the longest usual time in the ``fleet`` counts.
        """
        usual = self.usual
        if math.isnan(usual):
            usual = max((m.usual for m in fleet if not math.isnan(m.usual)), default=math.inf)
        return now - self.computes <= USUAL * max(usual, least)

    @property
    def standing(self) -> Standing:
        """Its progress, as a method sees it."""
        return Standing(self.iteration, self.slowest, self.link.rate, self.loss)

    def has_pushed(self, now: float) -> None:
        """Update the mean time between pushes."""
        passed = now - self.pushed
        if passed > 0:
            former = passed if math.isnan(self.period) else self.period
            self.period = former + (passed - former) / 8
        self.pushed = now

    @property
    def alive(self) -> bool:
        """Whether it is neither away nor stopped."""
        return self.state not in (AWAY, STOPPED)

    @property
    def has_to_act(self) -> bool:
        """Whether it is its turn; also if it waits for rows of its own, which no push brings."""
        return self.state in BUSY or self.robot in self.waiting_for

    def reconcile(self, pull: Receipt | None) -> None:
        """End the transfer that was under way by what the worker says it has taken of it."""
        sender, self.sender = self.sender, None
        if sender is None:
            return
        if sender.state != DONE:
            sender.abort(pull if pull is not None and pull.transfer == sender.transfer else None)
        if sender.transfer.kind == Kind.PULL:
            self.mirror.taken(sender.codec, sender.taken_chunks())
