"""Who may go on: the server's side of the synchronisation methods. No I/O, no clock.

A policy looks at how far every worker is and says for whom a worker has to wait. It is asked again
whenever anything has been pushed, or anybody has come or gone. `rog_core.policies` has them by
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .messages import Work
from .sync import SyncMethod
from .update import Step

STALL_HIGH, STALL_LOW = 0.05, 0.02  # share of time spent waiting: above is too much, below is slack
HARM = 0.25                         # rise of the loss that staleness is blamed for
ROUNDS = 4                          # pushes of each worker between two decisions of `Auto`


@dataclass(frozen=True)
class Progress:
    """What a policy knows of one worker.

    ``iteration``: last one pushed. ``slowest``: iteration of its oldest row (of all, where
    staleness does not count by row). ``rate``: measured throughput, bytes/s. ``loss``: that of its
    last batch; NaN: unknown.
    """

    iteration: int
    slowest: int
    rate: float = 0.0
    loss: float = float('nan')


Fleet = Mapping[str, Progress]


class Policy:
    """A fixed bound for everybody: BSP, SSP, ASP, RSP; and what all have in common."""

    # Robots that a restarted server waits for, until they have had the time to come back.
    expected: frozenset[str] = frozenset()

    def __init__(self, method: SyncMethod) -> None:
        self.asked = method   # as the user named it
        self.method = method  # as the workers are told

    def begin(self, iteration: int) -> None:
        """Take over a fleet whose highest iteration is this, pushed or granted."""

    def refusal(self, robot: str) -> str:
        """Why this robot cannot take part; empty: it can."""
        return ''

    def on_join(self, robot: str) -> list[Step]:
        """A robot joins or comes back, or its push broke off; what it had pushed does not count.

        Returns what the update rule has to do about it.
        """
        return []

    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        """A worker has pushed; ``fleet`` counts it."""

    def on_wait(self, robot: str, seconds: float) -> None:
        """A worker has waited so long for others before it might go on."""

    def in_time(self, robot: str, iteration: int) -> bool:
        """Whether a push of this iteration still counts."""
        return True

    def steps(self, fleet: Fleet, gone: frozenset[str]) -> list[Step]:
        """Return what the update rule has to do now. ``gone``: robots that were there and left."""
        return []

    def bound(self, robot: str) -> float:
        """Iterations by which the worker may not yet be ahead of the slowest."""
        return self.method.bound

    def held_up_by(self, robot: str, fleet: Fleet, least: float = 0.0) -> list[str]:
        """Workers for whom this one must wait; empty: it may go on.

        ``least``: a looser bound that still holds, from before the method was changed.
        """
        if self.at_barrier(robot, fleet):  # who is here may have left rows behind
            own = fleet[robot].iteration
            return [name for name, other in fleet.items() if other.iteration < own]
        return self.behind(robot, fleet, max(self.bound(robot), least))

    @staticmethod
    def behind(robot: str, fleet: Fleet, bound: float) -> list[str]:
        """Workers whose slowest row is ``bound`` or more iterations behind this one."""
        iteration = fleet[robot].iteration
        return [name for name, other in fleet.items() if iteration - other.slowest >= bound]

    def at_barrier(self, robot: str, fleet: Fleet) -> bool:
        """Whether all must be here: a full gradient (SVRG) is of one model, and by everybody."""
        iteration = fleet[robot].iteration
        return self.method.is_full(iteration) or self.method.is_full(iteration + 1)

    def grant(self, robot: str, iteration: int) -> tuple[int, Work | None]:
        """Return what a worker that has pushed ``iteration`` computes next: iteration and work."""
        return iteration + 1, None

    def state(self) -> dict[str, Any]:
        """Return what a restarted server needs to go on, as plain values."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned."""


def controller(latest: float, interval: float, slowest_latest: float, slowest_interval: float,
               most: int) -> int:
    """DSSP, Algorithm 2: extra iterations, 0 to ``most``, after which a worker waits least.

    Times of the last push and intervals between the last two, seconds: of the worker and of the
    slowest one. Both are assumed to go on as before; the worker stops at the r that brings one of
    its pushes closest to one of the slowest's. Of equal waits the fewest iterations are chosen.
    """
    steps = np.arange(most + 1)
    own = latest + steps * interval
    slowest = slowest_latest + slowest_interval + steps * slowest_interval
    return int(np.abs(slowest[None, :] - own[:, None]).min(axis=1).argmin())


