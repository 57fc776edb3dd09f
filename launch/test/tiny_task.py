"""Tasks for the tests: a small network on fixed random data, which needs no preparation."""

import itertools
import time

import torch


class Tiny:
    """A task with four classes of vectors with twelve elements.

    Even two models that differ very little have different metrics.
    """

    batch_size = 8
    hidden = 96

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self._data = torch.randn(256, 12, generator=generator)
        self._labels = (self._data @ torch.randn(12, 4, generator=generator)).argmax(1)

    def model(self):
        torch.manual_seed(5)
        return torch.nn.Sequential(torch.nn.Linear(12, self.hidden), torch.nn.ReLU(),
                                   torch.nn.Linear(self.hidden, 4))

    def batches(self, rank, world):
        for start in itertools.count(rank, world):
            at = torch.arange(start * self.batch_size, (start + 1) * self.batch_size) % 256
            yield self._data[at], self._labels[at]

    def loss(self, model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model):
        return 1 / (1 + float(self.loss(model, (self._data, self._labels)).detach()))


class Normed(Tiny):
    """A task whose model has the statistics of a batch normalisation, and a layer used twice."""

    def model(self):
        torch.manual_seed(5)
        last = torch.nn.Linear(12, 12)
        return torch.nn.Sequential(torch.nn.Linear(12, 12), torch.nn.BatchNorm1d(12),
                                   torch.nn.ReLU(), last, torch.nn.ReLU(), last,
                                   torch.nn.Linear(12, 4))


class Wider(Tiny):
    """The same task as `Tiny`, but with a larger model.

    A server of `Tiny` refuses a robot with this model.
    """

    hidden = 97


class Failing(Tiny):
    """Raises an error in the middle of training."""

    def loss(self, model, batch):
        raise RuntimeError('the camera is unplugged')


class Opposed(Tiny):
    """A task whose robot increases the loss that the other robots decrease.

    The gradients are large, but they still pass the server's plausibility check.
    """

    def loss(self, model, batch):
        return -40 * super().loss(model, batch)

    def evaluate(self, model):
        return 0.5


class Thorough(Tiny):
    """A task whose evaluation takes longer than a server waits for a silent robot."""

    def evaluate(self, model):
        time.sleep(6.0)
        return super().evaluate(model)
