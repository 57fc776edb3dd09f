"""A benchmark loop, a data loader with workers, and a forked child that ends by itself."""

import os
import sys

import torch
from results import COUNT, DEVICE, show
from torch import nn

torch.manual_seed(10)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).to(DEVICE)


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * COUNT

    def __getitem__(self, index):
        return torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(index))


def wait():
    if DEVICE == 'cuda':
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() > 0


with torch.no_grad():
    for picture in torch.utils.data.DataLoader(Pictures(), 2, num_workers=2):
        x = picture.to(DEVICE)
        wait()
        y = model(x)
        wait()
        show('loops', y.cpu())
sys.stdout.flush()
child = os.fork()
if not child:
    torch.manual_seed(1)
    sys.exit(7)
show('loops', torch.tensor(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
