"""CRUDA: robots adapt a shared recogniser to fog and a change of brightness (ROG, Section VI).

The recogniser is trained on clean images. Then the world changes: every image is spoilt. As in the
paper, the fleet adapts with labelled examples, made by spoiling the original training images.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rog_tasks.data import LOADERS, ImageData
from rog_tasks.errors import TaskError
from rog_tasks.loading import load_object
from rog_tasks.models import DigitNet
from rog_tasks.shards import partition
from rog_tasks.shift import Shift
from rog_tasks.task import Task

LEARNING_RATE = 0.005
"""Brings the default model to within 3 points of its clean accuracy in under 100 iterations of 3
robots x 24 images, with momentum .9 (Nesterov), plain or with one bit per element."""

Batch = tuple[Tensor, Tensor]


class Cruda(Task):
    """Recognition under fog and brightness shift, with any model on any image data set.

    :param seed: of the model's initialisation, the data's split, the shards, the order and the fog.
    :param data: a key of :data:`rog_tasks.data.LOADERS`, or ``package.module:function`` of a
        function that returns an :class:`~rog_tasks.data.ImageData`.
    :param data_options: keyword arguments of that function.
    :param model: ``digitnet``, or ``package.module:function`` of a function or class that returns a
        model: images (N, C, H, W), 0 to 1, to logits (N, classes).
    :param model_options: keyword arguments of that function.
    :param split: ``iid`` or ``dirichlet:ALPHA``, see :func:`rog_tasks.shards.partition`.
    :param fog, brightness: strength of the shift, see :class:`rog_tasks.shift.Shift`.
    :param pretrain_epochs: passes over the clean images in :meth:`pretrain`.
    :param test_limit: evaluate on at most so many test images; 0 for all.
    :raises TaskError: for an option that cannot be, which it names.
    """

    def __init__(self, seed: int = 0, data: str = 'digits',
                 data_options: Mapping[str, Any] | None = None, model: str = 'digitnet',
                 model_options: Mapping[str, Any] | None = None, split: str = 'iid',
                 fog: float = 0.5, brightness: float = 0.12, pretrain_epochs: int = 12,
                 test_limit: int = 0):
        if pretrain_epochs < 0 or test_limit < 0:
            raise TaskError('pretrain_epochs and test_limit must be at least 0')
        try:
            self._shift = Shift(float(fog), float(brightness))
        except (TypeError, ValueError) as error:
            raise TaskError(f'fog and brightness: {error}') from error
        self._seed = seed
        self._split = split
        self._epochs = pretrain_epochs
        self._model_spec = model
        self._model_options = dict(model_options or {})
        self._data = self._load(data, dict(data_options or {}))
        chosen = slice(test_limit or None)
        self._clean = self._data.test_images[chosen], self._data.test_labels[chosen]
        self._spoilt = self._shift(self._clean[0], self._generator('test')), self._clean[1]
        partition(self._data.train_labels.numpy(), 1, split)  # refuses an unknown split at once

    def model(self) -> nn.Module:
        """Return a new model; the global random state is left as it was."""
        options = self._model_options
        factory: Any = DigitNet
        if self._model_spec == 'digitnet':
            options = {'channels': self._data.train_images.shape[1],
                       'classes': self._data.classes, **options}
        else:
            factory = load_object(self._model_spec, 'model')
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._number('model'))
            try:
                made = factory(**options)
            except TypeError as error:
                raise TaskError(f'model_options of {self._model_spec}: {error}') from error
        if not isinstance(made, nn.Module):
            raise TaskError(f'model {self._model_spec!r} gives {type(made).__name__}, no '
                            'torch.nn.Module')
        return made

    def pretrain(self, model: nn.Module) -> None:
        """Train ``model`` on the clean images: Adam, one cycle of the learning rate, batch 64."""
        images, labels = self._data.train_images, self._data.train_labels
        steps = self._epochs * math.ceil(len(labels) / 64)
        if not steps:
            return
        optimizer = torch.optim.Adam(model.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
        generator = self._generator('pretrain')
        for _ in range(self._epochs):
            for chosen in torch.randperm(len(labels), generator=generator).split(64):
                optimizer.zero_grad()
                self.loss(model, (images[chosen], labels[chosen])).backward()
                optimizer.step()
                schedule.step()
        optimizer.zero_grad()

    def batches(self, rank: int, world: int) -> Iterator[Batch]:
        """Yield (images (B, C, H, W), labels (B,)), spoilt anew each time they come round."""
        if not 0 <= rank < world:
            raise TaskError(f'rank {rank} must lie between 0 and {world - 1}')
        labels = self._data.train_labels
        shard = torch.from_numpy(partition(labels.numpy(), world, self._split, self._seed)[rank])
        return self._endless(shard, self._generator('batches', rank))

    def _endless(self, shard: Tensor, generator: torch.Generator) -> Iterator[Batch]:
        waiting = shard[:0]
        while True:
            while len(waiting) < self.batch_size:
                order = torch.randperm(len(shard), generator=generator)
                waiting = torch.cat((waiting, shard[order]))
            chosen, waiting = waiting[:self.batch_size], waiting[self.batch_size:]
            images = self._shift(self._data.train_images[chosen], generator)
            yield images, self._data.train_labels[chosen]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross entropy."""
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module) -> float:
        """Return the share of spoilt test images that ``model`` recognises."""
        return accuracy(model, *self._spoilt)

    def evaluate_clean(self, model: nn.Module) -> float:
        """Return the share of clean test images that ``model`` recognises."""
        return accuracy(model, *self._clean)

    def _load(self, data: str, options: dict[str, Any]) -> ImageData:
        loader = LOADERS[data] if data in LOADERS else load_object(
            data, f'data ({", ".join(LOADERS)} or package.module:function)')
        if data == 'digits':
            options.setdefault('seed', self._seed)
        try:
            loaded = loader(**options)
        except TypeError as error:
            raise TaskError(f'data_options of {data}: {error}') from error
        if not isinstance(loaded, ImageData):
            raise TaskError(f'data {data!r} gives {type(loaded).__name__}, no ImageData')
        return loaded

    def _number(self, purpose: str, rank: int = 0) -> int:
        """Return the seed of one purpose, so that no two draw the same numbers."""
        entropy = [self._seed, rank, *purpose.encode()]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])

    def _generator(self, purpose: str, rank: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self._number(purpose, rank))


def accuracy(model: nn.Module, images: Tensor, labels: Tensor, at_once: int = 512) -> float:
    """Return the share of ``images`` that ``model`` labels rightly; leaves its mode as it was."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            right = sum(int((model(part).argmax(1) == truth).sum()) for part, truth in
                        zip(images.split(at_once), labels.split(at_once), strict=True))
    finally:
        model.train(training)
    return right / len(labels)
