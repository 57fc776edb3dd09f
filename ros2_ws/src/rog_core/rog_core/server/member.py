"""A member: the server's data about one robot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from ..methods import Method
from ..methods.base import Standing
from ..patience import Patience
from ..protocol.messages import Chunk, End, Kind, Receipt, RegisterResponse
from ..protocol.states import (
    AWAY,
    DONE,
    JOINING,
    MEMBER,
    PULLING,
    RETIRED,
    STOPPED,
    TRAINING,
)
from ..protocol.steps import Gradient, Step
from ..transfer.link import RowLink
from ..transfer.receiver import Receiver
from ..transfer.sender import Sender
from .mirror import Mirror

BUSY = (JOINING, PULLING, TRAINING)  # states in which the server waits for a message of the member
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
    patience: Patience       # whether it is heard and makes progress, and whether it counts
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
    # messages of the next push that have arrived before the receipt of the pull
    early: list[Chunk | End] = field(default_factory=list)
    wanted: int = 1          # number of segments of the push that must arrive
    granted_at: float = 0.0  # time at which the iteration was granted, in seconds
    # The server limits `push_mta` to `factor` * (time from `granted_at` to the end of the push).
    factor: float = 1.0

    def move(self, event: str) -> None:
        """Change the state by ``event``, as the table `rog_core.protocol.states.MEMBER` says."""
        self.state = MEMBER.after(self.state, event)

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

    def why(self, newest: int, now: float) -> str:
        """Return the reason why other robots wait, or no longer wait, for this member.

        The text is empty if no robot waits for the member, and the member is neither away nor
        retired. ``newest``: the highest iteration that any robot has pushed.
        """
        patience = self.patience
        if self.state == AWAY:
            return f'no heartbeat for {now - patience.heard:.0f} s'
        if patience.awaited is None and patience.place != RETIRED:
            return ''
        does = self.state
        if does == TRAINING:
            does = 'pushing' if math.isnan(patience.computes) else 'computing'
        since = f'{does}, no progress for {now - patience.progress:.1f} s'
        if patience.place == RETIRED:
            return f'{since}: the others go on'
        return f'{newest - self.slowest} iterations behind, {since}'

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


def mta_time(members: Iterable[Member]) -> float:
    """Return the MTA time: the longest of the times that the members' last MTAs needed.

    MTA: minimum transmission amount, the share of the rows that every transfer must carry.
    """
    return max((max(m.push_mta, m.pull_mta) for m in members), default=0.0)


def budget(member: Member, members: Sequence[Member]) -> float:
    """Return the seconds for which a transfer to a member may send rows that are not mandatory.

    The result is the MTA time. It is 0 for a straggler, which is a member at the lowest iteration
    while other members are ahead.
    """
    iterations = [m.iteration for m in members]
    straggler = member.iteration == min(iterations) < max(iterations)
    return 0.0 if straggler else mta_time(members)


def leeway(member: Member, members: Sequence[Member], method: Method) -> float:
    """Return how many seconds a member's mandatory rows may take so that no robot waits for them.

    The result is the median time between two pushes of the other members, multiplied by a share.
    The share is the part of the staleness bound that is left for the member's oldest row. The
    result is infinite if the option ``sparse`` of the method is off, because only this option
    allows a smaller codec. The result is also infinite if no other member has pushed twice.
    """
    others = [m for m in members if m is not member]
    periods = [m.period for m in others if not math.isnan(m.period)]
    if not periods or not method.shrinks:
        return math.inf
    ahead = max(m.iteration for m in others) - member.slowest
    left = max(method.bound - ahead, 1.0)
    return median(periods) * left / method.bound
