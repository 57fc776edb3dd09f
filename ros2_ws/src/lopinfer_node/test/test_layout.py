"""A model whose channels are last in memory stays so: in trace and files, and on both sides."""

import json

import numpy as np
import pytest
import torch
from lopinfer_node.errors import ModelError
from lopinfer_node.model.files import GRAPH
from lopinfer_node.model.layout import flat, format_of, shaped
from lopinfer_node.model.traced import trace
from lopinfer_node.planning.plan import DEVICE, SERVER, Plan
from lopinfer_node.runtime.program import Program
from model_files import load, save
from pair import random_plan, run_both
from torch import nn

LAST = torch.channels_last


class Mixed(nn.Module):
    """Convolutions of all kinds, and a head that depends on the order of the elements."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(),
                                  nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Conv2d(8, 6, 1))
        self.head = nn.Linear(6 * 8 * 8, 4)

    def forward(self, x):
        x = self.body(x)
        return self.head(x.contiguous().view(len(x), -1)), x + 1


@pytest.fixture(scope='module')
def model():
    return Mixed().eval().to(memory_format=LAST)


@pytest.fixture(scope='module')
def x():
    return torch.rand(1, 3, 16, 16).to(memory_format=LAST)


@pytest.mark.parametrize('shape', [(2, 3, 4, 5), (1, 3, 4, 5), (1, 1, 4, 1), (2, 1, 1, 3)])
@pytest.mark.parametrize('form', [torch.contiguous_format, LAST])
def test_elements_travel_in_the_order_of_a_format(shape, form):
    tensor = torch.rand(shape).to(memory_format=form)
    elements = flat(tensor, form)
    assert elements.data_ptr() == tensor.data_ptr()     # no copy
    again = shaped(elements, shape, form)
    assert torch.equal(again, tensor) and format_of(again) is format_of(tensor)
    assert torch.equal(shaped(flat(tensor.contiguous(), form), shape, form), tensor)


def test_a_lazily_conjugated_or_negated_tensor_travels_as_its_values():
    tensor = torch.randn(3, 4, dtype=torch.complex64).conj()
    for lazy in (tensor, tensor.imag):
        elements = flat(lazy)
        elements.view(torch.uint8)
        assert torch.equal(shaped(elements, lazy.shape), lazy)


def test_only_exactly_these_strides_are_channels_last():
    x = torch.rand(1, 1, 4, 5)
    assert format_of(x) is format_of(x[:, :, ::2]) is torch.contiguous_format
    assert format_of(torch.rand(2, 1, 4, 4, 4).to(memory_format=torch.channels_last_3d)) is \
        torch.channels_last_3d
    assert format_of(torch.rand(4, 5).T) is torch.contiguous_format


def test_a_file_keeps_the_formats_and_the_weights_of_either_format_are_the_same(
        model, x, tmp_path):
    traced = trace(model, x)
    save(traced, tmp_path)
    there = load(tmp_path)
    assert there.digest == traced.digest
    for name, weight in model.named_parameters():
        assert there.parameters[name].stride() == weight.stride(), name
    assert [r.format for r in there.tape.records] == [r.format for r in traced.tape.records]
    assert there.inputs[0].format is LAST
    other = trace(Mixed().eval(), x.contiguous())
    assert other.digest != traced.digest and other.contents == traced.contents


def test_a_model_without_formats_has_the_file_that_it_always_had(x, tmp_path):
    traced = trace(Mixed().eval(), x.contiguous())
    save(traced, tmp_path)
    text = (tmp_path / GRAPH).read_text()
    assert json.loads(text)['version'] == 2 and 'format' not in text.replace('memory_format', '')


@pytest.mark.parametrize('damage', [
    lambda d: d['formats'].update({'head.weight': 'channels_last'}),
    lambda d: d['formats'].update({'body.0.weight': 'channels_last_3d'}),
    lambda d: d['formats'].update(missing='channels_last'),
    lambda d: d['inputs'][0].update(format='preserve_format'),
    lambda d: d['inputs'][0].update(format=7),
    lambda d: d.update(formats=['body.0.weight']),
    lambda d: d.update(version=4)])
def test_formats_that_cannot_be_are_refused(model, x, tmp_path, damage):
    save(trace(model, x), tmp_path)
    document = json.loads((tmp_path / GRAPH).read_text())
    damage(document)
    (tmp_path / GRAPH).write_text(json.dumps(document))
    with pytest.raises(ModelError):
        load(tmp_path)


def test_both_sides_give_the_models_results_with_any_plan(model, x):
    traced, rng = trace(model, x), np.random.default_rng(3)
    with torch.no_grad():
        wanted = model(x)
    for plan in [Plan.server_only(traced.graph),
                 *(random_plan(traced.graph, rng) for _ in range(20))]:
        for given in x, x.contiguous():
            for got, want in zip(run_both(traced, plan, [given]), wanted, strict=True):
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_no_tensor_of_the_server_is_laid_out_anew(model, x):
    traced = trace(model, x)
    plan = Plan.server_only(traced.graph)
    robot, server = Program(traced, plan, DEVICE).start([x]), Program(traced, plan, SERVER).start()
    for transfer in (t.index for t in plan.transfers if t.source == DEVICE):
        data = robot.piece(transfer)
        assert np.frombuffer(data, np.uint8).ctypes.data == x.data_ptr()
        server.deliver(transfer, bytearray(data))
    formats = set()
    for at, step in enumerate(server.program.steps):
        server.compute(range(at, at + 1))
        formats.update((traced.graph.nodes[node].op, format_of(tensor))
                       for node, ((_, _, tensor), *_) in server._stretches.items()
                       if node == step.node)
    assert ('conv2d', LAST) in formats
    # `clone` is what PyTorch 2.4 makes of `contiguous`
    assert {op for op, form in formats if form is not LAST} <= {'contiguous', 'clone', 'reshape',
                                                                'linear'}
