"""Tasks that tests load by name."""

import torch
from rog_tasks.image_data import ImageData
from rog_tasks.task import Task


class Plain:
    """A task that has the four methods of a task but does not derive from `Task`."""

    batch_size = 8

    def __init__(self, size=2):
        self.size = size

    def model(self):
        return torch.nn.Linear(self.size, 1)

    def batches(self, rank, world):
        while True:
            yield torch.full((self.batch_size, self.size), float(rank))

    def loss(self, model, batch):
        return model(batch).square().mean()

    def evaluate(self, model):
        return 0.5


class Finite(Plain):
    """A task whose data are ten numbers; the first of 2 robots gets the numbers 0, 2, 4, 6, 8."""

    def batches(self, rank, world):
        while True:
            yield from self.shard(rank, world)

    def shard(self, rank, world):
        yield from torch.arange(rank, 10, world).split(self.batch_size)


class Derived(Plain, Task):
    """Derives from Task, and omits all optional methods."""


class NoLoss:
    def model(self):
        pass

    def batches(self, rank, world):
        pass

    def evaluate(self, model):
        pass


class Needy(Plain):
    def __init__(self, folder):
        super().__init__()


class Broken(Plain):
    def __init__(self):
        super().__init__()
        raise OSError('the disk is on fire')


class Seeded(Plain):
    def __init__(self, seed, **options):
        super().__init__()
        self.given = seed, options

    def evaluate(self, model):
        return self.given


def function():
    return Plain()


def tiny_net(classes=10):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))


def no_net():
    return 3


def no_class_3():
    """Return images of five classes; no training image has class 3."""
    labels = torch.tensor([0, 1, 2, 4])
    images = torch.zeros(4, 1, 28, 28)
    return ImageData(images, labels, images, labels, 5)
