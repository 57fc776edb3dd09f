"""DSSP: each robot has its own staleness threshold, which depends on the robots' speeds."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from .base import Fleet, Method, Team
from .method_spec import MethodSpec


def controller(latest: float, interval: float, slowest_latest: float, slowest_interval: float,
               most: int) -> int:
    """Return the number of extra iterations that makes a robot's wait shortest.

    Source: Algorithm 2. The number is between 0 and ``most``. ``latest``: time of the
    robot's last push. ``interval``: time between the robot's last two pushes.
    ``slowest_latest``, ``slowest_interval``: the same two values of the slowest robot. All
    values are in seconds. The function assumes that both intervals will not change. After
    the returned number of iterations, the robot's push is closest in time to a push of the
    slowest robot. If several numbers are equally good, the function returns the lowest.
    """
    steps = np.arange(most + 1)
    own = latest + steps * interval
    slowest = slowest_latest + slowest_interval + steps * slowest_interval
    return int(np.abs(slowest[None, :] - own[:, None]).min(axis=1).argmin())


class Dssp(Method):
    """DSSP, Algorithm 1: each robot has a threshold between the lowest and the highest threshold.

    When the fastest robot reaches its threshold, it gets a new threshold: the one with the
    shortest expected wait for the slowest robot's next push. When a robot's lead over the
    slowest robot is at most the lowest threshold again, its threshold becomes the lowest
    threshold. This follows the paper's text and Figure 2.

    The paper's listing differs in three points. There the robot waits until its lead is at
    most the lowest threshold again, so every extra iteration causes a later wait.
    The listing can grant extra iterations beyond the highest threshold. It does not count
    the first extra iteration.
    """

    name = 'dssp'
    usage = 'dssp:LOW:HIGH'
    known = ()

    def __init__(self, spec: MethodSpec, team: Team) -> None:
        super().__init__(spec, team)
        # For each robot: time of its latest push and interval before that push, in seconds.
        self._pushes: dict[str, tuple[float, float]] = {}
        self._bounds: dict[str, float] = {}

    @override
    def bounds(self) -> tuple[float, float]:
        low, high = self.spec.range(self.spec.arguments, 0)
        return low + 1, high + 1

    @override
    def bound_of(self, robot: str) -> float:
        return self._bounds.get(robot, self.bound)

    @override
    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        former = self._pushes.get(robot)
        self._pushes[robot] = now, now - former[0] if former else float('nan')
        iteration = fleet[robot].iteration
        slowest = min(fleet, key=lambda name: fleet[name].slowest)
        ahead = iteration - fleet[slowest].slowest
        if ahead < self.bound:
            self._bounds[robot] = self.bound
        elif ahead >= self.bound_of(robot) \
                and iteration == max(o.iteration for o in fleet.values()):
            most = int(self.most) - ahead
            extra = self._extra(robot, slowest, most) if most > 0 else 0
            self._bounds[robot] = min(ahead + extra, self.most)

    def _extra(self, robot: str, slowest: str, most: int) -> int:
        own, other = self._pushes[robot], self._pushes.get(slowest, (0.0, float('nan')))
        if own[1] != own[1] or other[1] != other[1]:
            return 0  # the interval of a robot is unknown before its second push
        return controller(*own, *other, most)
