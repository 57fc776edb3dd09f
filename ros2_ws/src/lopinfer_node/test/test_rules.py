"""For every operator, a computed part equals the same slice of the whole result.

The footprints are neither too small nor too large.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from fleet_testing import fewer
from lopinfer_node.errors import ModelError
from lopinfer_node.model.calls import RULES, Weight
from lopinfer_node.model.graph import Kind
from lopinfer_node.model.trace import _traced
from lopinfer_node.model.traced import Traced, divided, trace
from lopinfer_node.planning.plan import check
from lopinfer_node.runtime.program import arithmetic
from model_files import load, save
from operators import Apply, cases
from pair import random_plan, relative_error, run_both
from torch.utils import _pytree as pytree

CASES = cases()
if torch.__version__.startswith('2.4.'):  # cannot parse the default of fft2's `dim`
    CASES = {name: case for name, case in CASES.items() if name not in ('spectra', 'spectrum')}


@cache
def traced_case(name):
    """Return module, inputs and trace of a case.

    Tests share these objects, so no test may change them.
    """
    torch.manual_seed(1)
    module, shapes = CASES[name]
    module.eval()
    inputs = [torch.randn(s) for s in shapes]
    return module, inputs, trace(module, *inputs)


@pytest.mark.parametrize('name', CASES)
def test_random_plans_along_every_axis_give_the_result_of_the_module(name):
    module, inputs, traced = traced_case(name)
    with torch.no_grad():
        want = pytree.tree_leaves(module(*(x.clone() for x in inputs)))
    rng = np.random.default_rng(2)
    axes = [[a for a, n in enumerate(x.shape) if n > 1] for x in inputs]
    for choice in range(max(len(a) for a in axes)):
        chosen = [a[min(choice, len(a) - 1)] for a in axes]
        again = Traced(traced.name, traced.tape, chosen)
        for _ in range(max(3, fewer(12))):
            plan = random_plan(again.graph, rng)
            check(plan)
            for got, w in zip(run_both(again, plan, inputs), want, strict=True):
                assert got.shape == w.shape
                assert relative_error(got.float(), w.float()) < 1e-5, chosen


# In these cases, the footprint is larger than the set of needed input indices. The needed indices
# form no interval, or the operator reverses the order of the indices.
HULLS = {'slice step', 'focus', 'in place on a view', 'conv dilated far'}
# For these operators, the derivative can be zero although the result depends on the input element.
FLAT = {'max_pool2d', 'max_pool3d', 'adaptive_max_pool2d', 'relu', 'gt', 'where', 'to', 'clamp',
        'max', 'pad', 'prelu', 'mul'}


@pytest.mark.parametrize('name', [n for n, (_, shapes) in CASES.items()
                                  if n not in HULLS and len(shapes) == 1])
def test_a_footprint_is_just_what_the_derivative_says(name):
    _, (given,), traced = traced_case(name)
    for node in traced.graph.nodes:
        if node.kind is not Kind.OPERATOR or node.inputs != (0,) or node.axis is None \
                or node.op in FLAT:
            continue
        x = given.clone().requires_grad_()
        y = traced.calls[node.index].bind()(x)
        others = tuple(i for i in range(x.dim()) if i != traced.axes[0])
        for lo in range(0, node.extent, 3):
            hi = min(node.extent, lo + 2)
            total = y.narrow(node.axis, lo, hi - lo).square().sum()
            try:
                grad, = torch.autograd.grad(total, x, retain_graph=True)
            except RuntimeError as error:
                assert 'is not implemented' in str(error)
                pytest.skip(str(error))     # that of aminmax in PyTorch 2.8
            used = grad.abs().amax(others).nonzero().flatten()
            hull = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
            assert hull == node.footprints[0].need(lo, hi), (node.name, lo, hi)


@pytest.mark.parametrize('name', CASES)
def test_a_server_reads_the_model_that_was_written(name, tmp_path):
    traced = traced_case(name)[2]
    save(traced, tmp_path)
    assert load(tmp_path).digest == traced.digest


def test_an_untraceable_operator_is_refused_with_its_place():
    class Branch(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(ModelError, match=r'test_rules.py:\d+, in forward'):
        trace(Branch().eval(), torch.ones(2))


@pytest.mark.parametrize(('function', 'message'), [
    (lambda self, x: x + torch.rand(2), 'random'),
    (lambda self, x: self.count.add_(1) + x, 'changes'),
    (lambda self, x: (x, 'text'), "only tensors|'str' object has no"),  # the latter: PyTorch 2.4
    (lambda self, x: torch.empty_like(x).fill_(0) * x, 'a server computes only'),
    (lambda self, x: x.as_strided((2, 2), (1, 0)), 'a server computes only'),
    (lambda self, x: self.count.view(1, 2).add_(1) + x, 'changes'),
    (lambda self, x: torch.nn.functional.scaled_dot_product_attention(
        x[None], x[None], x[None], dropout_p=1e-7), 'random'),
    (lambda self, x: (x * 2, x[:0] * 2), 'no elements'),
    (lambda self, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), 'control flow'),
])
def test_models_that_would_differ_between_robot_and_server_are_refused(function, message):
    module = Apply(function)
    module.register_buffer('count', torch.zeros(2))
    with pytest.raises(ModelError, match=message):
        trace(module.eval(), torch.ones(2))


def test_an_operator_that_gives_another_result_in_parts_is_refused(monkeypatch):
    rule = RULES['relu']
    monkeypatch.setitem(RULES, 'relu', lambda call: replace(
        rule(call), part=lambda lo, hi, needs: lambda x: x))
    with pytest.raises(ModelError, match='another result when divided along axis'):
        trace(torch.nn.ReLU().eval(), torch.linspace(-1, 1, 8).view(4, 2))


@pytest.mark.parametrize(('divisor', 'want'), [(-1, [-7, -9]), (torch.tensor([-1, 3]), [-7, 3])],
                         ids=['number', 'tensor'])
def test_a_quotient_that_there_is_not_is_an_error_and_not_the_end_of_the_server(divisor, want):
    traced = trace(Apply(lambda self, x: torch.div(x, divisor, rounding_mode='trunc')).eval(),
                   torch.tensor([8, 9]))
    run = next(call.bind() for call in traced.calls.values() if call.op == 'div')
    assert run(torch.tensor([7, 9])).tolist() == want
    with pytest.raises(ModelError, match='overflows its type'):
        run(torch.tensor([torch.iinfo(torch.int64).min, 9]))


def test_a_model_that_changes_the_mode_of_gradients_is_divided():
    class Inside(torch.nn.Conv2d):
        def forward(self, x):
            with torch.enable_grad(), torch.autocast('cpu', enabled=False):
                return super().forward(x)
    traced = trace(Inside(3, 4, 3).eval(), torch.randn(1, 3, 9, 9))
    assert [n.extent for n in traced.graph.nodes if n.kind is Kind.OPERATOR] == [7]


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(ModelError, match='training'):
        trace(torch.nn.Linear(2, 2), torch.ones(1, 2))


def test_inputs_of_another_shape_are_refused():
    _, _, traced = traced_case('conv 3x3')
    with pytest.raises(ModelError, match='was traced as'):
        traced.check_inputs([torch.zeros(1, 6, 5, 5)])


def test_torch_fx_gives_the_same_results_where_export_is_not_used():
    module, (x,), _ = traced_case('squeeze and excite')
    net = torch.nn.Sequential(torch.nn.Conv2d(6, 6, 3, padding=1), torch.nn.BatchNorm2d(6),
                              torch.nn.ReLU(True), torch.nn.Flatten(), torch.nn.Linear(1938, 4))
    net.eval()
    with torch.no_grad():
        tape = _traced(net, (x,), {})
    traced = divided('net', tape)
    assert any(n.extent > 1 and n.op == 'convolution' for n in traced.graph.nodes)
    rng = np.random.default_rng(3)
    for _ in range(20):
        got, = run_both(traced, random_plan(traced.graph, rng), [x])
        assert relative_error(got, net(x)) < 1e-5


@pytest.mark.parametrize('name', CASES)
def test_a_part_is_computed_where_its_tensors_are(name):
    """Compute each part on the device `meta`, where operators refuse tensors of other devices."""
    tape = traced_case(name)[2].tape
    tape = replace(tape, records=[replace(made, arguments=pytree.tree_map_only(
        Weight, lambda w: Weight(w.name, w.tensor.to('meta')), made.arguments,
        is_leaf=lambda a: isinstance(a, Weight))) for made in tape.records])
    shapes = [r.shape for r in tape.records if r.overload is None]
    for axis in range(max(map(len, shapes))):
        traced = Traced(name, tape, [axis if axis < len(s) and s[axis] > 1 else None
                                          for s in shapes])
        for at in traced.calls:
            compute_a_part(traced, at)


def compute_a_part(traced, at):
    nodes, records = traced.graph.nodes, traced.tape.records
    lo, hi = nodes[at].extent // 3, (2 * nodes[at].extent + 2) // 3
    needs = [f.need(lo, hi) for f in nodes[at].footprints]
    tensors = []
    for source, (begin, end) in zip(nodes[at].inputs, needs, strict=True):
        shape = [end - begin if axis == nodes[source].axis else n
                 for axis, n in enumerate(records[source].shape)]
        tensors.append(torch.empty(shape, dtype=records[source].dtype, device='meta'))
    assert arithmetic(traced, at, lo, hi, needs)(*tensors).device.type == 'meta'


ATEN = torch.ops.aten
# Each row: the same call twice, first without the arguments that have defaults, then with them.
LEFT_OUT = {
    'pad': (lambda m, x: ATEN.pad(x, [1, 1, 2, 0]),
            lambda m, x: ATEN.pad(x, [1, 1, 2, 0], 'constant')),
    'pad without a value': (lambda m, x: ATEN.constant_pad_nd(x, [1, 1, 2, 0]),
                            lambda m, x: ATEN.constant_pad_nd(x, [1, 1, 2, 0], 0)),
    'glu': (lambda m, x: ATEN.glu(x), lambda m, x: ATEN.glu(x, -1)),
    'max_pool2d': (lambda m, x: ATEN.max_pool2d(x, [2, 2]),
                   lambda m, x: ATEN.max_pool2d(x, [2, 2], [2, 2], [0, 0], [1, 1], False)),
    'avg_pool2d': (lambda m, x: ATEN.avg_pool2d(x, [3, 3], [2, 2], [1, 1]),
                   lambda m, x: ATEN.avg_pool2d(x, [3, 3], [2, 2], [1, 1], False, True, None)),
    'cat': (lambda m, x: ATEN.cat([x, x]), lambda m, x: ATEN.cat([x, x], 0)),
    'stack': (lambda m, x: ATEN.stack([x, x]), lambda m, x: ATEN.stack([x, x], 0)),
    'slice': (lambda m, x: ATEN.slice(x, 2), lambda m, x: ATEN.slice(x, 2, 0, 1 << 40, 1)),
    'amax': (lambda m, x: ATEN.amax(x), lambda m, x: ATEN.amax(x, [], False)),
    'flatten': (lambda m, x: ATEN.flatten(x), lambda m, x: ATEN.flatten(x, 0, -1)),
    'unflatten': (lambda m, x: ATEN.squeeze(x), lambda m, x: ATEN.squeeze.dim(x, 0)),
    'sum': (lambda m, x: ATEN.sum(x, [1]), lambda m, x: ATEN.sum(x, [1], False)),
    'softmax': (lambda m, x: ATEN.softmax(x, 1), lambda m, x: ATEN.softmax(x, 1, None))}


@pytest.mark.parametrize('name', LEFT_OUT)
def test_arguments_that_are_left_out_count_as_their_defaults(name):
    x = torch.rand(1, 4, 8, 6)
    short, full = (trace(Apply(function).eval(), x) for function in LEFT_OUT[name])
    assert short.graph.counts() == full.graph.counts()
    assert [n.axis for n in short.graph.nodes] == [n.axis for n in full.graph.nodes]


def test_operators_after_a_default_padding_are_divided():
    module = Apply(lambda m, x: m.conv(torch.nn.functional.pad(x, (1, 1, 1, 1))),
                   conv=torch.nn.Conv2d(3, 4, 3))
    traced = trace(module.eval(), torch.rand(1, 3, 16, 16))
    assert [n.axis for n in traced.graph.nodes] == [2, 2, 2, None]
