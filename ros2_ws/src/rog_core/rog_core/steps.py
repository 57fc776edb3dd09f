"""Steps: what a worker can be told to compute, and what becomes of it.

The server says with every pull which step comes next; the step's name and numbers travel as plain
values. A worker knows these few steps and no method: whatever a method is made of, it is told in
these words. A gradient that was computed goes into the accumulator, from where its rows travel; a
full gradient travels whole and as it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from .arrays import copy_of
from .config import SgdConfig
from .errors import RemoteProtocolError

if TYPE_CHECKING:
    import torch

    from .accumulator import Accumulator
    from .arrays import Array
    from .transfer.sender import Sender

MAX_SHARDS = 4096     # into which the data is cut for coded gradients
MAX_LOCAL = 10_000    # local steps between two pushes


class Source(Protocol):
    """What a step computes with: see `rog_core.gradient.GradientSource`."""

    store: Accumulator
    weights: torch.Tensor   # the model, flat, as gradients are computed on it
    gradient: torch.Tensor  # what `add` adds to, flat
    result: Array           # the same memory

    def batch(self) -> Any:
        """Return the robot's own next batch."""

    def shard(self) -> Iterable[Any]:
        """Return the batches of the robot's whole shard, once."""

    def shard_batches(self) -> int:
        """Return how many batches that is."""

    def batch_of(self, shards: int, shard: int, iteration: int) -> Any:
        """Return the batch of an iteration of one of ``shards`` shards."""

    def clear(self) -> None:
        """Set the gradient to zero."""

    def add(self, batch: Any, weight: float = 1.0) -> float:
        """Add the weighted gradient of a batch at the present weights; return the loss."""


@dataclass(frozen=True)
class Step:
    """One kind of step. The values of a subclass are what the server says beside its name."""

    name: ClassVar[str]
    whole: ClassVar[bool] = False     # travels whole and as it is, and comes back as a mean
    additive: ClassVar[bool] = True   # what is left of it adds up with what comes later
    exchangeable: ClassVar[bool] = False  # one that was computed for another iteration will do

    def check(self) -> None:
        """Raise `RemoteProtocolError` if no worker can do this."""

    def integers(self) -> tuple[int, ...]:
        """Return its whole numbers, as `of` takes them."""
        return ()

    def numbers(self) -> tuple[float, ...]:
        """Return its other numbers, as `of` takes them."""
        return ()

    @classmethod
    def of(cls, integers: tuple[int, ...], numbers: tuple[float, ...]) -> Step:
        """Return the step that these numbers tell; ValueError if they are too many or too few."""
        count = len(dataclasses.fields(cls))
        if len(integers) != count or numbers:
            raise ValueError(f'it has {count}, not {len(integers) + len(numbers)}')
        return cls(*integers)

    def batches(self, source: Source) -> int:
        """Return how many gradients of batches it takes."""
        return 1

    def compute(self, source: Source, iteration: int, sgd: SgdConfig) -> float:
        """Compute into ``source.gradient``, which is zero; return the loss."""
        raise NotImplementedError

    def keep(self, store: Accumulator, gradient: Array, sgd: SgdConfig) -> None:
        """Put what was computed, float32 (elements,), where its push takes it from."""
        raise NotImplementedError

    def after_push(self, store: Accumulator, push: Sender) -> None:
        """The push is over: what the server has not taken stays with the worker, to go later."""
        store.put_back(push.codec, push.untaken())


