"""Recognition from scratch: any model learns the classes of any set of labelled images."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rog_tasks.batches import Batch, Batches, to_device_of
from rog_tasks.cache import Progress
from rog_tasks.data import LOADERS, ImageData
from rog_tasks.errors import TaskError
from rog_tasks.image_data import as_float
from rog_tasks.loading import load_object
from rog_tasks.models import build_model, try_model
from rog_tasks.shards import partition, require_labels
from rog_tasks.shift import Shift
from rog_tasks.task import Task

PIXELS_AT_ONCE, IMAGES_AT_ONCE = 1 << 16, 64
"""Maximum number of pixels and of images of a batch in an evaluation, so that the values inside the
network fit into a CPU's cache. An image of 32x32 took ConvMlp 0.7 ms in a batch of 64 images, and
1.2 ms in a batch of 512. 360 images of 8x8 took DigitNet 17 ms in batches of 64, and 22 ms in one
batch."""


class Classification(Task):
    """Supervised training of a recogniser; each robot trains on its own shard of the images.

    :param seed: random seed for the model's initialisation, the split of the digits, the
        shards and the order of the images.
    :param data: a key of :data:`rog_tasks.data.LOADERS`, or ``package.module:function`` of
        a function that returns an :class:`~rog_tasks.data.ImageData`.
    :param data_options: keyword arguments of this function.
    :param model: a key of :data:`rog_tasks.models.MODELS`, or ``package.module:function``
        of a function or class that returns a model. The model maps N images, (N, channels,
        height, width), with values from 0 to 1, to logits (N, classes).
    :param model_options: keyword arguments of this function or class.
    :param split: which robot gets which images, see :func:`rog_tasks.shards.partition`.
    :param test_limit: largest number of test images, chosen at equal intervals; 0: use all.
    :raises TaskError: an option is invalid; the message names it.
    """

    def __init__(self, seed: int = 0, data: str = 'shapes',
                 data_options: Mapping[str, Any] | None = None, model: str = 'mnistnet',
                 model_options: Mapping[str, Any] | None = None, split: str = 'iid',
                 test_limit: int = 0):
        if test_limit < 0:
            raise TaskError('test_limit must be at least 0')
        self._seed = self._model_seed = seed
        self._split = split
        self._shift = Shift(0.0, 0.0)
        self._model_spec = model
        self._model_options = dict(model_options or {})
        self._data = self._load(data, dict(data_options or {}))
        images = len(self._data.test_labels)
        # Choose images at equal intervals, because they may be sorted by class.
        chosen = torch.arange(test_limit) * images // test_limit \
            if 0 < test_limit < images else slice(None)
        self._test = as_float(self._data.test_images[chosen]), self._data.test_labels[chosen]
        self._shards = self._cut(1)  # raises an error now if the split or a label is invalid

    def model(self) -> nn.Module:
        """Return a new model; do not change the global random state."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._number('model', seed=self._model_seed))
            made = build_model(self._model_spec, self._model_options,
                               self._data.train_images.shape[1], self._data.classes)
            try_model(made, self._model_spec, self._test[0][:1])
        return made

    def batches(self, rank: int, world: int) -> Iterator[Batch]:
        """Yield batches of the robot's shard: images and their labels.

        The images of a batch are (images, channels, height, width). The shard is repeated without
        end, each time in a new order.
        """
        return Batches(self._data.train_images, self._data.train_labels, self._shard(rank, world),
                       self.batch_size, self._shift, self._generator('batches', rank))

    def shard(self, rank: int, world: int) -> Iterator[Batch]:
        """Yield the batches of the robot's shard once, in the order of the shard.

        The last batch may be smaller.
        """
        generator = self._generator('shard', rank)
        for chosen in self._shard(rank, world).split(self.batch_size):
            yield (self._shift(as_float(self._data.train_images[chosen]), generator),
                   self._data.train_labels[chosen])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross entropy."""
        images, labels = to_device_of(model, batch)
        return nn.functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module) -> float:
        """Return the share of test images that ``model`` recognises."""
        return accuracy(model, *self._test)

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
            raise TaskError(f'data {data!r} must return ImageData, got {type(loaded).__name__}')
        return loaded

    def _shard(self, rank: int, world: int) -> Tensor:
        if not 0 <= rank < world:
            raise TaskError(f'rank {rank} must lie between 0 and {world - 1}')
        shards = self._shards  # read the attribute once, because another thread may replace it
        if len(shards) != world:
            shards = self._shards = self._cut(world)
        return shards[rank]

    def _cut(self, world: int) -> list[Tensor]:
        labels = self._data.train_labels.numpy()
        shards = partition(labels, world, self._split, self._seed, self._data.train_images)
        require_labels(shards, labels, self._data.classes)
        return [torch.from_numpy(shard) for shard in shards]

    def _number(self, purpose: str, rank: int = 0, seed: int | None = None) -> int:
        """Return a random seed that differs between purposes and between ranks."""
        entropy = [self._seed if seed is None else seed, rank, *purpose.encode()]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])

    def _generator(self, purpose: str, rank: int = 0, seed: int | None = None) -> torch.Generator:
        return torch.Generator().manual_seed(self._number(purpose, rank, seed))


def fit(model: nn.Module, loss: Callable[[nn.Module, Batch], Tensor], batches: Iterable[Batch],
        steps: int) -> None:
    """Train ``model`` in place on ``steps`` batches.

    The optimiser is Adam, with one cycle of the learning rate.
    """
    if not steps:
        return
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    progress = Progress('training the model that the fleet begins with', steps)
    for batch in islice(batches, steps):
        progress.step()
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
        schedule.step()
    optimizer.zero_grad()


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of ``images`` that ``model`` labels correctly; keep the model's mode."""
    at_once = min(max(1, PIXELS_AT_ONCE // images[0, 0].numel()), IMAGES_AT_ONCE)
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            right = sum(int((model(part).argmax(1) == truth).sum()) for part, truth in
                        (to_device_of(model, batch) for batch in zip(
                            images.split(at_once), labels.split(at_once), strict=True)))
    finally:
        model.train(training)
    return right / len(labels)
