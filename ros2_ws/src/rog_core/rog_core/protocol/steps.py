"""Steps: the kinds of gradient that the server can order from a worker.

At the end of every pull the server sends the name of the next step, and the step's numbers
as plain values. The code of a worker contains these steps but no methods, so every method
must consist of steps. `rog_core.worker.computation` defines what a worker does for each
step.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from typing_extensions import override

from ..errors import RemoteProtocolError

MAX_SHARDS = 4096     # coded gradients divide the data into at most this many shards
MAX_LOCAL = 10_000    # largest number of local steps between two pushes


@dataclass(frozen=True)
class Step:
    """One kind of step; the fields of a subclass are the numbers that the server sends with it."""

    name: ClassVar[str]
    # whether the robot pushes all rows raw, and pulls the mean of all robots' results
    uncompressed: ClassVar[bool] = False
    additive: ClassVar[bool] = True       # whether unsent rows may be added to the next result
    # whether a result for one iteration may be used for another iteration
    exchangeable: ClassVar[bool] = False

    @property
    def share(self) -> float:
        """The share of the rows that one transfer of this step usually carries, 0 to 1."""
        return 1.0

    @property
    def batches(self) -> int:
        """Number of batches that the robot's buffers have seen in this step."""
        return 1

    def check(self) -> None:
        """Raise `RemoteProtocolError` if the numbers of this step are out of range."""

    def integers(self) -> tuple[int, ...]:
        """Return the integers that are sent with the name of this step; see `of`."""
        return ()

    def numbers(self) -> tuple[float, ...]:
        """Return the floats that are sent with the name of this step; see `of`."""
        return ()

    @classmethod
    def of(cls, integers: tuple[int, ...], numbers: tuple[float, ...]) -> Step:
        """Build the step from its numbers; raise ValueError if there are too many or too few."""
        count = len(dataclasses.fields(cls))
        if len(integers) != count or numbers:
            raise ValueError(f'it has {count}, got {len(integers) + len(numbers)}')
        return cls(*integers)

    def turn(self, age: np.ndarray) -> np.ndarray:
        """Return which rows a transfer of this step may carry, bool (rows,).

        ``age`` int64 (rows,): number of iterations since each row was sent in this direction.
        """
        return np.ones(age.size, bool)


@dataclass(frozen=True)
class Gradient(Step):
    """The gradient of the robot's next batch; with SVRG, a full gradient corrects it.

    ``momentum``: whether the worker applies momentum; otherwise the server does.
    """

    name = 'gradient'
    exchangeable = True

    momentum: bool = field(default=True, compare=False)

    @override
    def integers(self) -> tuple[int, ...]:
        return (int(self.momentum),)


@dataclass(frozen=True)
class Shards(Step):
    """A coded gradient: a weighted sum of the gradients of the shards ``ids``.

    ``weights``: the weight of each shard in ``ids``. ``shards``: number of shards of the data, at
    most `MAX_SHARDS`. The result is useful only together with the results of other robots in the
    same round. ``feedback``: whether the worker keeps the codec's error and adds it to the next
    result.
    """

    name = 'shards'
    additive = False

    shards: int
    ids: tuple[int, ...]
    weights: tuple[float, ...]
    feedback: bool = True

    @property
    @override
    def batches(self) -> int:
        return len(self.ids)

    @override
    def check(self) -> None:
        if not 1 <= self.shards <= MAX_SHARDS or not 0 < len(self.ids) == len(self.weights):
            raise RemoteProtocolError('a coded gradient must have one weight for each shard, of 1 '
                                      f'to {MAX_SHARDS}, got {len(self.weights)} weights for '
                                      f'{len(self.ids)} of {self.shards} shards')
        if not all(0 <= shard < self.shards for shard in self.ids):
            raise RemoteProtocolError('shards of a coded gradient must be 0 to '
                                      f'{self.shards - 1}, got {list(self.ids)}')
        # a repeated shard would make the worker compute its gradient twice
        if len(set(self.ids)) < len(self.ids):
            raise RemoteProtocolError('shards of a coded gradient must differ, got '
                                      f'{list(self.ids)}')
        if not all(map(math.isfinite, self.weights)):
            raise RemoteProtocolError('weights of a coded gradient must be finite, got '
                                      f'{list(self.weights)}')

    @override
    def integers(self) -> tuple[int, ...]:
        return (self.shards, int(self.feedback), *self.ids)

    @override
    def numbers(self) -> tuple[float, ...]:
        return self.weights

    @classmethod
    @override
    def of(cls, integers: tuple[int, ...], numbers: tuple[float, ...]) -> Step:
        shards, feedback, *ids = integers
        return cls(shards, tuple(ids), numbers, bool(feedback))


@dataclass(frozen=True)
class Full(Step):
    """The gradient of the robot's whole shard (SVRG); all robots compute it on the same model."""

    name = 'full'
    uncompressed = True


@dataclass(frozen=True)
class Local(Step):
    """``steps`` steps of SGD on a copy of the model; the worker pushes the change of the model.

    The change is the model before the steps minus the model after them. Momentum is zero before the
    first of these steps, as in FedAvg.
    """

    name = 'local'

    steps: int

    @property
    @override
    def batches(self) -> int:
        return self.steps

    @override
    def check(self) -> None:
        if not 1 <= self.steps <= MAX_LOCAL:
            raise RemoteProtocolError(f'number of local steps must be 1 to {MAX_LOCAL}, got '
                                      f'{self.steps}')

    @override
    def integers(self) -> tuple[int, ...]:
        return (self.steps,)


@dataclass(frozen=True)
class Phase(Local):
    """``steps`` local steps that continue the robot's previous phase.

    The momentum and the local model of the previous phase are kept. The robot's model is the
    fleet's model plus the local steps that the robot has made and not pushed yet. A transfer, in
    either direction, carries each row r for which r mod ``fragments`` is ``fragment``. It also
    carries the rows that have not been sent for ``fragments`` iterations or more.
    """

    name = 'phase'
    exchangeable = True

    fragments: int = field(default=1, compare=False)
    fragment: int = field(default=0, compare=False)

    @property
    @override
    def share(self) -> float:
        return 1 / self.fragments

    @override
    def check(self) -> None:
        super().check()
        if not 0 <= self.fragment < self.fragments <= MAX_LOCAL:
            raise RemoteProtocolError(f'fragment must be one of 1 to {MAX_LOCAL}, counted from 0, '
                                      f'got fragment {self.fragment} of {self.fragments}')

    @override
    def integers(self) -> tuple[int, ...]:
        return self.steps, self.fragments, self.fragment

    @override
    def turn(self, age: np.ndarray) -> np.ndarray:
        return (np.arange(age.size) % self.fragments == self.fragment) | (age >= self.fragments)


STEPS: dict[str, type[Step]] = {step.name: step for step in (Gradient, Shards, Full, Local, Phase)}


def step_of(name: str, integers: Iterable[int], numbers: Iterable[float]) -> Step:
    """Build the step that a message of the server names; the caller must call `Step.check`.

    Raises `RemoteProtocolError` if no step has this name or the number of values is wrong.
    """
    if name not in STEPS:
        raise RemoteProtocolError(f'step must be one of {", ".join(STEPS)}, got '
                                  f"'{name}': install the same version on robots and server")
    try:
        return STEPS[name].of(tuple(integers), tuple(numbers))
    except ValueError as error:
        raise RemoteProtocolError(f"wrong number of values for the step '{name}': {error}"
                                  ) from None
