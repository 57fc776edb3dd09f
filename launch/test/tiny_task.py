"""Tasks for the tests: a small network on fixed random data, ready at once."""

import itertools
import time

import torch


class Tiny:
    """Four classes in twelve dimensions; the metric shows the smallest difference of two models."""

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


class Wider(Tiny):
    """The same with a model that does not fit the other."""

    hidden = 97


class Failing(Tiny):
    """Fails in the middle of training."""

    def loss(self, model, batch):
        raise RuntimeError('the camera is unplugged')


class Opposed(Tiny):
    """Climbs where the others descend, in large steps that are not implausible yet."""

    def loss(self, model, batch):
        return -40 * super().loss(model, batch)

    def evaluate(self, model):
        return 0.5


class Thorough(Tiny):
    """Evaluates for longer than a server waits for a robot that says nothing."""

    def evaluate(self, model):
        time.sleep(6.0)
        return super().evaluate(model)
