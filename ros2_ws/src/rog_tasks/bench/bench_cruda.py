"""Measures the parts of the recognition task CRUDA on one thread.

For comparison, it also measures a matrix product.
"""

import json
import time

import torch
from rog_tasks.cruda import Cruda

torch.set_num_threads(1)


def best(function, times=20):
    durations = []
    for _ in range(times):
        begin = time.perf_counter()
        function()
        durations.append(time.perf_counter() - begin)
    return 1e3 * min(durations)


task = Cruda()
model = task.model()
robot = task.batches(0, 3)
batch = next(robot)
matrix = torch.rand(512, 512, generator=torch.Generator().manual_seed(0))
print(json.dumps({
    'bench': 'cruda', 'batch_ms': round(best(lambda: next(robot)), 3),
    'gradient_ms': round(best(lambda: task.loss(model, batch).backward()), 2),
    'evaluate_ms': round(best(lambda: task.evaluate(model)), 1),
    'matmul_512_ms': round(best(lambda: matrix @ matrix), 2)}))
