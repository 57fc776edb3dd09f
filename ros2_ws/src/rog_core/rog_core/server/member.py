"""A member: the server's data about one robot."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ..methods.base import Standing
from ..protocol.messages import Chunk, End, Kind, Receipt, RegisterResponse
from ..protocol.states import (
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
from ..protocol.steps import Gradient, Step
from ..transfer.link import RowLink
from ..transfer.receiver import Receiver
from ..transfer.sender import Sender
from .mirror import Mirror

BUSY = (JOINING, PULLING, TRAINING)  # states in which the server waits for a message of the member
USUAL = 10  # computing counts as progress for at most USUAL times the usual time of a gradient
PACE = 10   # the mandatory segments of a transfer must arrive within PACE times the patience
LEFT = 4    # at least 1/LEFT of the fleet's patience is always left for each member
SHARE = 10  # in the long run, the other robots wait for a member at most 1/SHARE of the time
OWED = 2    # a retired member returns once `Member.owed` is at most OWED times the patience
LEAST = 1 / 32  # at least this share of the segments of a push must arrive


@dataclass
class Member:
    """The server's data about one process of one robot.

    ``versions`` and ``pulled_at``, int64 (rows,), contain one iteration for each row.
    """

    robot: str
    incarnation: int
    push: Receiver
    mirror: Mirror
    versions: np.ndarray     # for each row, newest iteration whose gradient has arrived (V in ROG)
    pulled_at: np.ndarray    # for each row, iteration at which the worker last received this row
    trained: np.ndarray      # which rows the robot trains, see `RowPartition.trained`, bool (rows,)
    bound: float             # staleness bound that applied to the robot's last push
    heard: float             # time of the last message from the robot, in seconds
    link: RowLink            # kept when the robot registers again
    attempt: int             # number of the last transfer to the robot; numbers are not reused
    state: str = JOINING     # see `rog_core.protocol.states.MEMBER`
    iteration: int = 0       # last iteration that the robot pushed
    slowest: int = 0         # iteration of the robot's oldest row; see `Server._count_slowest`
    granted_bound: float = 0.0  # staleness bound that applies to the robot's next push
    step: Step = Gradient()  # step of the iteration that was granted last
    granted: int = 0         # iteration that was granted last
    sender: Sender | None = None  # sender of the present transfer to the robot
    request: int = 0         # number of the robot's last registration
    answer: RegisterResponse | None = None  # answer to the last registration
    push_mta: float = 0.0    # seconds that the MTA of the last push took
    pull_mta: float = 0.0    # seconds that the MTA of the last pull took
    rows_pushed: int = 0     # number of complete rows in the last push
    is_whole: bool = False   # whether all `trained` rows of the last push have arrived
    rows_pulled: int = 0     # number of complete rows in the last pull
    waiting_for: list[str] = field(default_factory=list)  # robots for which this robot waits
    since: float = 0.0       # time at which the robot began to wait, in seconds
    pushed: float = math.nan  # time of the last push, in seconds
    period: float = math.nan  # running mean of the seconds between two pushes
    loss: float = math.nan   # loss of the robot's last batch
    place: str = COUNTED     # see `rog_core.protocol.states.PLACE`
    # messages of the next push that have arrived before the receipt of the pull
    early: list[Chunk | End] = field(default_factory=list)
    progress: float = math.nan  # time of the last progress of any size, in seconds
    # Time in seconds up to which the robot's progress has been fast enough; never in the future. If
    # progress is too slow, this time falls behind the present. The robot's patience is counted from
    # this time.
    paid: float = math.nan
    # Patience in seconds that the robot had used up at the time `stood_at`: time for which other
    # robots waited for this robot. `owed` returns the present value.
    stood: float = 0.0
    stood_at: float = 0.0    # time of the last change of `stood`, in seconds
    wanted: int = 1          # number of segments of the push that must arrive
    granted_at: float = 0.0  # time at which the iteration was granted, in seconds
    # The server limits `push_mta` to `factor` * (time from `granted_at` to the end of the push).
    factor: float = 1.0
    computes: float = math.nan  # start of the present gradient, in seconds; NaN: none
    usual: float = math.nan  # seconds that a gradient usually takes

    def move(self, event: str) -> None:
        """Change the state by ``event``, as the table `rog_core.protocol.states.MEMBER` says."""
        self.state = MEMBER.after(self.state, event)

    def take_place(self, event: str) -> None:
        """Change the place to counted or retired by ``event``, as the table `PLACE` says."""
        self.place = PLACE.after(self.place, event)

    def advance(self, now: float, computes: bool = False, heard: bool = True) -> None:
        """Record that the member has made a step of the protocol, which counts as progress.

        ``computes``: whether the member begins to compute. ``heard``: whether the server has
        received a message from the member; a message counts as a heartbeat.
        """
        if heard:
            self.heard = now
        self.paid = now
        if not math.isnan(self.computes):
            taken = now - self.computes
            # Only some gradients include an evaluation, which takes longer. So that `usual` stays
            # high between two evaluations, it falls by at most 10 % per gradient. Times of a
            # retired member do not count, because they are not typical.
            if self.place == COUNTED:
                self.usual = taken if math.isnan(self.usual) else max(taken, 0.9 * self.usual)
        self.progress, self.computes = now, now if computes else math.nan

    def bring(self, segments: int, before: int, wanted: int, total: int, patience: float,
              now: float) -> None:
        """Record that ``segments`` more segments have arrived, after ``before`` earlier segments.

        ``wanted``: number of segments of the transfer that must arrive. ``total``: number of all
        its segments. Each of the first ``wanted`` segments moves the time `paid` forward by
        `PACE` * patience / ``wanted``. Each later segment moves it by `PACE` * patience /
        ``total``. `paid` is never in the future.
        """
        if not math.isnan(self.computes):
            self.advance(now)
        share = segments / (wanted if before < wanted else max(total, 1))
        self.heard = self.progress = now
        self.paid = min(now, self.paid + share * PACE * patience)

    def stands(self, seconds: float, now: float) -> None:
        """Add to `stood` the ``seconds`` for which other robots have waited for this member."""
        self.stood, self.stood_at = self.owed(now) + seconds, now

    def owed(self, now: float) -> float:
        """Return the seconds of patience that the member has used up; they decrease over time."""
        return max(self.stood - (now - self.stood_at) / SHARE, 0.0)

    def patience(self, patience: float, now: float) -> float:
        """Return how many seconds of the fleet's ``patience`` are left for this member.

        The result is at least 1/`LEFT` of ``patience``.
        """
        return max(patience - self.owed(now), patience / LEFT)

    def as_usual(self, now: float, least: float, fleet: Iterable[Member]) -> bool:
        """Return whether the member's present gradient takes at most `USUAL` times the usual time.

        For the member's first gradient, the usual time is the longest usual time in the ``fleet``.
        ``least`` is the fleet's patience in seconds; the part of it that is left for this member
        is a lower limit of the usual time.
        """
        least = self.patience(least, now)
        usual = self.usual
        if math.isnan(usual):
            usual = max((m.usual for m in fleet if not math.isnan(m.usual)), default=math.inf)
        return now - self.computes <= USUAL * max(usual, least)

    @property
    def standing(self) -> Standing:
        """The progress of the member, in the form that a method receives."""
        return Standing(self.iteration, self.slowest, self.link.rate, self.loss)

    def has_pushed(self, now: float) -> None:
        """Record that the member has pushed, and update the mean time between two pushes."""
        passed = now - self.pushed
        if passed > 0:
            former = passed if math.isnan(self.period) else self.period
            self.period = former + (passed - former) / 8
        self.pushed = now

    @property
    def alive(self) -> bool:
        """Whether the member is neither away nor stopped."""
        return self.state not in (AWAY, STOPPED)

    @property
    def has_to_act(self) -> bool:
        """Whether the fleet waits for this member to act.

        This is true if the server waits for a message of the member. It is also true if the member
        must wait for its own rows, because they are too old at the server.
        """
        return self.state in BUSY or self.robot in self.waiting_for

    def reconcile(self, pull: Receipt | None) -> None:
        """End the present transfer; if it is a pull, add the rows that have arrived to the mirror.

        ``pull``: the worker's receipt of its last pull; None if there is no receipt.
        """
        sender, self.sender = self.sender, None
        if sender is None:
            return
        if sender.state != DONE:
            sender.abort(pull if pull is not None and pull.transfer == sender.transfer else None)
        if sender.transfer.kind == Kind.PULL:
            self.mirror.taken(sender.codec, sender.taken_chunks())
