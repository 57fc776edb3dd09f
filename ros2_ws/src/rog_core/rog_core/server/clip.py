"""Bounds the norm of each push, and so the effect of one robot on the model; off by default.

Norm bounding is a common defence of federated learning (Sun et al., Can you really backdoor
federated learning?, 2019). There an update is scaled down as a whole when all of it has arrived.
Here rows are applied as they arrive, before the norm of their push is known. So each push has a
budget: ``limit`` times the median norm of the robots' pushes. Rows are applied in full until the
budget is spent; the chunk that exceeds it is scaled down, and later chunks are scaled to 0. The
most important rows arrive first. A push within the budget is not changed at all.

The median is taken over the robots, each with the median of its own last pushes, so a robot that
pushes more often counts no more than others. With fewer than three robots there is no majority, and
no bound. The very first push only sets the norm and is scaled to 0.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from statistics import median, median_low

from ..protocol.messages import Kind
from ..transfer.receiver import Receiver, Rows

LAST = 8   # number of the last pushes of a robot whose norms are remembered
LEAST = 3  # smallest number of robots for which there is a bound


class NormBound:
    """Scales down pushes whose norm is above ``limit`` times the median norm; 0: no limit."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.begin()

    def begin(self) -> None:
        """Forget the norms, because another method may have other norms."""
        self._norms: dict[Kind, dict[str, deque[float]]] = {Kind.PUSH: {}, Kind.ANCHOR: {}}
        # Kind -> largest sum of squares of a push that is applied in full.
        self._most = dict.fromkeys(self._norms, 0.0 if self.limit else math.inf)

    def bounded(self, push: Receiver, rows: Rows, robots: int) -> Rows:
        """Return new rows of a push, scaled down to the rest of its budget, which may be 0.

        ``push.energy`` already includes these rows; the fleet has ``robots`` robots.
        """
        most = self._most[rows.transfer.kind] if robots >= LEAST else math.inf
        left = max(most - (push.energy - rows.energy), 0.0)
        if left >= rows.energy:
            return rows
        data = rows.codec.scaled(push.rows_of(rows.transfer), rows.ids, rows.data,
                                 math.sqrt(left / rows.energy))
        return rows._replace(data=data, energy=left)

    def learn(self, robot: str, push: Receiver, robots: Collection[str]) -> bool:
        """Remember the norm of a finished push; return whether the push exceeded its budget.

        ``robots``: the robots that take part now.
        """
        if not self.limit or push.transfer is None or push.energy <= 0:
            return False
        kind = push.transfer.kind
        norms = self._norms[kind]
        norms.setdefault(robot, deque(maxlen=LAST)).append(math.sqrt(push.energy))
        for gone in norms.keys() - {robot, *robots}:
            del norms[gone]
        usual = median_low([median(last) for last in norms.values()])
        former, self._most[kind] = self._most[kind], (self.limit * usual) ** 2
        return len(robots) >= LEAST and 0 < former < push.energy
