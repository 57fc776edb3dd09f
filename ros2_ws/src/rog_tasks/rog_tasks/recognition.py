"""Recognition on a real robot, with images from its camera, a recording or folders."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rog_tasks.batches import Batch, to_device_of
from rog_tasks.classify import accuracy, fit
from rog_tasks.errors import TaskError
from rog_tasks.models import build_model, try_model
from rog_tasks.sources import open_source
from rog_tasks.sources.folder import FolderSource
from rog_tasks.sources.labels import load_weights
from rog_tasks.sources.spec import parse
from rog_tasks.task import Task

START_BATCH = 64


class Recognition(Task):
    """Training of a recogniser on the images that the robots see.

    :param seed: random seed of the model's initialisation, of the robots' shares of a
        folder, and of the order of the images.
    :param images, labels: texts that name the source of the images and labels, see
        :func:`rog_tasks.sources.open_source`. Only robots open the source.
    :param classes: names of the classes.
    :param size, channels: images are scaled to (channels, size, size). 3 channels mean
        colour, 1 channel means grey.
    :param model, model_options: see :class:`~rog_tasks.classify.Classification`.
    :param start: how the server makes the initial model: ``weights:PATH`` (from a run, one
        of its versions, or a file of a state_dict), ``folder:PATH?epochs=5`` (trained on
        class folders), or '' (random).
    :param test: ``folder:PATH`` of class folders on every machine, to measure the model. If
        it is '', the model is not measured, and the accuracy is NaN.
    :param test_limit: largest number of test images.
    :raises TaskError: an option is invalid; the message names it.
    """

    def __init__(self, images: str, classes: Sequence[str], labels: str = '', size: int = 32,
                 channels: int = 3, model: str = 'lenet5',
                 model_options: Mapping[str, Any] | None = None, start: str = '', test: str = '',
                 test_limit: int = 1000, seed: int = 0):
        if test_limit < 1:
            raise TaskError('test_limit must be at least 1')
        self._form: dict[str, Any] = {'classes': classes, 'size': size, 'channels': channels,
                                      'seed': seed}
        self._source = open_source(images, labels, **self._form)
        self.sources = (self._source,)
        self._seed = seed
        self._model, self._options = model, dict(model_options or {})
        self._start = parse(start, 'start', {'weights:': (), 'folder:': ('epochs',)}) \
            if start else None
        self._test = self._folder(parse(test, 'test', {'folder:': ()}).target).sample(
            test_limit) if test else None

    def model(self) -> nn.Module:
        """Return a new model; do not change the global random state."""
        form = self._form
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            made = build_model(self._model, self._options, form['channels'], len(form['classes']))
            try_model(made, self._model,
                      torch.zeros(1, form['channels'], form['size'], form['size']))
        return made

    def pretrain(self, model: nn.Module) -> None:
        """Change a new model, in place, to the initial state that the option ``start`` names."""
        if self._start is None:
            return
        if self._start.kind == 'weights':
            load_weights(model, self._start.target)
            return
        source = self._folder(self._start.target)
        batches = source.batches(0, 1, START_BATCH)
        fit(model, self.loss, batches, self._start.epochs * math.ceil(len(source) / START_BATCH))

    def batches(self, rank: int, world: int) -> Iterator[Batch]:
        """Return batches: images, and their labels, which are -1 for an image without a label."""
        return self._source.batches(rank, world, self.batch_size)

    def shard(self, rank: int, world: int) -> Iterator[Batch]:
        """Yield the batches of the robot's share of a folder once."""
        return self._source.shard(rank, world, self.batch_size)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross entropy of the images that have a label."""
        images, labels = to_device_of(model, batch)
        return self._source.loss(model(images), labels)

    def evaluate(self, model: nn.Module) -> float:
        """Return the share of test images that ``model`` recognises; NaN without test images."""
        return math.nan if self._test is None else accuracy(model, *self._test)

    def _folder(self, path: str) -> FolderSource:
        source = open_source(f'folder:{path}', 'folder', **self._form)
        assert isinstance(source, FolderSource)
        return source
