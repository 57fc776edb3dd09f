"""CRUDA: robots adapt a shared recogniser to fog and a change of brightness (ROG, Section VI).

The recogniser is trained on clean images. Then the surroundings change: fog and brightness spoil
every image. As in the paper, the fleet adapts with labelled examples: the training images, now
spoilt.
"""

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from rog_tasks.cache import cached, digest, digest_of
from rog_tasks.classify import Classification, accuracy, fit
from rog_tasks.errors import TaskError
from rog_tasks.image_data import as_float
from rog_tasks.shift import Shift

LEARNING_RATE = 0.005
"""With this rate and Nesterov momentum 0.9, the default model comes within 3 percentage points of
its clean accuracy in fewer than 100 iterations of 3 robots x 24 images, uncompressed or with one
bit per element."""

RECIPE = 'Adam 3e-3, one cycle, batch 64'
"""Describes the training in `Cruda.pretrain`, as part of the name of the cached result. If you
change that training, change this text, too."""


class Cruda(Classification):
    """Recognition under fog and brightness shift, with any model on any image data set.

    The task has the options and errors of :class:`~rog_tasks.classify.Classification`, and these
    options:

    :param seed: random seed of `Classification`, and of the fog.
    :param fog, brightness: strength of the shift, see :class:`rog_tasks.shift.Shift`.
    :param pretrain_epochs: number of passes over the clean images in :meth:`pretrain`.
    :param pretrain_seed: random seed of the model's initialisation and of :meth:`pretrain`, so that
        runs with different seeds can begin with the same model; by default ``seed``.
    """

    def __init__(self, seed: int = 0, data: str = 'digits',
                 data_options: Mapping[str, Any] | None = None, model: str = 'digitnet',
                 model_options: Mapping[str, Any] | None = None, split: str = 'iid',
                 fog: float = 0.5, brightness: float = 0.12, pretrain_epochs: int = 12,
                 pretrain_seed: int | None = None, test_limit: int = 0):
        if pretrain_epochs < 0:
            raise TaskError('pretrain_epochs must be at least 0')
        super().__init__(seed, data, data_options, model, model_options, split, test_limit)
        try:
            self._shift = Shift(float(fog), float(brightness))
        except (TypeError, ValueError) as error:
            raise TaskError(f'fog and brightness: {error}') from error
        self._epochs = pretrain_epochs
        if pretrain_seed is not None:
            self._model_seed = pretrain_seed
        self._spoilt = self._shift(self._test[0], self._generator('test')), self._test[1]

    def pretrain(self, model: nn.Module) -> None:
        """Train ``model`` on the clean images.

        The optimiser is Adam, with one cycle of the learning rate and batches of 64. If the data
        has a digest (image folders, digits) and the code of the model is available, the user's
        cache directory keeps the result. The name of the file is a digest of everything that the
        result depends on.
        """
        code = _source_of(model)
        if not (self._data.digest and code):
            self._train_clean(model)
            return
        key = digest(RECIPE, self._data.digest, str(self._epochs), str(self._model_seed),
                     digest_of(model.state_dict()), code)

        def train() -> dict[str, torch.Tensor]:
            self._train_clean(model)
            return {name: tensor.detach().contiguous()
                    for name, tensor in model.state_dict().items()}
        model.load_state_dict(cached('weights', key, train))

    def _train_clean(self, model: nn.Module) -> None:
        images, labels = self._data.train_images, self._data.train_labels
        generator = self._generator('pretrain', seed=self._model_seed)
        batches = ((as_float(images[chosen]), labels[chosen]) for _ in range(self._epochs)
                   for chosen in torch.randperm(len(labels), generator=generator).split(64))
        fit(model, self.loss, batches, self._epochs * math.ceil(len(labels) / 64))

    def evaluate(self, model: nn.Module) -> float:
        """Return the share of spoilt test images that ``model`` recognises."""
        return accuracy(model, *self._spoilt)

    def evaluate_clean(self, model: nn.Module) -> float:
        """Return the share of clean test images that ``model`` recognises."""
        return accuracy(model, *self._test)


def _source_of(model: nn.Module) -> str:
    """Return the source code of a model's classes, but not of PyTorch's classes.

    The text is empty if the source code is not available.
    """
    own = {type(module) for module in model.modules()
           if not type(module).__module__.startswith('torch.')}
    try:
        return '\n'.join(sorted(inspect.getsource(cls) for cls in own))
    except (OSError, TypeError):
        return ''
