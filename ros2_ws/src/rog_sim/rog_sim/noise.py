"""A task whose gradients are noise: for runs in which only time and traffic count."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from rog_tasks.task import Task
from torch import Tensor, nn


class Noise(Task):
    """``rows`` rows of 512 elements; a batch is a direction, the loss its product with the model.

    :param rows: rows of the model.
    :param seed: of the directions.
    """

    def __init__(self, seed: int = 0, rows: int = 168):
        self._seed, self._rows = seed, rows

    def model(self) -> nn.Module:
        """Return a linear layer without bias, all zero."""
        model = nn.Linear(512, self._rows, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def batches(self, rank: int, world: int) -> Iterator[Tensor]:
        """Yield directions (rows, 512)."""
        generator = torch.Generator().manual_seed(1000 * self._seed + rank)
        while True:
            yield torch.randn(self._rows, 512, generator=generator)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return the mean product: the gradient is the direction."""
        return (next(model.parameters()) * batch).mean()

    def evaluate(self, model: nn.Module) -> float:
        """Nothing is learnt."""
        return 0.0
