"""SVRG: now and then a full gradient, behind a barrier, by which the stochastic ones are corrected.

Source: GSGM, Algorithms 5 and 6. It is a part that goes with any method that sends all rows.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Array, zeros_like
from ..codecs import RAW
from ..errors import ConfigError
from ..partition import RowPartition
from ..steps import Full, Step
from .base import Fleet, Method, Model, Team
from .written import Written

PERIOD = 50  # iterations between two full gradients


class Svrg(Method):
    """To be put before a method: ``class SvrgAsp(Svrg, Asp)``, which is what ``+svrg`` does.

    After every `PERIOD` iterations, or N with ``svrg=N``, all robots compute the full gradient of
    their shards on the same model; what they get back is the mean of these.
    """

    def __init__(self, written: Written, team: Team) -> None:
        super().__init__(written, team)
        if self.early:
            raise ConfigError(f"'{written.text}': svrg needs all rows of every gradient, so it "
                              'does not go with early transmission')
        if team.codec != 'raw':
            raise ConfigError(f"'{written.text}' needs exact gradients, so codec raw; the fleet "
                              f"has '{team.codec}'")
        self.period = self.numbers.get('svrg', PERIOD)
        self._since = 0  # iterations up to this one were granted by a former method

    def is_full(self, iteration: int) -> bool:
        """Whether this iteration computes a full gradient."""
        return iteration > 0 and (iteration - 1) % (self.period + 1) == 0

    def at_barrier(self, robot: str, fleet: Fleet) -> bool:
        """See `Method.at_barrier`: a full gradient is of one model, and by everybody."""
        iteration = fleet[robot].iteration
        return self.is_full(iteration) or self.is_full(iteration + 1)

    def grant(self, robot: str, iteration: int) -> tuple[int, Step]:
        """See `Method.grant`."""
        following, step = super().grant(robot, iteration)
        return following, Full() if self.is_full(following) else step

    def begin(self, model: Model, iteration: int) -> None:
        """See `Method.begin`."""
        super().begin(model, iteration)
        self._since, self._sum = iteration, FullGradient(model.partition, model.master)

    def on_join(self, robot: str) -> list:
        """See `Method.on_join`."""
        self._sum.forget(robot)
        return super().on_join(robot)

    def take_whole(self, robot: str, iteration: int, ids: np.ndarray, data: np.ndarray) -> None:
        """See `Method.take_whole`."""
        self._sum.take(robot, iteration, ids, data)

    def close_whole(self, robot: str, iteration: int, whole: bool) -> None:
        """See `Method.close_whole`."""
        self._sum.close(robot, iteration, whole)

    def whole_for(self, iteration: int, current: bool) -> Array | None:
        """See `Method.whole_for`: who holds the model of the barrier gets the full gradient of it.

        Not of a barrier that a former method held: who knows who was behind it.
        """
        if not (current and iteration > self._since and self.is_full(iteration)
                and self._sum.is_of(iteration)):
            return None
        return self._sum.mean()


class FullGradient:
    """Sums what the workers push of one iteration, float32 (elements,).

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
