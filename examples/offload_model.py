"""Share the inferences of a model with a server (LOPInfer); the results do not change.

Start server and program on one machine:

    # Terminal 1: the server
    lopinfer serve
    # Terminal 2: the program, with the same network settings
    eval "$(rog fleet env indoor)"
    python examples/offload_model.py
"""

import torch
from lopinfer_node.api import ClientOptions, TablePlanner, offload
from torch import nn

torch.manual_seed(1)
model = nn.Sequential(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(4),
                      nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                      nn.Flatten(), nn.Linear(64, 10)).eval()
image = torch.randn(1, 3, 224, 224)
# Emulate a robot 8 times slower than this machine. On a real robot, leave out `slowdown`.
robot = ClientOptions(TablePlanner(), slowdown=8)

with offload(model, example=image, options=robot) as shared, torch.no_grad():
    print('alone:', 'equal' if torch.allclose(shared(image), model(image), atol=1e-5) else 'WRONG')
    if not shared.wait(60):                             # wait at most 60 s for the server
        raise SystemExit(f'not shared: {shared.reason}')
    for _ in range(20):
        result = shared(image)
    report = shared.report
    print('connected:', 'equal' if torch.allclose(result, model(image), atol=1e-5) else 'WRONG')
    print(f'{report.offloaded} of {report.requests} inferences were shared with the server; '
          f'the last one took {1e3 * report.latency:.1f} ms')
    # `reason` says why inferences are not shared: for example, this machine alone is faster.
    if shared.reason:
        print(f'not shared: {shared.reason}')
