"""A task of your own: the fleet learns to recognise ten digits with a small network.

Try it in virtual time first:

    rog sim examples/my_fleet.yaml --set training.task=own_task:Digits
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy


class Digits:
    """Recognise digits of 8 x 8 pixels; the last 297 of the 1797 images are test data."""

    batch_size = 24                              # the fleet file's training.batch_size replaces it

    def __init__(self, width=64, seed=0):        # width: from task_options; seed: the fleet's seed
        self.width, self.seed = width, seed
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images / 16, dtype=torch.float32)
        self.labels = torch.tensor(labels)

    def model(self):
        """Return a new model, with equal weights on all machines."""
        torch.manual_seed(self.seed)
        return nn.Sequential(nn.Linear(64, self.width), nn.ReLU(), nn.Linear(self.width, 10))

    def batches(self, rank, world):
        """Yield batches without end; robot ``rank`` uses the images rank, rank + world, ..."""
        mine = torch.arange(rank, 1500, world)
        dice = torch.Generator().manual_seed(self.seed + rank)
        while True:
            chosen = mine[torch.randint(len(mine), (self.batch_size,), generator=dice)]
            yield self.images[chosen], self.labels[chosen]

    def loss(self, model, batch):
        """Return the loss of a batch: a scalar tensor that can be differentiated."""
        images, labels = batch
        return cross_entropy(model(images), labels)

    def evaluate(self, model):
        """Return the share of the test images that the model recognises, 0 to 1."""
        right = model(self.images[1500:]).argmax(1) == self.labels[1500:]
        return right.float().mean().item()
