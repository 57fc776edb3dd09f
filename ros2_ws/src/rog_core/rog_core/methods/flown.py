"""FLOWN: each robot has a staleness threshold, computed from its throughput and its loss."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from .base import Fleet, Method, Team
from .method_spec import MethodSpec

DEFAULT_RANGE = (2, 20)


class Flown(Method):
    """FLOWN: a threshold for each robot, from its estimated bandwidth and its contribution.

    The ROG paper (Sections I and II-D) describes FLOWN, its reference [19]. Robots with a low
    estimated bandwidth and a small contribution to accuracy get a higher threshold; other
    robots get a lower one. The paper gives no formula, and the published code of this
    baseline does not run. So our definition is as follows.

    The threshold of a robot is the number of iterations by which the others may be ahead
    of this robot. Bandwidth is the measured throughput. Contribution is the loss of the
    last batch: a robot with a high loss contributes much. Bandwidth and contribution have
    different units, so each is replaced by its rank within the fleet. The mean of both
    ranks decides where the threshold lies between the lowest and the highest threshold.
    Each push of the robot updates its threshold.
    """

    name = 'flown'
    usage = 'flown'
    known = ()

    def __init__(self, spec: MethodSpec, team: Team) -> None:
        super().__init__(spec, team)
        self._bounds: dict[str, float] = {}

    @override
    def bounds(self) -> tuple[float, float]:
        given = self.spec.arguments
        low, high = self.spec.range(given, 0) if given else DEFAULT_RANGE
        return low + 1, high + 1

    @override
    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        others = [other for name, other in fleet.items() if name != robot]
        if not others:
            return
        mine = fleet[robot]
        below = np.mean([[_rank(o.rate, mine.rate), _rank(o.loss, mine.loss)] for o in others])
        low, high = self.bound, self.most
        self._bounds[robot] = round(high - float(below) * (high - low))

    @override
    def held_up_by(self, robot: str, fleet: Fleet, least: float = 0.0) -> list[str]:
        iteration = fleet[robot].iteration
        return [name for name, other in fleet.items() if name != robot and iteration - other.slowest
                >= max(self._bounds.get(name, self.bound), least)]


def _rank(other: float, mine: float) -> float:
    """Return 1 if ``mine`` is higher than ``other``, 0 if lower, 0.5 if equal or one is NaN."""
    return 0.5 + 0.5 * ((mine > other) - (mine < other))
