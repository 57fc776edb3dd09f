"""Computations of a worker: one class for each kind of step in `rog_core.protocol.steps`.

The worker adds a computed gradient to its accumulator and pushes rows of the accumulator. A full
gradient is an exception: the accumulator stores it separately, and the worker pushes it completely
and uncompressed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from typing_extensions import override

from ..arrays import Array, copy_of
from ..protocol.config import SgdConfig
from ..protocol.messages import Compute
from ..protocol.steps import Full, Gradient, Local, Phase, Shards, Step
from ..transfer.sender import Sender
from .accumulator import Accumulator

if TYPE_CHECKING:
    import torch

S = TypeVar('S', bound=Step)


class Source(Protocol):
    """The model and the data of a robot; see `rog_core.worker.gradient.GradientSource`."""

    store: Accumulator
    velocity: torch.Tensor | None  # momentum from which the local steps of a `Phase` continue

    @property
    def weights(self) -> torch.Tensor:
        """The flat model on which gradients are computed."""

    @property
    def gradient(self) -> torch.Tensor:
        """The sum of the gradients that `add` computes, flat."""

    def load(self) -> None:
        """Give the model's buffers the values that they had before the first batch."""

    def held(self) -> list[tuple[slice, torch.Tensor]]:
        """Return the elements and a copy of the values of each parameter that is frozen now."""

    def batch(self) -> Any:
        """Return the robot's own next batch."""

    def shard(self) -> Iterable[Any]:
        """Return each batch of the robot's whole shard once."""

    def shard_batches(self) -> int:
        """Return the number of batches of `shard`."""

    def batch_of(self, shards: int, shard: int, iteration: int) -> Any:
        """Return the batch of this iteration from shard number ``shard`` of ``shards`` shards."""

    def clear(self) -> None:
        """Set the gradient to zero."""

    def add(self, batch: Any, weight: float = 1.0) -> float:
        """Add ``weight`` times the gradient of a batch at the present weights; return the loss."""


class Computation(Generic[S]):
    """A worker's computation of one ``step``."""

    def __init__(self, step: S) -> None:
        self.step = step

    def begin(self, store: Accumulator, iteration: int, ahead: int) -> Compute:
        """Prepare the model on which the step is computed; return the action `Compute`.

        ``ahead``: see `Accumulator.publish`.
        """
        store.drift = None
        store.publish(ahead)
        return Compute(iteration, self.step)

    def batches(self, source: Source) -> int:
        """Return the number of batch gradients that the step computes."""
        return 1

    def compute(self, source: Source, order: Compute, sgd: SgdConfig) -> float:
        """Store the result in ``source.gradient``, which is zero at first; return the loss."""
        raise NotImplementedError

    def keep(self, store: Accumulator, gradient: Array, sgd: SgdConfig) -> None:
        """Store the result, float32 (elements,), in ``store``, from which the push reads it."""
        raise NotImplementedError

    def after_push(self, store: Accumulator, push: Sender) -> None:
        """Handle the end of a push: put the rows that have not arrived back into ``store``."""
        store.put_back(push.codec, push.untaken())


class OfGradient(Computation[Gradient]):
    """Computes the gradient of the robot's own next batch; with SVRG, the anchor corrects it.

    The anchor is an earlier model and its full gradient, see `Accumulator`.
    """

    @override
    def batches(self, source: Source) -> int:
        # with an anchor, two gradients: at the present model, and at the anchor's
        return 1 if source.store.anchor is None else 2

    @override
    def compute(self, source: Source, order: Compute, sgd: SgdConfig) -> float:
        # the correction is that of GSGM, Algorithm 5, line 6
        batch = source.batch()
        if source.store.anchor is None:
            return source.add(batch)
        import torch
        anchor, full = (torch.as_tensor(values, device=source.weights.device)
                        for values in source.store.anchor)
        now = source.weights.clone()
        try:
            source.weights[:len(anchor)] = anchor
            source.add(batch, -1.0)
        finally:
            source.weights[:len(now)].copy_(now)  # it may have grown
        source.load()  # the pass on the anchor does not count
        loss = source.add(batch)
        source.gradient[:len(full)] += full
        return loss

    @override
    def keep(self, store: Accumulator, gradient: Array, sgd: SgdConfig) -> None:
        store.accumulate(gradient, sgd.learning_rate, sgd.momentum if self.step.momentum else 0.0,
                         sgd.weight_decay, sgd.nesterov)


