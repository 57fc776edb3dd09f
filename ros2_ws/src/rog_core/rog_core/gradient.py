"""The gradient that a `Compute` asks for: of a batch, of a whole shard, or coded.

What both shells, the node and the virtual-time fleet, do with a model and its data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch

from .accumulator import Accumulator
from .arrays import copy_of
from .flat import FlatModel, as_array
from .messages import Compute, Work


class Data(Protocol):
    """What a robot learns from; a batch is whatever ``loss`` takes."""

    def batch(self) -> Any:
        """Return the robot's own next batch."""

    def shard(self) -> Iterable[Any]:
        """Return the batches of the robot's whole shard, once."""

    def batch_of(self, shards: int, shard: int, iteration: int) -> Any:
        """Return the batch of an iteration of one of ``shards`` shards, the same on every robot."""

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """Return the mean loss of a batch, a scalar."""


class GradientSource:
    """Computes into ``flat.gradient``. Whoever takes it from there checks that it is finite."""

    def __init__(self, model: torch.nn.Module, flat: FlatModel, store: Accumulator, data: Data
                 ) -> None:
        self._model, self._flat, self._store, self._data = model, flat, store, data
        self._in_shard = 0

    def batches(self, order: Compute) -> int:
        """Gradients of batches that it takes: how long it takes, in units of one."""
        if order.work is not None:
            return len(order.work.ids)
        if not order.full:
            return 1 if self._store.anchor is None else 2  # at the model, and at the anchor
        if not self._in_shard:
            self._in_shard = sum(1 for _ in self._data.shard())
        return self._in_shard

    def compute(self, order: Compute) -> float:
        """Compute the gradient that is asked for, at the model as it is; returns the loss."""
        self._flat.zero_grad()
        if order.work is not None:
            return self._coded(order.work, order.iteration)
        return self._full() if order.full else self._stochastic()

    def _add(self, batch: Any, weight: float = 1.0) -> float:
        loss = self._data.loss(self._model, batch)
        (loss if weight == 1.0 else weight * loss).backward()
        self._flat.collect()
        return float(loss.detach())

    def _stochastic(self) -> float:
        batch = self._data.batch()
        if self._store.anchor is None:
            return self._add(batch)
        weights, full = self._store.anchor  # SVRG: GSGM, Algorithm 5, line 6
        model = as_array(self._flat.weights)
        now = copy_of(model)
        try:
            model[:] = weights
            self._add(batch, -1.0)
        finally:
            model[:] = now
        loss = self._add(batch)
        gradient = as_array(self._flat.gradient)
        gradient += full
        return loss

    def _full(self) -> float:
        """Mean over the batches of the shard, which are of about equal size."""
        losses = [self._add(batch) for batch in self._data.shard()]
        gradient = as_array(self._flat.gradient)
        gradient /= len(losses)
        return sum(losses) / len(losses)

    def _coded(self, work: Work, iteration: int) -> float:
        losses = [self._add(self._data.batch_of(work.shards, shard, iteration), weight)
                  for shard, weight in zip(work.ids, work.weights, strict=True)]
        return sum(losses) / len(losses)
