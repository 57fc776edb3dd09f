"""Traces a module on the device, then runs it on inputs other than the trace's input."""

import torch
from results import COUNT, DEVICE, show
from torch import nn

torch.manual_seed(11)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                      nn.Linear(144, 3)).eval().to(DEVICE)
with torch.no_grad():
    traced = torch.jit.trace(model, torch.rand(2, 3, 8, 8).to(DEVICE))
    for _ in range(COUNT):
        show('traced', traced(torch.rand(2, 3, 8, 8).to(DEVICE)).cpu())
