"""Bounds what one robot can do to the model, by the norm of its pushes; off by default.

Norm bounding is a common defence of federated learning (Sun et al., Can you really backdoor
federated learning?, 2019). There an update is scaled down as a whole once it is there. Here rows
are applied as they arrive, and nobody knows what norm their push is going to have. So each push has
a budget, ``limit`` times the median norm of what the robots push: rows count in full until it is
spent, the chunk that exceeds it is scaled down, and those after it do not count. Those that arrive
first are the most important ones. A push within the budget is not changed at all.

The median is that of the robots, each with the median of its own last pushes, so that a robot that
pushes more often than others counts no more than they do. With fewer than three robots there is no
majority, and no bound.
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
        self._most = dict.fromkeys(self._norms, math.inf)  # sum of squares that counts

    def bounded(self, push: Receiver, rows: Rows) -> Rows | None:
        """Return new rows of a push as they count, scaled down if need be; None: not at all.

        ``push.energy`` includes them already.
        """
        most = self._most[rows.transfer.kind]
        left = most - (push.energy - rows.energy)
        if left >= rows.energy:
            return rows
        if left <= 0:
            return None
        data = rows.codec.scaled(push.rows_of(rows.transfer), rows.ids, rows.data,
                                 math.sqrt(left / rows.energy))
        return rows._replace(data=data, energy=left)

    def exceeded(self, push: Receiver) -> bool:
        """Whether not all of a push that is over has counted."""
        return push.transfer is not None and push.energy > self._most[push.transfer.kind]

    def learn(self, robot: str, push: Receiver, robots: Collection[str]) -> None:
        """Remember the norm of a push that is over; ``robots``: those that take part now."""
        if not self.limit or push.transfer is None or push.energy <= 0:
            return
        kind = push.transfer.kind
        norms = self._norms[kind]
        norms.setdefault(robot, deque(maxlen=LAST)).append(math.sqrt(push.energy))
        for gone in norms.keys() - {robot, *robots}:
            del norms[gone]
        enough = len({robot, *robots}) >= LEAST
        usual = median_low([median(last) for last in norms.values()])
        self._most[kind] = (self.limit * usual) ** 2 if enough else math.inf
