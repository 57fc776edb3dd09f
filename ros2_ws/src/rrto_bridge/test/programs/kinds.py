"""A program that reads and compares the Python types of its tensors, and prints the results."""
import torch
from torch import nn

TABLE = {torch.Tensor: 'tensor', nn.Parameter: 'parameter', int: 'number'}


def kind(value):
    if type(value) is torch.Tensor:
        return 'tensor'
    if type(value) is nn.Parameter:
        return 'parameter'
    return 'other'


device = 'cuda' if torch.cuda.is_available() else 'cpu'
layer = nn.Linear(2, 2).to(device)
x = torch.ones(2).to(device)
for value in (x, layer.weight, x + 1, x[0], layer.weight.data, layer(x).detach(), 3):
    cls = type(value)
    print(kind(value), TABLE[type(value)], cls is type(x.cpu()), cls in TABLE)