@dataclass(frozen=True)
class Gradient(Step):
    """The gradient of the robot's own next batch; corrected, where there is an anchor (SVRG).

    ``momentum``: whether the worker has momentum, or it is the server's.
    """

    name = 'gradient'
    exchangeable = True

    momentum: bool = field(default=True, compare=False)

    def integers(self) -> tuple[int, ...]:
        """See `Step.integers`."""
        return (int(self.momentum),)

    def batches(self, source: Source) -> int:
        """See `Step.batches`: with an anchor it is computed there, too."""
        return 1 if source.store.anchor is None else 2

    def compute(self, source: Source, iteration: int, sgd: SgdConfig) -> float:
        """See `Step.compute`. Source of the correction: GSGM, Algorithm 5, line 6."""
        batch = source.batch()
        if source.store.anchor is None:
            return source.add(batch)
        weights, full = source.store.anchor
        model = source.store.model
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

    ``shards``: into how many the data is cut, at most `MAX_SHARDS`. It is worth something only
    together with the others of its round. ``feedback``: what the codec loses is kept for the next.
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
            raise RemoteProtocolError(f'the server asks for {len(self.ids)} of {self.shards} '
                                      f'shards, with {len(self.weights)} weights')
        if not all(0 <= shard < self.shards for shard in self.ids):
            raise RemoteProtocolError(f'the server asks for a shard that is none of {self.shards}')
        if not all(map(math.isfinite, self.weights)):
            raise RemoteProtocolError('the server asks for a weight that is NaN or infinite')

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
        """See `Step.keep`: momentum is the server's, and weight decay counts once per shard."""
        store.accumulate(gradient, sgd.learning_rate, 0.0, sgd.weight_decay * sum(self.weights),
                         sgd.nesterov)

    def after_push(self, store: Accumulator, push: Sender) -> None:
        """See `Step.after_push`: parts of it are of no use later."""
        if not (self.feedback and push.complete()):
            store.clear()


@dataclass(frozen=True)
class Full(Step):
    """The full gradient of the robot's shard (SVRG): of one model, and by everybody."""

    name = 'full'
    whole = True

    def batches(self, source: Source) -> int:
        """See `Step.batches`."""
        return source.shard_batches()

    def compute(self, source: Source, iteration: int, sgd: SgdConfig) -> float:
        """See `Step.compute`: the mean over the batches, which are of about equal size."""
        losses = [source.add(batch) for batch in source.shard()]
        gradient = source.result
        gradient /= len(losses)
        return sum(losses) / len(losses)

    def keep(self, store: Accumulator, gradient: Array, sgd: SgdConfig) -> None:
        """See `Step.keep`."""
        store.full = copy_of(gradient)

    def after_push(self, store: Accumulator, push: Sender) -> None:
        """See `Step.after_push`: it is of this model alone."""


@dataclass(frozen=True)
class Local(Step):
    """``steps`` steps of SGD on a copy of the model; what travels is how far they led.

    Momentum is that of these steps alone: it begins at zero each time, as with FedAvg.
    """

    name = 'local'

    steps: int

    def check(self) -> None:
        """See `Step.check`."""
        if not 1 <= self.steps <= MAX_LOCAL:
            raise RemoteProtocolError(f'the server asks for {self.steps} local steps; it may ask '
                                      f'for 1 to {MAX_LOCAL}')

    def integers(self) -> tuple[int, ...]:
        """See `Step.integers`."""
        return (self.steps,)

    def batches(self, source: Source) -> int:
        """See `Step.batches`."""
        return self.steps

    def compute(self, source: Source, iteration: int, sgd: SgdConfig) -> float:
        """See `Step.compute`: the "gradient" is the model before less the model after."""
        weights, gradient = source.weights, source.gradient
        before, velocity, losses = weights.clone(), gradient.clone(), []
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
        """See `Step.keep`: it is a step already, learning rate and momentum are in it."""
        store.accumulate(gradient, 1.0, 0.0)
        store.momentum[:] = 0  # nothing of it is left for a method whose momentum goes on


STEPS: dict[str, type[Step]] = {step.name: step for step in (Gradient, Shards, Full, Local)}


def step_of(name: str, integers: Iterable[int], numbers: Iterable[float]) -> Step:
    """Return the step that the server names, not yet checked; `RemoteProtocolError` for none."""
    if name not in STEPS:
        raise RemoteProtocolError(f"the server asks for the step '{name}', which this version does "
                                  f'not know; it knows {", ".join(STEPS)}')
    try:
        return STEPS[name].of(tuple(integers), tuple(numbers))
    except ValueError as error:
        raise RemoteProtocolError(f"the numbers of the step '{name}' are not its own: {error}"
                                  ) from None
