"""A task whose gradients cost nothing: for runs of a known model in which only time counts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import torch
from rog_tasks.errors import TaskError
from rog_tasks.models import MODELS
from rog_tasks.task import Task
from torch import Tensor, nn


class Free(Task):
    """The loss is half the square of the parameters, so that the gradient is the parameters.

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
        """Nothing is learnt."""
        return 0.0
