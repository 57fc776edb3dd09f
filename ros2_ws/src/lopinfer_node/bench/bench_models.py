"""Measures the time to trace each model and to make plans for 31 bandwidths; prints JSON.

The output is one JSON line. The robot is this machine with one thread; the server is ten times as
fast. `best_baseline` is the latency of LOSS divided by the latency of the best baseline: the
smallest and the largest value over all bandwidths above 0.

`bench_models.py [MODEL ...]`: names in test/models.py; by default all models.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / 'test'))
from lopinfer_node.model.traced import trace  # noqa: E402
from lopinfer_node.planning.baselines import BASELINES  # noqa: E402
from lopinfer_node.planning.table import plan_table  # noqa: E402
from lopinfer_node.planning.timeline import Costs, Link, estimate  # noqa: E402
from lopinfer_node.runtime.measure import measure  # noqa: E402
from models import SIDES, named  # noqa: E402

LATENCY, SPEED = 0.002, 10


def row(name):
    """Measure one model and return the results."""
    model = named(name)
    begin = time.perf_counter()
    # this time includes the verification of the trace; `offload` verifies its trace in the
    # same way
    traced = trace(model, torch.zeros(1, 3, 224, 224))
    tracing = time.perf_counter() - begin
    graph = traced.graph
    profile = measure(traced, repeats=1, warm_up=1)
    costs = Costs(np.stack([profile.fixed, profile.fixed / SPEED]),
                  np.stack([profile.per_share, profile.per_share / SPEED]))
    begin, processor = time.perf_counter(), time.process_time()
    table = plan_table(graph, costs, latency=LATENCY)
    planning, processor = time.perf_counter() - begin, time.process_time() - processor
    ratios = []
    for rate, plan in zip(table.bandwidths[1:], table.plans[1:], strict=True):
        link = Link(rate, rate, LATENCY)
        ratios.append(estimate(graph, plan, costs, link).latency / min(
            estimate(graph, b(graph, costs, link), costs, link).latency
            for b in BASELINES.values()))
    local, global_ = graph.counts()
    return {'nodes': len(graph), 'local': local, 'global': global_, 'trace_s': round(tracing, 2),
            'robot_s': round(float(profile.whole.sum()), 3), 'table_s': round(planning, 2),
            'table_processor_s': round(processor, 2),
            'best_baseline': [round(min(ratios), 3), round(max(ratios), 3)]}


def main():
    torch.set_num_threads(1)
    names = sys.argv[1:] or list(SIDES)
    row('unet')   # not counted, because the first call compiles or loads the kernels
    print(json.dumps({'bench': 'models', 'models': {name: row(name) for name in names}}))


if __name__ == '__main__':
    main()
