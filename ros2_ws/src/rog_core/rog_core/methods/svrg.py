"""SVRG: from time to time, robots compute full gradients, which correct stochastic gradients.

All robots compute a full gradient at a barrier, on the same model. Source: GSGM, Algorithms 5
and 6. `Svrg` is a mix-in class for any method that sends all rows.
"""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from ..arrays import Array, zeros_like
from ..codecs import RAW
from ..errors import ConfigError
from ..model.partition import RowPartition
from ..protocol.steps import Full, Step
from .base import Fleet, Method, Model, Team
from .method_spec import MethodSpec

PERIOD = 50  # iterations between two full gradients


class Svrg(Method):
    """A mix-in class: the name ``asp+svrg``, for example, builds the class ``SvrgAsp(Svrg, Asp)``.

    After every `PERIOD` iterations (after every N iterations with ``svrg=N``), all robots compute
    the gradient of their whole shards on the same model. Each robot receives the mean of these full
    gradients.
    """

    def __init__(self, spec: MethodSpec, team: Team) -> None:
        super().__init__(spec, team)
        if self.early:
            raise ConfigError(f"'{spec.text}': svrg needs all rows of every gradient, so it "
                              'cannot be combined with early transmission')
        if team.codec != 'raw':
            raise ConfigError(f"'{spec.text}' needs exact gradients, so codec raw; the fleet "
                              f"has '{team.codec}'")
        team.require_alone(spec.text)
        self.period = int(self.numbers.get('svrg', PERIOD))
        self._since = 0  # highest iteration pushed or granted before this method began

    def is_full(self, iteration: int) -> bool:
        """Return whether robots compute a full gradient in this iteration."""
        return iteration > 0 and (iteration - 1) % (self.period + 1) == 0

    def at_barrier(self, robot: str, fleet: Fleet) -> bool:
        """See `Method.at_barrier`: all robots compute the full gradient on the same model."""
        iteration = fleet[robot].iteration
        return self.is_full(iteration) or self.is_full(iteration + 1)

    @override
    def grant(self, robot: str, iteration: int) -> tuple[int, Step]:
        following, step = super().grant(robot, iteration)
        return following, Full() if self.is_full(following) else step

    @override
    def begin(self, model: Model, iteration: int) -> None:
        super().begin(model, iteration)
        self._since, self._sum = iteration, FullGradient(model.partition, model.master)

    def grow(self, model: Model) -> None:
        """See `Method.grow`: the next full gradient contains the new rows."""
        super().grow(model)
        self._sum = FullGradient(model.partition, model.master)

    @override
    def on_join(self, robot: str) -> list:
        self._sum.forget(robot)
        return super().on_join(robot)

    @override
    def take_full_gradient(self, robot: str, iteration: int, ids: np.ndarray, data: np.ndarray
                           ) -> None:
        self._sum.take(robot, iteration, ids, data)

    @override
    def close_full_gradient(self, robot: str, iteration: int, complete: bool) -> None:
        self._sum.close(robot, iteration, complete)

    def full_gradient_for(self, iteration: int, current: bool) -> Array | None:
        """See `Method.full_gradient_for`.

        Returns None if robots compute no full gradient in ``iteration``, or if this robot does not
        have the model of that iteration. Also returns None if ``iteration`` is from before this
        method began: then not all robots computed a full gradient.
        """
        if not (current and iteration > self._since and self.is_full(iteration)
                and self._sum.is_of(iteration)):
            return None
        return self._sum.mean()


class FullGradient:
    """Sums the full gradients that the robots push in one iteration.

    The sum is float32 (elements,). A push is added to the sum when it is complete. Until then it is
    stored separately, because its robot may disappear.
    """

    def __init__(self, partition: RowPartition, master: Array) -> None:
        self._partition = partition.raw_partition
        self._parts: dict[str, Array] = {}  # for each robot: rows of its unfinished push
        self._complete: set[str] = set()    # robots whose gradient is in the sum
        self._sum = zeros_like(master)
        self._iteration = 0

    def take(self, robot: str, iteration: int, ids: np.ndarray, data: np.ndarray) -> None:
        """Store a checked, raw chunk; the first chunk of a later iteration starts a new sum."""
        if iteration > self._iteration:
            self._parts, self._complete, self._iteration = {}, set(), iteration
            self._sum = zeros_like(self._sum)
        if iteration < self._iteration or robot in self._complete:
            return
        if robot not in self._parts:
            self._parts[robot] = zeros_like(self._sum)
        RAW.add(self._partition, self._parts[robot], ids, data)

    def close(self, robot: str, iteration: int, complete: bool) -> None:
        """Handle the end of a robot's push: add it to the sum if ``complete``, else drop it."""
        if complete and iteration == self._iteration and robot in self._parts:
            self._sum += self._parts[robot]
            self._complete.add(robot)
        self.forget(robot)

    def forget(self, robot: str) -> None:
        """Drop an incomplete push of a robot."""
        self._parts.pop(robot, None)

    def is_of(self, iteration: int) -> bool:
        """Return whether the sum is of this iteration and contains a gradient."""
        return bool(self._complete) and iteration == self._iteration

    def mean(self) -> Array:
        """Return the mean full gradient of the robots whose gradients are in the sum."""
        return self._sum / np.float32(len(self._complete))
