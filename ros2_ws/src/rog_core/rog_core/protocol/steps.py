"""Steps: the kinds of gradient that a worker can compute, and how their result is pushed.

At the end of every pull the server sends the name and the numbers of the next step as plain values.
A worker knows these steps and no methods, so every method is expressed by them. The worker adds a
computed gradient to its accumulator, from which it pushes rows. Only a full gradient is pushed
complete and uncompressed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from ..errors import RemoteProtocolError
from .config import SgdConfig

if TYPE_CHECKING:
    import torch

    from ..arrays import Array
    from ..transfer.sender import Sender
    from ..worker.accumulator import Accumulator

MAX_SHARDS = 4096     # of the data, for coded gradients
MAX_LOCAL = 10_000    # local steps between two pushes


class Source(Protocol):
    """The model and the data of a robot; see `rog_core.worker.gradient.GradientSource`."""

    store: Accumulator
    weights: torch.Tensor   # the model, flat, on which gradients are computed
    gradient: torch.Tensor  # the sum of what `add` computes, flat
    result: Array           # the memory of ``gradient``
    velocity: torch.Tensor | None  # momentum of local steps that go on

    def batch(self) -> Any:
        """Return the robot's own next batch."""

    def shard(self) -> Iterable[Any]:
        """Return the batches of the robot's whole shard, once."""

    def shard_batches(self) -> int:
        """Return the number of batches of `shard`."""

    def batch_of(self, shards: int, shard: int, iteration: int) -> Any:
        """Return an iteration's batch of one of ``shards`` shards."""

    def clear(self) -> None:
        """Set the gradient to zero."""

    def add(self, batch: Any, weight: float = 1.0) -> float:
        """Add the weighted gradient of a batch at the present weights; return the loss."""


@dataclass(frozen=True)
class Step:
    """One kind of step; the fields of a subclass are the numbers that the server sends with it."""

    name: ClassVar[str]
    uncompressed: ClassVar[bool] = False  # pushed complete and raw; the fleet's mean is sent back
    additive: ClassVar[bool] = True       # rows not yet sent may be added to the next result
    exchangeable: ClassVar[bool] = False  # a result for one iteration may be used for another

    @property
    def share(self) -> float:
        """The usual share of the rows that one transfer of this step carries."""
        return 1.0

    def check(self) -> None:
        """Raise `RemoteProtocolError` if the numbers of this step are out of range."""

    def integers(self) -> tuple[int, ...]:
        """Return the integers that are sent with its name; see `of`."""
        return ()

    def numbers(self) -> tuple[float, ...]:
        """Return the floats that are sent with its name; see `of`."""
        return ()

    @classmethod
    def of(cls, integers: tuple[int, ...], numbers: tuple[float, ...]) -> Step:
        """Return the step with these numbers; ValueError if there are too many or too few."""
        count = len(dataclasses.fields(cls))
        if len(integers) != count or numbers:
            raise ValueError(f'it has {count}, got {len(integers) + len(numbers)}')
        return cls(*integers)

    def turn(self, age: np.ndarray) -> np.ndarray:
        """Return which rows may travel with this step, bool (rows,).

        ``age`` int64 (rows,): number of iterations since each row was sent in this direction.
        """
        return np.ones(age.size, bool)

    def begin(self, store: Accumulator, ahead: int) -> Step:
        """Prepare the model on which the step is computed; return the step to compute.

        ``ahead``: see `Accumulator.publish`.
        """
        store.drift = None
        store.publish(ahead)
        return self

    def batches(self, source: Source) -> int:
        """Return the number of batch gradients that the step computes."""
        return 1

    def compute(self, source: Source, iteration: int, sgd: SgdConfig) -> float:
        """Compute into ``source.gradient``, which is zero; return the loss."""
        raise NotImplementedError

    def keep(self, store: Accumulator, gradient: Array, sgd: SgdConfig) -> None:
        """Store the result, float32 (elements,), where the push reads it."""
        raise NotImplementedError

    def after_push(self, store: Accumulator, push: Sender) -> None:
        """Put what the server has not taken of a finished push back into the store."""
        store.put_back(push.codec, push.untaken())


