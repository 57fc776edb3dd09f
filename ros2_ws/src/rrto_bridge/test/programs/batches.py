import torch
from results import COUNT, DEVICE, show
from torch import nn

torch.manual_seed(6)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
                      nn.Flatten(), nn.Linear(36, 5), nn.LogSoftmax(1)).eval().to(DEVICE)
for k in range(2 * COUNT):
    batch = torch.rand(2 if k < COUNT else 1 + k % 5, 1, 8, 8)
    with torch.no_grad():
        out = model(batch.to(DEVICE))
        show('batches', out.view(batch.shape[0], -1).cpu())
