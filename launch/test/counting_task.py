"""A task in which each gradient is 1 for every element, so that the model counts the gradients."""

import torch

RATE = 1 / 64  # learning rate; a power of two, so that sums are exact
MOST = 2 ** 20  # maximum number of gradients that can be counted


class Counting:
    """200 rows of 1000 elements that begin at 0; after n gradients each element is -n * RATE.

    The accuracy is n / MOST, where n counts the gradients of this process.
    """

    batch_size = 1
    gradients = 0

    def model(self):
        return torch.nn.ParameterList([torch.zeros(200, 1000)])

    def batches(self, rank, world):
        while True:
            yield None

    def loss(self, model, batch):
        self.gradients += 1
        return model[0].sum()

    def evaluate(self, model):
        return self.gradients / MOST
