"""A network of torchvision, with BatchNorm, learns to recognise ten digits.

Try it in virtual time first:

    rog sim examples/my_fleet.yaml --set training.task=own_torchvision:Resnet
"""

import torch
import torchvision
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, interpolate


class Resnet:
    """Train a ResNet-18 on colour images of 32 x 32; the last 297 of 1797 are test data."""

    batch_size = 24

    def __init__(self, frozen=0, seed=0):    # frozen: batches that only the last layer learns from
        self.frozen, self.seed = frozen, seed
        images, labels = load_digits(return_X_y=True)
        images = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
        self.images = interpolate(images, 32).expand(-1, 3, -1, -1)
        self.labels = torch.tensor(labels)
        self.count = 0

    def model(self):
        """Return the network as torchvision makes it, with a new last layer."""
        torch.manual_seed(self.seed)
        net = torchvision.models.resnet18()    # on your robots: weights='DEFAULT'
        net.requires_grad_(not self.frozen)
        net.fc = nn.Linear(net.fc.in_features, 10)
        return net

    def batches(self, rank, world):
        """Yield batches without end; robot ``rank`` uses the images rank, rank + world, ..."""
        mine = torch.arange(rank, 1500, world)
        dice = torch.Generator().manual_seed(self.seed + rank)
        while True:
            chosen = mine[torch.randint(len(mine), (self.batch_size,), generator=dice)]
            yield self.images[chosen], self.labels[chosen]

    def loss(self, model, batch):
        """Return the loss of a batch; after ``frozen`` batches, let all layers learn."""
        self.count += 1
        if self.count == self.frozen:
            model.requires_grad_(True)
        images, labels = batch
        return cross_entropy(model(images), labels)

    def evaluate(self, model):
        """Return the share of the test images that the model recognises, 0 to 1."""
        right = model(self.images[1500:]).argmax(1) == self.labels[1500:]
        return right.float().mean().item()
