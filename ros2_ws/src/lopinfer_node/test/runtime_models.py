"""Small models for the tests with real processes."""

import torch


class Small(torch.nn.Module):
    """Convolutions with a residual addition, then a mean over the image and a linear layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = x + torch.relu(self.second(x))
        return {'logits': self.head(x.mean((2, 3))), 'features': x[:, :, ::2]}


class Untraceable(torch.nn.Module):
    """A model whose control flow depends on the data."""

    def forward(self, x):
        return x * 2 if x.sum() > 0 else x - 1


def small():
    return Small()
