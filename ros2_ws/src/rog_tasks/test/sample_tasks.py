"""Tasks that tests load by name."""

import torch


class Plain:
    """Has the four methods and derives from nothing."""

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
        self.seed = seed
        self.options = options


def function():
    return Plain()


def tiny_net(classes=10):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))


def no_net():
    return 3
