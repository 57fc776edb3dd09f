import torch
from results import COUNT, DEVICE, show
from torch import nn

torch.manual_seed(7)
body, small, large = (nn.Linear(6, 6).to(DEVICE) for _ in range(3))
with torch.no_grad():
    for _ in range(4 * COUNT):
        x = torch.relu(body(torch.randn(2, 6).to(DEVICE)))
        if x.max().item() > 1.0:
            x = large(x) * 2
        elif (x > 0.2).any():
            x = small(x)
        show('branches', x.cpu())
