import torch
from results import COUNT, DEVICE, show
from torch import nn

torch.manual_seed(5)
near = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).to(DEVICE)
far = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                    nn.Linear(8, 4), nn.Tanh()).to(DEVICE)
with torch.no_grad():
    for k in range(3 * COUNT):
        image = torch.rand(1, 3, 8, 8).cuda() if DEVICE == 'cuda' else torch.rand(1, 3, 8, 8)
        show('two_models', (near if k % 3 else far)(image).cpu())
