"""Measures how long planning takes and how good plans are; prints one JSON line.

The line has:
- microseconds for the evaluation of one plan;
- seconds for the first call (in which the kernels are compiled or loaded), for one
  plan, and for a table of 31 bandwidths;
- the latency of LOSS divided by the latency of the best baseline;
- the gap between LOSS and the proven optimum on random graphs of up to 12 operators.

The networks have the shapes of VGG19, ResNet152 and DenseNet121 from the tests. Their
costs are proportional to the number of multiplications.

`bench_planner.py [GRAPHS]`: number of random graphs (default 100; the published figure
has 1000).
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / 'test'))
from exact import plan_exact  # noqa: E402
from graphs import chain, dense, random_costs, random_graph, residual, work_costs  # noqa: E402
from lopinfer_node.planning import compiled  # noqa: E402
from lopinfer_node.planning.baselines import BASELINES  # noqa: E402
from lopinfer_node.planning.compiled import kernel  # noqa: E402
from lopinfer_node.planning.loss import Search, plan_loss  # noqa: E402
from lopinfer_node.planning.table import plan_table  # noqa: E402
from lopinfer_node.planning.timeline import Link, estimate  # noqa: E402

LATENCY = 0.005
NETWORKS = {'chain': (chain, 0.087, 0.008, 2e-5), 'residual': (residual, 0.06, 0.01, 1e-5),
            'dense': (dense, 0.05, 0.01, 5e-5)}


@kernel
def repeat(p, w, most, least, times):
    """Evaluate one plan ``times`` times; return the sum of the scores.

    ``most``, ``least``: the bounds of the plan.
    """
    total = 0.0
    for _ in range(times):
        total += compiled.evaluate(p, w, most, least)[0]
    return total


def seconds(function):
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


def network(name):
    """Measure the planning of one network and return the results."""
    build, device, server, launch = NETWORKS[name]
    graph = build()
    costs = work_costs(graph, device, server, launch)
    middle = Link(10e6, 10e6, LATENCY)
    p, w = compiled.problem(graph, costs, middle), compiled.work(len(graph))
    half, none = graph.extents // 2, np.zeros(len(graph), np.int64)
    repeat(p, w, half, none, 1)
    evaluation, _ = seconds(lambda: repeat(p, w, half, none, 2000))
    plan, _ = seconds(lambda: plan_loss(graph, costs, middle))
    begin = time.process_time()
    table, plans = seconds(lambda: plan_table(graph, costs, latency=LATENCY))
    processor = time.process_time() - begin
    ratios = []
    for bandwidth, found in zip(plans.bandwidths[1:], plans[1:], strict=True):
        link = Link(bandwidth, bandwidth, LATENCY)
        best = min(estimate(graph, b(graph, costs, link), costs, link).latency
                   for b in BASELINES.values())
        ratios.append(estimate(graph, found, costs, link).latency / best)
    return {'nodes': len(graph), 'evaluation_us': round(evaluation / 2000 * 1e6, 2),
            'plan_s': round(plan, 3), 'table_s': round(table, 3),
            'table_processor_s': round(processor, 3),
            'over_best_baseline': {'mean': round(float(np.mean(ratios)), 4),
                                   'least': round(min(ratios), 4),
                                   'greatest': round(max(ratios), 4)}}


def optimum(graphs):
    """Return numbers that compare LOSS with the exact solver on ``graphs`` random graphs.

    LOSS and the exact solver obey the same rules for plans.
    """
    gaps, proven, ours, solver = [], 0, 0.0, 0.0
    for seed in range(graphs):
        graph = random_graph(seed)
        costs, link = random_costs(graph, seed)
        took, search = seconds(lambda g=graph, c=costs, k=link: Search(g, c, k))
        ours += took
        ours += seconds(search.construct)[0]
        ours += seconds(lambda s=search: s.refine(0, 20_000))[0]
        plan = search.plan(exempt=False)
        took, exact = seconds(lambda g=graph, c=costs, k=link, p=plan: plan_exact(g, c, k, known=p))
        solver += took
        proven += exact.proven
        found, best = (estimate(graph, x, costs, link).latency for x in (plan, exact.plan))
        gaps.append(found / best - 1)
    values = np.array(gaps)
    return {'graphs': graphs, 'proven': proven, 'within_1_percent': float((values <= 0.01).mean()),
            'optimal': float((values <= 1e-3).mean()), 'mean_gap': float(values.mean()),
            'greatest_gap': float(values.max()), 'loss_s': round(ours / graphs, 4),
            'exact_s': round(solver / graphs, 4)}


def main():
    graph = random_graph(0)
    first, _ = seconds(lambda: plan_loss(graph, *random_costs(graph, 0), evaluations=1))
    result = {'bench': 'planner', 'cores': len(os.sched_getaffinity(0)), 'first_call_s':
              round(first, 2), **{name: network(name) for name in NETWORKS},
              'optimum': optimum(int(sys.argv[1]) if len(sys.argv) > 1 else 100)}
    print(json.dumps(result))


if __name__ == '__main__':
    main()
