"""Computes the gradients for a `Step` from a model and its data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch

from ..errors import ConfigError, LocalProtocolError
from ..model.flat import FlatModel
from ..protocol.config import SgdConfig
from ..protocol.messages import Compute
from ..protocol.steps import Full
from .accumulator import Accumulator
from .computation import computation_of


class Data(Protocol):
    """The training data of a robot; a batch may be anything that ``loss`` accepts."""

    def batch(self) -> Any:
        """Return the robot's own next batch."""

    def shard(self) -> Iterable[Any]:
        """Return each batch of the robot's whole shard once."""

    def batch_of(self, shards: int, shard: int, iteration: int) -> Any:
        """Return the batch of this iteration from shard number ``shard`` of ``shards`` shards.

        This batch is the same on every robot.
        """

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """Return the mean loss of a batch, a scalar."""


class GradientSource:
    """Implements `rog_core.worker.computation.Source`; does not check that gradients are finite."""

    def __init__(self, model: torch.nn.Module, flat: FlatModel, store: Accumulator, data: Data
                 ) -> None:
        self._model, self._flat, self.store = model, flat, store
        self.clear, self.load, self.held = flat.zero_grad, flat.load, flat.held
        self.batch, self.shard, self.batch_of = data.batch, data.shard, data.batch_of
        self._loss, self._in_shard = data.loss, 0
        self.velocity: torch.Tensor | None = None

    # These two are longer once a frozen parameter was unfrozen, see `FlatModel.grow`.
    @property
    def weights(self) -> torch.Tensor:
        """The flat model on which gradients are computed."""
        return self._flat.weights

    @property
    def gradient(self) -> torch.Tensor:
        """The sum of the gradients that `add` computes, flat."""
        return self._flat.gradient

    def shard_batches(self) -> int:
        """Return the number of batches of the robot's whole shard."""
        if not self._in_shard:
            self._in_shard = sum(1 for _ in self.shard())
        return self._in_shard

    def add(self, batch: Any, weight: float = 1.0) -> float:
        """Add ``weight`` times the gradient of a batch at the present weights; return the loss."""
        if not self._flat.is_all_views:
            self._flat.load_weights()
        loss = self._loss(self._model, batch)
        if not (isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad):
            raise LocalProtocolError(f'the loss is {_described(loss)}; it must be a scalar tensor '
                                     'that depends on the parameters')
        (loss if weight == 1.0 else weight * loss).backward()
        self._flat.collect()
        return float(loss.detach())

    def compute(self, order: Compute, sgd: SgdConfig) -> float:
        """Compute the step that ``order`` asks for, on the present model; return the loss."""
        self.clear()
        self.load()
        loss = computation_of(order.step).compute(self, order, sgd)
        svrg = isinstance(order.step, Full) or self.store.anchor is not None
        if svrg and self._flat.unfrozen and self.store.partition.frozen:
            raise ConfigError(f'parameter {self._flat.unfrozen[0]} was unfrozen during the run, '
                              'but svrg trains only what its full gradient contains: unfreeze it '
                              'in the model from the beginning, or choose a method without svrg')
        return loss


def _described(loss: Any) -> str:
    if not isinstance(loss, torch.Tensor):
        return f'of type {type(loss).__name__}'
    return f'a tensor of shape {tuple(loss.shape)}' + ('' if loss.requires_grad else
                                                      ' that needs no gradient')
