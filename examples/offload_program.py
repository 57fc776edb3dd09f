"""A program that contains nothing about a server; RRTO lets it use the GPU of a server.

Start it like this:

    rrto serve      # on the machine with the GPU; if no server runs, `rrto run` starts one here
    rrto run -- python examples/offload_program.py
"""

import time

import torch
from torch import nn

torch.manual_seed(1)
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
                      nn.Linear(256, 10)).eval()
images = torch.randn(40, 1, 3, 64, 64)
with torch.no_grad():
    expected = [model(image).argmax().item() for image in images]
    model.cuda()
    found = []
    for number, image in enumerate(images):
        began = time.perf_counter()
        found.append(model(image.cuda()).argmax().item())
        if number % 10 == 0:
            print(f'inference {number}: {1e3 * (time.perf_counter() - began):.1f} ms')
print(f'{torch.cuda.get_device_name()}: {sum(map(int.__eq__, found, expected))} of {len(images)} '
      'answers equal those of this CPU')
