"""For real and random models, every plan that the checker accepts gives the unsplit model's output.

The environment variables LOPINFER_PLANS and LOPINFER_GRAPHS set the number of plans per real model
and the number of random graphs. For the 10,000 plans of the documentation, set LOPINFER_PLANS=600
LOPINFER_GRAPHS=200.
"""

import os

import numpy as np
import pytest
import torch
from fleet_testing import fewer
from lopinfer_node.errors import PlanError
from lopinfer_node.model.snapshot import Snapshot
from lopinfer_node.model.traced import Traced, trace
from lopinfer_node.planning.plan import DEVICE, SERVER, Plan, check
from models import SIDES, RandomNet, named
from pair import random_plan, relative_error, run_both
from torch.utils import _pytree as pytree

PLANS = int(os.environ.get('LOPINFER_PLANS', 2))
GRAPHS = int(os.environ.get('LOPINFER_GRAPHS', 12))
MODELS = list(SIDES) if PLANS > 2 else [
    'mobilenet_v3_large', 'unet', *(pytest.param(name, marks=pytest.mark.long) for name in (
        'densenet121', 'vit_b_16', 'deeplabv3_resnet50'))]


def outputs(model, x):
    with torch.no_grad():
        return pytree.tree_leaves(model(x.clone()))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize('name', MODELS)
def test_random_plans_of_a_model_give_its_output(name):
    model, side = named(name), SIDES[name]
    x = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(3))
    traced, want = trace(model, x), outputs(model, x)
    rng = np.random.default_rng(4)
    for _ in range(PLANS):
        plan = random_plan(traced.graph, rng)
        for got, w in zip(run_both(traced, plan, [x]), want, strict=True):
            assert relative_error(got, w) < 1e-4


@pytest.mark.timeout(7200)
def test_random_plans_of_random_graphs_give_their_output():
    for seed in range(GRAPHS):
        net = RandomNet(seed)
        x = torch.randn(1, 4, net.side, net.side + 1, generator=torch.Generator().manual_seed(seed))
        traced, want = trace(net, x, verify=False), outputs(net, x)
        rng = np.random.default_rng(seed)
        for _ in range(max(5, fewer(20))):
            plan = random_plan(traced.graph, rng)
            for got, w in zip(run_both(traced, plan, [x]), want, strict=True):
                assert relative_error(got, w) < 1e-4, seed


class Column(torch.nn.Module):
    """Selects one element of each row, and has a buffer ``gain`` of one element with stride 6."""

    def __init__(self):
        super().__init__()
        self.register_buffer('gain', torch.ones(9)[::6][:1])

    def forward(self, x):
        return (x * self.gain)[:, 0].relu()


def test_one_element_is_sent_and_watched_whatever_its_stride():
    model, x = Column().eval(), torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    traced = trace(model, x)
    assert traced.digest and not Snapshot(model).change()
    for end in range(1, 4):
        ends = np.where([n.op == 'select' for n in traced.graph.nodes], end, traced.graph.extents)
        plan = Plan.of_cuts(traced.graph, ends, ends)
        assert torch.equal(run_both(traced, plan, [x])[0], model(x))


def mutations(plan: Plan, rng: np.random.Generator):
    """Yield copies of a plan; in each, one interval is shorter by one index at one end."""
    nodes = [n.index for n in plan.graph.nodes if n.kind.value == 'operator']
    for node in rng.choice(nodes, min(12, len(nodes)), replace=False):
        for side in (DEVICE, SERVER):
            for end, step in ((0, 1), (1, -1)):
                own = plan.own.copy()
                if own[side, node, 0] < own[side, node, 1]:
                    own[side, node, end] += step
                    yield Plan(plan.graph, own)


def computable(traced: Traced, plan: Plan) -> bool:
    """Return whether each side receives every index that it needs.

    This function does not use the checker, so a test can compare the two.
    """
    graph = traced.graph
    has = [[set(range(*plan.interval(side, n.index))) for n in graph.nodes] for side in (0, 1)]
    for node in graph.nodes:
        if has[0][node.index] | has[1][node.index] != set(range(node.extent)):
            return False
        for side in (DEVICE, SERVER):
            for source, footprint in zip(node.inputs, node.footprints, strict=True):
                for i in has[side][node.index]:
                    if not set(range(*footprint.need(i, i + 1))) <= \
                            has[0][source] | has[1][source]:
                        return False
        if node.is_global and has[0][node.index] and has[1][node.index]:
            return False
    return True


def test_mutated_plans_are_refused_or_still_right():
    refused = accepted = 0
    for seed in range(10):
        net = RandomNet(seed)
        x = torch.randn(1, 4, net.side, net.side + 1, generator=torch.Generator().manual_seed(seed))
        traced, want = trace(net, x, verify=False), outputs(net, x)
        rng = np.random.default_rng(seed)
        for mutant in mutations(random_plan(traced.graph, rng), rng):
            try:
                check(mutant)
            except PlanError:
                refused += 1
                assert not computable(traced, mutant)
                continue
            accepted += 1
            assert computable(traced, mutant)
            for got, w in zip(run_both(traced, mutant, [x]), want, strict=True):
                assert relative_error(got, w) < 1e-4
    assert refused > 40 and accepted > 40
