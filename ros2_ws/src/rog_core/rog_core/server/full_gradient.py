"""The fleet's full gradient: the mean of what robots push in the step `Full` (SVRG)."""

from __future__ import annotations

import numpy as np

from ..codecs import RAW
from ..model.partition import RowPartition


class FullGradient:
    """Sums the full gradients that the robots push in one iteration.

    The sum is float32 (elements,). A push is added to the sum when it is complete. Until then it is
    stored separately, because its robot may disappear.

    ``since``: iterations up to this one do not count, because not all robots have computed a full
    gradient in them: the highest that was pushed or granted before the present method began.
    """

    def __init__(self, partition: RowPartition, master: np.ndarray, since: int) -> None:
        self._partition, self._master, self.since = partition.raw_partition, master, since
        self._parts: dict[str, np.ndarray] = {}  # for each robot: rows of its unfinished push
        self._complete: set[str] = set()    # robots whose gradient is in the sum
        self._sum: np.ndarray | None = None      # None: no robot has pushed a full gradient yet
        self._iteration = since

    def take(self, robot: str, iteration: int, ids: np.ndarray, data: np.ndarray) -> None:
        """Store a checked, raw chunk; the first chunk of a later iteration starts a new sum."""
        if iteration > self._iteration:
            self._parts, self._complete, self._iteration = {}, set(), iteration
            self._sum = np.zeros_like(self._master)
        if self._sum is None or iteration < self._iteration or robot in self._complete:
            return
        if robot not in self._parts:
            self._parts[robot] = np.zeros_like(self._master)
        RAW.add(self._partition, self._parts[robot], ids, data)

    def close(self, robot: str, iteration: int, complete: bool) -> None:
        """Handle the end of a robot's push: add it to the sum if ``complete``, else drop it."""
        if self._sum is not None and complete and iteration == self._iteration \
                and robot in self._parts:
            self._sum += self._parts[robot]
            self._complete.add(robot)
        self.forget(robot)

    def forget(self, robot: str) -> None:
        """Drop an incomplete push of a robot."""
        self._parts.pop(robot, None)

    def of(self, iteration: int) -> np.ndarray | None:
        """Return the mean full gradient of this iteration; None if no robot has pushed one."""
        if self._sum is None or not self._complete or iteration != self._iteration:
            return None
        return self._sum / np.float32(len(self._complete))