class OfShards(Computation[Shards]):
    """Computes a coded gradient: a weighted sum of the gradients of several shards."""

    @override
    def batches(self, source: Source) -> int:
        return len(self.step.ids)

    @override
    def compute(self, source: Source, order: Compute, sgd: SgdConfig) -> float:
        step = self.step
        losses = [source.add(source.batch_of(step.shards, shard, order.iteration), weight)
                  for shard, weight in zip(step.ids, step.weights, strict=True)]
        return sum(losses) / len(losses)

    @override
    def keep(self, store: Accumulator, gradient: Array, sgd: SgdConfig) -> None:
        # without momentum; the gradient is a sum of those of shards, so the weight decay is, too
        store.accumulate(gradient, sgd.learning_rate, 0.0,
                         sgd.weight_decay * sum(self.step.weights), sgd.nesterov)

    @override
    def after_push(self, store: Accumulator, push: Sender) -> None:
        # After a complete push, the codec's error stays, if the step has ``feedback``. The rest of
        # an incomplete one is useless in another round.
        if not (self.step.feedback and push.complete()):
            store.clear()


class OfFull(Computation[Full]):
    """Computes the gradient of the robot's whole shard."""

    @override
    def batches(self, source: Source) -> int:
        return source.shard_batches()

    @override
    def compute(self, source: Source, order: Compute, sgd: SgdConfig) -> float:
        # All batches count equally, because they have about equal size.
        losses = [source.add(batch) for batch in source.shard()]
        source.load()  # this pass repeats data, so it does not count for the buffers
        source.gradient.div_(len(losses))
        return sum(losses) / len(losses)

    @override
    def keep(self, store: Accumulator, gradient: Array, sgd: SgdConfig) -> None:
        store.full = copy_of(gradient)

    @override
    def after_push(self, store: Accumulator, push: Sender) -> None:
        pass  # nothing is put back: a later model has another full gradient


class OfLocal(Computation[Local]):
    """Makes local steps of SGD."""

    @override
    def batches(self, source: Source) -> int:
        return self.step.steps

    @override
    def compute(self, source: Source, order: Compute, sgd: SgdConfig) -> float:
        # The result is the model before the steps minus the model after them. The velocity begins
        # at zero, because the gradient is zero here.
        return self._steps(source, source.gradient.clone(), sgd)

    def _steps(self, source: Source, velocity: torch.Tensor, sgd: SgdConfig) -> float:
        before, losses = source.weights.clone(), []
        count = len(before)
        try:
            for _ in range(self.step.steps):
                source.clear()
                losses.append(source.add(source.batch()))
                weights, gradient = source.weights[:count], source.gradient[:count]
                held = source.held()
                velocity.mul_(sgd.momentum).add_(gradient)
                way = gradient.add(velocity, alpha=sgd.momentum) if sgd.nesterov else velocity
                weights.mul_(1 - sgd.learning_rate * sgd.weight_decay)
                weights.sub_(way, alpha=sgd.learning_rate)
                for part, values in held:
                    source.weights[part] = values
            source.clear()  # a parameter unfrozen in these steps is trained from the next ones on
            source.gradient[:count].copy_(before).sub_(source.weights[:count])
        finally:
            source.weights[:count].copy_(before)
        return sum(losses) / len(losses)

    @override
    def keep(self, store: Accumulator, gradient: Array, sgd: SgdConfig) -> None:
        store.keep_local(gradient)  # it includes learning rate and momentum


class OfPhase(OfLocal):
    """Makes local steps that continue the previous phase."""

    @override
    def begin(self, store: Accumulator, iteration: int, ahead: int) -> Compute:
        # steps under way need no prediction, because ``drift`` contains them
        fresh = store.drift is None
        store.publish_own()
        return Compute(iteration, self.step, fresh)

    @override
    def compute(self, source: Source, order: Compute, sgd: SgdConfig) -> float:
        if order.fresh or source.velocity is None or len(source.velocity) < len(source.gradient):
            # the gradient is zero here, because no batch has been added yet
            source.velocity = source.gradient.clone()
        return self._steps(source, source.velocity, sgd)

    @override
    def after_push(self, store: Accumulator, push: Sender) -> None:
        super().after_push(store, push)
        store.settle(push.taken())


COMPUTATIONS: dict[type[Step], type[Computation[Any]]] = {
    Gradient: OfGradient, Shards: OfShards, Full: OfFull, Local: OfLocal, Phase: OfPhase}


def computation_of(step: Step) -> Computation[Any]:
    """Return the computation for a step."""
    return COMPUTATIONS[type(step)](step)
