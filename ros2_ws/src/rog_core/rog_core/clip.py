"""Bounds what one robot can do to the model, by the norm of its pushes; off by default.

Norm bounding is a common defence of federated learning (Sun et al., Can you really backdoor
federated learning?, 2019). There an update is scaled down as a whole once it is there. Here rows
are applied as they arrive, and nobody knows what norm their push is going to have. So each push has
a budget, ``limit`` times the median norm of what the robots push: rows count in full until it is
spent, the chunk that exceeds it is scaled down, and those after it do not count. Those that arrive
first are the most important ones. A push within the budget is not changed at all.

The median is that of the robots, each with the median of its own last pushes, so that a robot that
pushes more often than others counts no more than they do. With fewer than three robots there is no
majority, and no bound. The first push of all is measured and does not count: it has no measure.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from statistics import median, median_low

from .messages import Kind
from .transfer.receiver import Receiver, Rows

LAST = 8   # pushes of a robot whose norms are remembered
LEAST = 3  # robots


class NormBound:
    """``limit``: for how many times the median norm a push counts at most; 0: any number."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.begin()

    def begin(self) -> None:
        """Forget the norms: those of another method may be others."""
        self._norms: dict[Kind, dict[str, deque[float]]] = {Kind.PUSH: {}, Kind.ANCHOR: {}}
        # Sum of squares that counts.
        self._most = dict.fromkeys(self._norms, 0.0 if self.limit else math.inf)

    def bounded(self, push: Receiver, rows: Rows, robots: int) -> Rows:
        """Return new rows of a push as they count, scaled down if need be, to 0 if they do not.

        ``push.energy`` includes them already; the fleet has ``robots`` robots.
        """
        most = self._most[rows.transfer.kind] if robots >= LEAST else math.inf
        left = max(most - (push.energy - rows.energy), 0.0)
        if left >= rows.energy:
            return rows
        data = rows.codec.scaled(push.rows_of(rows.transfer), rows.ids, rows.data,
                                 math.sqrt(left / rows.energy))
        return rows._replace(data=data, energy=left)

    def learn(self, robot: str, push: Receiver, robots: Collection[str]) -> bool:
        """Remember the norm of a push that is over; whether it was too large to count in full.

        ``robots``: those that take part now.
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
