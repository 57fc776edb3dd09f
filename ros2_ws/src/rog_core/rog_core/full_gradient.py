"""SVRG's outer loop at the server: the mean of the full gradients of all shards.

Source: GSGM, Algorithm 6, line 7. All workers compute theirs on the same model, behind a barrier
(`rog_core.policy.Policy.at_barrier`), so that the mean is the full gradient of that model.
"""

from __future__ import annotations

import numpy as np

from .arrays import Array, zeros_like
from .codecs import RAW
from .partition import RowPartition


class FullGradient:
    """Sums what the workers push of one iteration, float32 (elements,), where ``master`` is.

    What is under way is kept apart: a push that a robot does not finish must not count in part.
    """

    def __init__(self, partition: RowPartition, master: Array) -> None:
        self._partition = partition.raw_cut
        self._parts: dict[str, Array] = {}  # by robot, of pushes under way
        self._whole: set[str] = set()       # robots whose gradient is in the sum
        self._sum = zeros_like(master)
        self._iteration = 0

    def take(self, robot: str, iteration: int, ids: np.ndarray, data: np.ndarray) -> None:
        """Take a checked chunk, raw; the first of a later iteration begins anew."""
        if iteration > self._iteration:
            self._parts, self._whole, self._iteration = {}, set(), iteration
            self._sum = zeros_like(self._sum)
        if iteration < self._iteration or robot in self._whole:
            return
        if robot not in self._parts:
            self._parts[robot] = zeros_like(self._sum)
        RAW.add(self._partition, self._parts[robot], ids, data)

    def close(self, robot: str, iteration: int, whole: bool) -> None:
        """A worker has pushed what it had; ``whole``: that was all of it."""
        if whole and iteration == self._iteration and robot in self._parts:
            self._sum += self._parts[robot]
            self._whole.add(robot)
        self.forget(robot)

    def forget(self, robot: str) -> None:
        """Drop what a worker has pushed only in part."""
        self._parts.pop(robot, None)

    def is_of(self, iteration: int) -> bool:
        """Whether there is a mean of this iteration."""
        return bool(self._whole) and iteration == self._iteration

    def mean(self) -> Array:
        """Return the mean over the workers."""
        return self._sum / np.float32(len(self._whole))
