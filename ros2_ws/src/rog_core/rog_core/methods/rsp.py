"""RSP with ATP (ROG's method): each row has its own staleness; important rows are sent first."""

from __future__ import annotations

import math
from statistics import median, median_low

from typing_extensions import override

from ..errors import ConfigError
from ..protocol.steps import Phase, Step
from .base import Fleet, Method, Team
from .method_spec import EARLY, MethodSpec
from .outer import Outer

AUTO_RANGE = (4, 40)
# Limits of the share of time in which the fleet waits. Above STALL_HIGH, the threshold rises;
# below STALL_LOW, the threshold falls.
STALL_HIGH, STALL_LOW = 0.05, 0.02
HARM = 0.25                         # relative rise of the loss at which staleness is harmful
ROUNDS = 4                          # pushes of each robot between two changes of the threshold


class Rsp(Outer, Method):
    """``rsp:T``, or ``rsp:auto[:LOW:HIGH]``, which adapts the staleness threshold T.

    With ``local=H``, an iteration is H local steps, and staleness counts these iterations. A robot
    pushes the change of its model (before the local steps minus after them), and ATP chooses the
    rows. A robot's own model is the fleet's model plus the local steps that it has made and not
    pushed yet. The server makes the outer step of `Outer`, row by row. This option is not from a
    paper.

    Source of rsp:T: ROG, Sections III and IV; the paper names adaptation as future work. After
    every `ROUNDS` pushes of each robot, `rsp:auto` computes the share of time in which the fleet
    has waited. If this share is above `STALL_HIGH`, the threshold rises by a quarter. If it is
    below `STALL_LOW`, the present staleness has no advantage, and the threshold falls by one. If
    the loss exceeds its recent mean by more than `HARM`, staleness is harmful (ROG, Figure 10).
    Then the threshold falls by a quarter, whatever the share is. The loss is the median over the
    robots, so that one robot with a false loss cannot decide.
    """

    name = 'rsp'
    usage = 'rsp:T, rsp:auto'
    known = ('early', 'order', 'timeout', 'minimum', 'second', 'pipeline', 'sparse', 'local',
             'rate', 'momentum')
    by_row = True

    def __init__(self, spec: MethodSpec, team: Team) -> None:
        self.adapts = spec.arguments[:1] == ('auto',)
        super().__init__(spec, team)
        if 'local' not in self.options and self.options & {'rate', 'momentum'}:
            raise ConfigError(f"'{spec.text}': rate and momentum belong to the outer step, "
                              'which needs local steps; write local=H, too')
        self.least = self.bound
        self._waited = 0.0
        self._pushes = 0
        self._since: float | None = None
        self._losses: dict[str, list[float]] = {}  # losses of each robot since the last `_decide`
        self._former = math.nan  # mean of the fleet's losses in recent rounds

    @classmethod
    @override
    def by_default(cls, spec: MethodSpec) -> frozenset[str]:
        return EARLY

    @override
    def bounds(self) -> tuple[float, float]:
        if not self.adapts:
            threshold = self.spec.threshold(1)
            return threshold, threshold
        limits = self.spec.arguments[1:]
        return self.spec.range(limits, 1) if limits else AUTO_RANGE

    @classmethod
    @override
    def numbered(cls) -> tuple[str, ...]:
        return ('local',)

    @override
    def grant(self, robot: str, iteration: int) -> tuple[int, Step]:
        if 'local' not in self.options:
            return super().grant(robot, iteration)
        return iteration + 1, Phase(self.needed('local'))

    def __str__(self) -> str:
        """Return the method's name with its options and the present threshold."""
        return self.named(int(self.bound)) if self.adapts else super().__str__()

    @override
    def on_wait(self, robot: str, seconds: float) -> None:
        self._waited += seconds

    @override
    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        if not self.adapts:
            return
        if self._since is None:
            self._since = now
        self._pushes += 1
        loss = fleet[robot].loss
        if math.isfinite(loss):
            self._losses.setdefault(robot, []).append(loss)
        if self._pushes >= ROUNDS * len(fleet) and now > self._since:
            self._decide(self._waited / (len(fleet) * (now - self._since)))
            self._waited, self._pushes, self._since = 0.0, 0, now

    def _decide(self, stall: float) -> None:
        bound = int(self.bound)
        step = max(bound // 4, 1)
        loss = median_low(map(median, self._losses.values())) if self._losses else math.nan
        if loss > (1 + HARM) * self._former:
            bound -= step
        elif stall > STALL_HIGH:
            bound += step
        elif stall < STALL_LOW:
            bound -= 1
        former = loss if self._former != self._former else self._former
        self._former, self._losses = former + (loss - former) / 4, {}
        self.bound = min(max(bound, self.least), self.most)
