"""Global operators can be computed in parts.

The results equal those of the undivided operators, and only statistics, such as sums,
cross the link.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lopinfer_node.model.statistics import exchange_statistics
from lopinfer_node.model.traced import Traced, trace
from lopinfer_node.planning.plan import Plan, check
from operators import fn
from pair import random_plan, relative_error, run_both

IMAGE, TOKENS = (1, 6, 17, 19), (1, 4, 23, 8)
MODELS = {
    'mean': (lambda x: x.mean((2, 3)), [IMAGE]),
    'pooling': (lambda x: F.adaptive_avg_pool2d(x, 1) * 2, [IMAGE]),
    'softmax': (lambda x: x.softmax(2) + 1, [IMAGE]),
    'attention': (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), [TOKENS] * 3),
    'squeeze and excite': (lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(), [IMAGE]),
}


def along_rows(function, inputs):
    traced = trace(fn(function).eval(), *inputs)
    return Traced(traced.name, traced.tape, [2] * len(inputs))


@pytest.mark.parametrize('parts', [2, 5])
@pytest.mark.parametrize('name', MODELS)
def test_results_are_those_of_the_model_under_random_plans(name, parts):
    function, shapes = MODELS[name]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(s, generator=generator) for s in shapes]
    traced = along_rows(function, inputs)
    divided = exchange_statistics(traced, parts)
    assert len(divided.graph) > len(traced.graph)
    rng = np.random.default_rng(1)
    for _ in range(25):
        plan = random_plan(divided.graph, rng)
        check(plan)
        got, = run_both(divided, plan, inputs)
        assert relative_error(got, function(*inputs)) < 1e-5


def test_half_and_half_only_the_sums_of_the_servers_half_come_back():
    x = torch.randn(1, 6, 16, 19)
    divided = exchange_statistics(along_rows(lambda x: x.relu().mean((2, 3)), [x]), 2)
    graph = divided.graph
    to = np.zeros(len(graph), np.int64)
    start = graph.extents.copy()
    for n in graph.nodes:
        second_half = n.op in ('slice', 'sum') and _half(graph, n) == 1
        if n.op == 'relu':
            to[n.index] = start[n.index] = 8
        elif second_half:
            to[n.index] = start[n.index] = 0
        else:
            to[n.index] = start[n.index] = n.extent
    plan = Plan.of_cuts(graph, to, start)
    got, = run_both(divided, plan, [x])
    assert relative_error(got, x.relu().mean((2, 3))) < 1e-5
    assert sum(t.bytes for t in plan.transfers if t.source == 1) == 6 * 4


def _half(graph, node):
    """Return on which half of the axis the operator works: 0 (first) or 1 (second)."""
    while node.op != 'slice':
        node = graph.nodes[node.inputs[0]]
    return int(node.footprints[0].need(0, 1)[0] > 0)


def test_one_part_is_refused():
    with pytest.raises(ValueError, match='two parts'):
        exchange_statistics(trace(fn(torch.relu).eval(), torch.ones(1, 4)), 1)
