"""A model with state that persists between inferences, and a buffer that changes in place."""

import torch
from results import COUNT, DEVICE, show
from torch import nn

torch.manual_seed(8)
cell = nn.GRUCell(4, 6).to(DEVICE)
norm = nn.BatchNorm1d(6).train().to(DEVICE)
state = torch.zeros(3, 6, device=DEVICE)
seen = torch.zeros((), dtype=torch.int64, device=DEVICE)
with torch.no_grad():
    for k in range(2 * COUNT):
        state = cell(torch.randn(3, 4).to(DEVICE), state)
        seen += 1
        show('recurrent', norm(state).cpu(), seen.cpu())
        if k == COUNT:
            norm.running_mean.zero_()
show('recurrent', norm.running_mean.cpu(), norm.running_var.cpu(), state.cpu())
