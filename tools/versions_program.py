"""What `versions.py` runs in the robot's version of PyTorch.

run FILE PROGRAM ...: run programs of rrto_bridge/test, and save what they show.
compare FILE FILE: fail if two such files differ by more than rounding.
lopinfer PYTHON: share ResNet-18 with a server that this Python runs.
"""

import runpy
import sys
import types
from pathlib import Path

import torch

PROGRAMS = Path(__file__).parent.parent / 'ros2_ws' / 'src' / 'rrto_bridge' / 'test' / 'programs'


def run(file, *programs):
    shown = []
    # takes the place of programs/results.py, which prints digests: two versions round differently
    results = types.ModuleType('results')
    results.COUNT, results.DEVICE = 5, 'cuda' if torch.cuda.is_available() else 'cpu'
    results.show = lambda name, *tensors: shown.append((name, [t.clone() for t in tensors]))
    sys.modules['results'] = results
    sys.path.insert(0, str(PROGRAMS))
    for name in programs:
        runpy.run_path(str(PROGRAMS / f'{name}.py'), run_name='__main__')
    torch.save(shown, file)


def compare(file, other):
    for (name, one), (_, two) in zip(torch.load(file), torch.load(other), strict=True):
        torch.testing.assert_close(one, two, msg=lambda said, name=name: f'{name}: {said}')


def lopinfer(python):
    from lopinfer_node.cli.choice import measured
    from lopinfer_node.cli.rig import Rig, private_domain
    from lopinfer_node.model import zoo
    from lopinfer_node.model.traced import trace
    torch.set_num_threads(1)
    model, example = zoo.load('resnet18'), torch.rand(1, 3, 64, 64)
    profile = measured(trace(model, example), slowdown=10.0)
    sys.executable = python   # `Rig` starts its server with it
    with private_domain(), Rig(model, example, 5e6, 0.002, slowdown=10.0) as rig:
        for method in ('server-only', 'lopinfer'):
            found = rig.measure(method, profile, 8, 0.002)
            assert found.error < 1e-5 and (found.offloaded or method == 'lopinfer'), found


{'run': run, 'compare': compare, 'lopinfer': lopinfer}[sys.argv[1]](*sys.argv[2:])
