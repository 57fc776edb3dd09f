"""Tasks whose gradients cost almost nothing, for runs that measure only time and traffic."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import torch
from rog_tasks.errors import TaskError
from rog_tasks.models import MODELS
from rog_tasks.task import Task
from torch import Tensor, nn


class ZeroCost(Task):
    """Trains a model of `rog_tasks` with a loss whose gradient is equal to the parameters.

    :param seed: seed of the initial parameters.
    :param model: key of :data:`rog_tasks.models.MODELS`; the rows of this model are transferred.
    """

    def __init__(self, seed: int = 0, model: str = 'mnistnet') -> None:
        if model not in MODELS:
            raise TaskError(f'model {model!r} is unknown; there are {", ".join(MODELS)}')
        self._seed, self._model = seed, model

    def model(self) -> nn.Module:
        """Return a new model; PyTorch's global random state stays unchanged."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            return MODELS[self._model]()

    def batches(self, rank: int, world: int) -> Iterator[None]:
        """Yield None forever, because the loss needs no data."""
        return repeat(None)

    def loss(self, model: nn.Module, batch: None) -> Tensor:
        """Return half the sum of the squares of all parameters."""
        squares = [parameter.flatten().dot(parameter.flatten()) for parameter in model.parameters()]
        return torch.stack(squares).sum() / 2

    def evaluate(self, model: nn.Module) -> float:
        """Return 0, because the model learns nothing."""
        return 0.0


class Noise(Task):
    """Trains a model on noise; the gradient is the noise of the batch times a constant.

    :param seed: seed of the noise.
    :param rows: number of rows of the model; each row has 512 elements.
    """

    def __init__(self, seed: int = 0, rows: int = 168) -> None:
        self._seed, self._rows = seed, rows

    def model(self) -> nn.Module:
        """Return a linear layer without bias whose weights are all 0."""
        model = nn.Linear(512, self._rows, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def batches(self, rank: int, world: int) -> Iterator[Tensor]:
        """Yield noise of shape (rows, 512), float32."""
        generator = torch.Generator().manual_seed(1000 * self._seed + rank)
        while True:
            yield torch.randn(self._rows, 512, generator=generator)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return the mean of weights * batch; its gradient is the batch times a constant."""
        return (next(model.parameters()) * batch).mean()

    def evaluate(self, model: nn.Module) -> float:
        """Return 0, because the model learns nothing."""
        return 0.0