class Dssp(Policy):
    """DSSP, Algorithm 1: a threshold per worker between the lowest and the highest.

    The fastest worker, once it is ahead of its threshold, gets the one at which it is expected to
    wait least for the slowest one's next push; who falls back within the lowest has that again.
    Read by the paper's text and Figure 2. Its listing says otherwise in three places: there the
    worker waits until it is within the lowest threshold, so that every extra iteration is waited
    for later; extra iterations that are used up may be granted again beyond the highest; and the
    first one is not counted.
    """

    def __init__(self, method: SyncMethod) -> None:
        super().__init__(method)
        self._pushes: dict[str, tuple[float, float]] = {}  # latest, and the interval before it
        self._bounds: dict[str, float] = {}

    def bound(self, robot: str) -> float:
        """See `Policy.bound`."""
        return self._bounds.get(robot, self.method.bound)

    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        """See `Policy.on_push`."""
        former = self._pushes.get(robot)
        self._pushes[robot] = now, now - former[0] if former else float('nan')
        iteration = fleet[robot].iteration
        slowest = min(fleet, key=lambda name: fleet[name].slowest)
        ahead = iteration - fleet[slowest].slowest
        if ahead < self.method.bound:
            self._bounds[robot] = self.method.bound
        elif ahead >= self.bound(robot) and iteration == max(o.iteration for o in fleet.values()):
            most = int(self.method.most) - ahead
            extra = self._extra(robot, slowest, most) if most > 0 else 0
            self._bounds[robot] = min(ahead + extra, self.method.most)

    def _extra(self, robot: str, slowest: str, most: int) -> int:
        own, other = self._pushes[robot], self._pushes.get(slowest, (0.0, float('nan')))
        if own[1] != own[1] or other[1] != other[1]:
            return 0  # an interval is known from the second push on
        return controller(*own, *other, most)


class Flown(Policy):
    """FLOWN: a threshold per device, from estimated bandwidth and contribution.

    The ROG paper (Sections I and II-D) describes its reference [19] so: a higher threshold for
    devices that are estimated to have low bandwidth and contribute less to accuracy, a lower one
    for the opposite; the published code of that baseline does not run. Read here as: the threshold
    of a device is how far the others may be ahead of it. Both estimates are ranked within the fleet
    (a rank does not care for units), their mean places the threshold in the range, and it is
    scheduled anew whenever the device pushes, from what was measured up to then. The contribution
    is the loss of the last batch: who recognises little has most to tell.
    """

    def __init__(self, method: SyncMethod) -> None:
        super().__init__(method)
        self._bounds: dict[str, float] = {}

    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        """See `Policy.on_push`."""
        others = [other for name, other in fleet.items() if name != robot]
        if not others:
            return
        mine = fleet[robot]
        below = np.mean([[_rank(o.rate, mine.rate), _rank(o.loss, mine.loss)] for o in others])
        low, high = self.method.bound, self.method.most
        self._bounds[robot] = round(high - float(below) * (high - low))

    def held_up_by(self, robot: str, fleet: Fleet, least: float = 0.0) -> list[str]:
        """See `Policy.held_up_by`; the bound is that of the one waited for."""
        iteration = fleet[robot].iteration
        return [name for name, other in fleet.items() if name != robot and iteration - other.slowest
                >= max(self._bounds.get(name, self.method.bound), least)]


def _rank(other: float, mine: float) -> float:
    """1 where mine is more, 0 where it is less, a half where they are equal or one is unknown."""
    return 0.5 + 0.5 * ((mine > other) - (mine < other))


class Auto(Policy):
    """RSP whose threshold follows what is measured (the ROG paper's future work).

    Every few rounds: where the fleet waits for more than `STALL_HIGH` of its time, the threshold
    rises by a quarter; where it waits less than `STALL_LOW`, nothing is gained by staleness, and
    it falls by one. A loss that rises above its recent mean by more than `HARM` says that staleness
    does harm (ROG, Figure 10): then it falls by a quarter, whatever the stall.
    """

    def __init__(self, method: SyncMethod) -> None:
        super().__init__(method)
        self.method = method.with_bound(int(method.bound))
        self._waited = 0.0
        self._pushes = 0
        self._since: float | None = None
        self._losses: list[float] = []
        self._former = float('nan')  # mean loss, recent rounds

    def on_wait(self, robot: str, seconds: float) -> None:
        """See `Policy.on_wait`."""
        self._waited += seconds

    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        """See `Policy.on_push`."""
        if self._since is None:
            self._since = now
        self._pushes += 1
        loss = fleet[robot].loss
        if loss == loss:
            self._losses.append(loss)
        if self._pushes >= ROUNDS * len(fleet) and now > self._since:
            self._decide(self._waited / (len(fleet) * (now - self._since)))
            self._waited, self._pushes, self._since = 0.0, 0, now

    def _decide(self, stall: float) -> None:
        bound = int(self.method.bound)
        step = max(bound // 4, 1)
        loss = float(np.mean(self._losses)) if self._losses else float('nan')
        if loss > (1 + HARM) * self._former:
            bound -= step
        elif stall > STALL_HIGH:
            bound += step
        elif stall < STALL_LOW:
            bound -= 1
        former = loss if self._former != self._former else self._former
        self._former, self._losses = former + (loss - former) / 4, []
        low, high = int(self.asked.bound), int(self.asked.most)
        self.method = self.asked.with_bound(min(max(bound, low), high))
