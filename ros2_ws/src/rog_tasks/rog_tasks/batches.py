"""The batches of one shard; the shard is repeated without end, each time in a new order."""

from collections.abc import Iterator

import torch
from torch import Tensor

from rog_tasks.image_data import as_float
from rog_tasks.shift import Shift

Batch = tuple[Tensor, Tensor]


def to_device_of(model: torch.nn.Module, batch: Batch) -> Batch:
    """Return the batch on the device that holds the model."""
    images, labels = batch
    device = next(model.parameters(), images).device
    return images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


class Batches(Iterator[Batch]):
    """Yields endless batches of a shard: images and their labels.

    The images of a batch are (images, channels, height, width).

    :param shard: indices into ``images`` and ``labels``, at least one.
    :param size: number of samples in a batch.
    :param shift: changes the images, differently in each pass through the shard.
    :param generator: random numbers for the order and the shift.
    """

    def __init__(self, images: Tensor, labels: Tensor, shard: Tensor, size: int, shift: Shift,
                 generator: torch.Generator):
        self._images, self._labels, self._shard = images, labels, shard
        self._size, self._shift, self._generator = size, shift, generator
        self._waiting = shard[:0]

    def __next__(self) -> Batch:
        chosen = self._choose()
        return self._shift(as_float(self._images[chosen]), self._generator), \
            self._labels[chosen]

    def skip(self, count: int) -> None:
        """Skip ``count`` batches without making their images."""
        for _ in range(count):
            self._shift.skip(len(self._choose()), self._generator)

    def _choose(self) -> Tensor:
        while len(self._waiting) < self._size:
            order = torch.randperm(len(self._shard), generator=self._generator)
            self._waiting = torch.cat((self._waiting, self._shard[order]))
        chosen, self._waiting = self._waiting[:self._size], self._waiting[self._size:]
        return chosen
