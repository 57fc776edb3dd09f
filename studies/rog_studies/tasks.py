"""Tasks whose gradients cost next to nothing, for runs in which only time and traffic count."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import torch
from rog_tasks.errors import TaskError
from rog_tasks.models import MODELS
from rog_tasks.task import Task
from torch import Tensor, nn


class ZeroCost(Task):
    """Trains a known model on half the square of its parameters: the gradient is the parameters.

    :param model: a key of :data:`rog_tasks.models.MODELS`, whose rows travel.
    :param seed: of the parameters.
    """

    def __init__(self, seed: int = 0, model: str = 'mnistnet') -> None:
        if model not in MODELS:
            raise TaskError(f'model {model!r} is unknown; there are {", ".join(MODELS)}')
        self._seed, self._model = seed, model

    def model(self) -> nn.Module:
        """Return a new model; the global random state is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            return MODELS[self._model]()

    def batches(self, rank: int, world: int) -> Iterator[None]:
        """Yield nothing, without end."""
        return repeat(None)

    def loss(self, model: nn.Module, batch: None) -> Tensor:
        """Return half the sum of the squares of all parameters."""
        squares = [parameter.flatten().dot(parameter.flatten()) for parameter in model.parameters()]
        return torch.stack(squares).sum() / 2

    def evaluate(self, model: nn.Module) -> float:
        """Return 0, since nothing is learnt."""
        return 0.0


class Noise(Task):
    """Trains ``rows`` rows of 512 elements on noise: every batch is the gradient that it gives.

    :param rows: rows of the model.
    :param seed: of the noise.
    """

    def __init__(self, seed: int = 0, rows: int = 168) -> None:
        self._seed, self._rows = seed, rows

    def model(self) -> nn.Module:
        """Return a linear layer without bias, all zero."""
        model = nn.Linear(512, self._rows, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def batches(self, rank: int, world: int) -> Iterator[Tensor]:
        """Yield noise of shape (rows, 512), float32."""
        generator = torch.Generator().manual_seed(1000 * self._seed + rank)
        while True:
            yield torch.randn(self._rows, 512, generator=generator)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return the mean product of model and batch, whose gradient follows the batch."""
        return (next(model.parameters()) * batch).mean()

    def evaluate(self, model: nn.Module) -> float:
        """Return 0, since nothing is learnt."""
        return 0.0