@dataclass(frozen=True)
class Gradient(Step):
    """The gradient of the robot's own next batch; with SVRG it is corrected by the anchor.

    ``momentum``: whether the worker applies momentum; otherwise the server does.
    """

    name = 'gradient'
    exchangeable = True

    momentum: bool = field(default=True, compare=False)

    def integers(self) -> tuple[int, ...]:
        """See `Step.integers`."""
        return (int(self.momentum),)

    def batches(self, source: Source) -> int:
        """See `Step.batches`: with an anchor, a second gradient at the anchor's model."""
        return 1 if source.store.anchor is None else 2

    def compute(self, source: Source, iteration: int, sgd: SgdConfig) -> float:
        """See `Step.compute`. Source of the correction: GSGM, Algorithm 5, line 6."""
        batch = source.batch()
        if source.store.anchor is None:
            return source.add(batch)
        weights, full = source.store.anchor
        model = source.store.model
        from ..arrays import copy_of  # with numba, which messages do without

        now = copy_of(model)
        try:
            model[:] = weights
            source.add(batch, -1.0)
        finally:
            model[:] = now
        loss = source.add(batch)
        gradient = source.result
        gradient += full
        return loss

    def keep(self, store: Accumulator, gradient: Array, sgd: SgdConfig) -> None:
        """See `Step.keep`."""
        store.accumulate(gradient, sgd.learning_rate, sgd.momentum if self.momentum else 0.0,
                         sgd.weight_decay, sgd.nesterov)


@dataclass(frozen=True)
class Shards(Step):
    """A coded gradient: the sum of ``weights`` times the gradients of the shards ``ids``.

    ``shards``: number of shards of the data, at most `MAX_SHARDS`. The result is useful only
    together with those of the other robots in the same round. ``feedback``: the worker keeps the
    codec's error and adds it to the next result.
    """

    name = 'shards'
    additive = False

    shards: int
    ids: tuple[int, ...]
    weights: tuple[float, ...]
    feedback: bool = True

    def check(self) -> None:
        """See `Step.check`."""
        if not 1 <= self.shards <= MAX_SHARDS or not 0 < len(self.ids) == len(self.weights):
            raise RemoteProtocolError('a coded gradient must have one weight for each shard, of 1 '
                                      f'to {MAX_SHARDS}, got {len(self.weights)} weights for '
                                      f'{len(self.ids)} of {self.shards} shards')
        if not all(0 <= shard < self.shards for shard in self.ids):
            raise RemoteProtocolError('shards of a coded gradient must be 0 to '
                                      f'{self.shards - 1}, got {list(self.ids)}')
        if len(set(self.ids)) < len(self.ids):  # each costs a gradient
            raise RemoteProtocolError('shards of a coded gradient must differ, got '
                                      f'{list(self.ids)}')
        if not all(map(math.isfinite, self.weights)):
            raise RemoteProtocolError('weights of a coded gradient must be finite, got '
                                      f'{list(self.weights)}')

    def integers(self) -> tuple[int, ...]:
        """See `Step.integers`."""
        return (self.shards, int(self.feedback), *self.ids)

    def numbers(self) -> tuple[float, ...]:
        """See `Step.numbers`."""
        return self.weights

    @classmethod
    def of(cls, integers: tuple[int, ...], numbers: tuple[float, ...]) -> Step:
        """See `Step.of`."""
        shards, feedback, *ids = integers
        return cls(shards, tuple(ids), numbers, bool(feedback))

    def batches(self, source: Source) -> int:
        """See `Step.batches`."""
        return len(self.ids)

    def compute(self, source: Source, iteration: int, sgd: SgdConfig) -> float:
        """See `Step.compute`."""
        losses = [source.add(source.batch_of(self.shards, shard, iteration), weight)
                  for shard, weight in zip(self.ids, self.weights, strict=True)]
        return sum(losses) / len(losses)

    def keep(self, store: Accumulator, gradient: Array, sgd: SgdConfig) -> None:
        """See `Step.keep`: the server applies momentum; weight decay is added once per shard."""
        store.accumulate(gradient, sgd.learning_rate, 0.0, sgd.weight_decay * sum(self.weights),
                         sgd.nesterov)

    def after_push(self, store: Accumulator, push: Sender) -> None:
        """See `Step.after_push`: rows that were not sent are useless in another round."""
        if not (self.feedback and push.complete()):
            store.clear()


@dataclass(frozen=True)
class Full(Step):
    """The gradient of the robot's whole shard (SVRG); all robots compute it on the same model."""

    name = 'full'
    uncompressed = True

    def batches(self, source: Source) -> int:
        """See `Step.batches`."""
        return source.shard_batches()

    def compute(self, source: Source, iteration: int, sgd: SgdConfig) -> float:
        """See `Step.compute`: the mean over the batches, which have about equal size."""
        losses = [source.add(batch) for batch in source.shard()]
        gradient = source.result
        gradient /= len(losses)
        return sum(losses) / len(losses)

    def keep(self, store: Accumulator, gradient: Array, sgd: SgdConfig) -> None:
        """See `Step.keep`."""
        from ..arrays import copy_of

        store.full = copy_of(gradient)

    def after_push(self, store: Accumulator, push: Sender) -> None:
        """See `Step.after_push`: nothing is kept, since the gradient is of one model only."""


