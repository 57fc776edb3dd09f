"""Share the inferences of a model with a server (LOPInfer); the results stay equal.

Start it like this:

    lopinfer serve                                      # on the machine with the GPU, or this one
    eval "$(rog fleet env indoor)"                      # this machine alone: the server's network
    python examples/offload_model.py
"""

import torch
from lopinfer_node import offload
from torch import nn

torch.manual_seed(1)
model = nn.Sequential(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(4),
                      nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                      nn.Flatten(), nn.Linear(64, 10)).eval()
image = torch.randn(1, 3, 224, 224)

with offload(model, example=image) as shared, torch.no_grad():
    print('alone:', 'equal' if torch.allclose(shared(image), model(image), atol=1e-5) else 'WRONG')
    if not shared.wait(60):                             # s until the server has the model
        raise SystemExit(f'not shared: {shared.reason}')
    for _ in range(20):
        result = shared(image)
    report = shared.report
    print('shared:', 'equal' if torch.allclose(result, model(image), atol=1e-5) else 'WRONG')
    print(f'{report.requests} requests, {report.offloaded} of them shared with the server; '
          f'the last one took {1e3 * report.latency:.1f} ms')