@dataclass(frozen=True)
class Local(Step):
    """``steps`` steps of SGD on a copy of the model; the change of the model is pushed.

    Momentum is zero at the first of the ``steps``, as in FedAvg.
    """

    name = 'local'

    steps: int

    def check(self) -> None:
        """See `Step.check`."""
        if not 1 <= self.steps <= MAX_LOCAL:
            raise RemoteProtocolError(f'number of local steps must be 1 to {MAX_LOCAL}, got '
                                      f'{self.steps}')

    def integers(self) -> tuple[int, ...]:
        """See `Step.integers`."""
        return (self.steps,)

    def batches(self, source: Source) -> int:
        """See `Step.batches`."""
        return self.steps

    def compute(self, source: Source, iteration: int, sgd: SgdConfig) -> float:
        """See `Step.compute`: the "gradient" is the model before minus the model after."""
        return self._steps(source, source.gradient.clone(), sgd)  # the gradient is zero

    def _steps(self, source: Source, velocity: torch.Tensor, sgd: SgdConfig) -> float:
        weights, gradient = source.weights, source.gradient
        before, losses = weights.clone(), []
        try:
            for _ in range(self.steps):
                source.clear()
                losses.append(source.add(source.batch()))
                velocity.mul_(sgd.momentum).add_(gradient)
                way = gradient.add(velocity, alpha=sgd.momentum) if sgd.nesterov else velocity
                weights.mul_(1 - sgd.learning_rate * sgd.weight_decay)
                weights.sub_(way, alpha=sgd.learning_rate)
            gradient.copy_(before).sub_(weights)
        finally:
            weights.copy_(before)
        return sum(losses) / len(losses)

    def keep(self, store: Accumulator, gradient: Array, sgd: SgdConfig) -> None:
        """See `Step.keep`: the change already includes learning rate and momentum."""
        store.keep_local(gradient)


@dataclass(frozen=True)
class Phase(Local):
    """``steps`` local steps that continue the former ones: their momentum and the robot's drift.

    The robot's model is the fleet's with its own local steps in the rows that it has not pushed
    since. Rows r with r mod ``fragments`` = ``fragment`` travel, in either direction, and those
    that have not travelled for ``fragments`` iterations. ``fresh``: momentum begins at zero; set by
    a worker that has no drift, never by the server.
    """

    name = 'phase'
    exchangeable = True

    fragments: int = field(default=1, compare=False)
    fragment: int = field(default=0, compare=False)
    fresh: bool = field(default=False, compare=False)

    @property
    def share(self) -> float:
        """See `Step.share`."""
        return 1 / self.fragments

    def check(self) -> None:
        """See `Step.check`."""
        super().check()
        if not 0 <= self.fragment < self.fragments <= MAX_LOCAL:
            raise RemoteProtocolError(f'fragment must be one of 1 to {MAX_LOCAL}, counted from 0, '
                                      f'got fragment {self.fragment} of {self.fragments}')

    def integers(self) -> tuple[int, ...]:
        """See `Step.integers`."""
        return self.steps, self.fragments, self.fragment

    @classmethod
    def of(cls, integers: tuple[int, ...], numbers: tuple[float, ...]) -> Step:
        """See `Step.of`."""
        if len(integers) != 3 or numbers:
            raise ValueError(f'it has 3, got {len(integers) + len(numbers)}')
        return cls(*integers)

    def turn(self, age: np.ndarray) -> np.ndarray:
        """See `Step.turn`."""
        return (np.arange(age.size) % self.fragments == self.fragment) | (age >= self.fragments)

    def begin(self, store: Accumulator, ahead: int) -> Step:
        """See `Step.begin`: the drift includes steps under way, so nothing is predicted."""
        fresh = store.drift is None
        store.publish_own()
        return dataclasses.replace(self, fresh=fresh)

    def compute(self, source: Source, iteration: int, sgd: SgdConfig) -> float:
        """See `Step.compute`."""
        if self.fresh or source.velocity is None:
            source.velocity = source.gradient.clone()  # the gradient is zero
        return self._steps(source, source.velocity, sgd)

    def after_push(self, store: Accumulator, push: Sender) -> None:
        """See `Step.after_push`."""
        super().after_push(store, push)
        store.settle(push.taken())


STEPS: dict[str, type[Step]] = {step.name: step for step in (Gradient, Shards, Full, Local, Phase)}


def step_of(name: str, integers: Iterable[int], numbers: Iterable[float]) -> Step:
    """Return the step that the server names, not yet checked; `RemoteProtocolError` if unknown."""
    if name not in STEPS:
        raise RemoteProtocolError(f'step must be one of {", ".join(STEPS)}, got '
                                  f"'{name}': install the same version on robots and server")
    try:
        return STEPS[name].of(tuple(integers), tuple(numbers))
    except ValueError as error:
        raise RemoteProtocolError(f"wrong number of values for the step '{name}': {error}"
                                  ) from None
