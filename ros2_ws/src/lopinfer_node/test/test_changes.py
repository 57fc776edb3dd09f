"""A change of what a model's modules hold is detected; what the model itself stores is none."""

import math

import numpy as np
import pytest
import torch
from lopinfer_node.model.snapshot import Snapshot
from torch import nn


class Config:
    scale = 1.0


class Reads(nn.Module):
    """Has a weight, buffers, a plain tensor and attributes of several types."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.register_buffer('scale', torch.ones(4, 1, 1))
        self.plain, self.act, self.last = torch.zeros(2), nn.functional.relu, None
        self.one, self.array = torch.ones(1), np.ones(2)
        self.config, self.name, self.least, self.sizes = Config(), 'a', 0.0, (1, (2.0, None))

    def forward(self, x):
        self.last, self.count = self.norm(self.conv(x)), 1
        return self.act(self.last) * self.scale + self.plain.sum()


X = torch.rand(1, 3, 8, 8)


@pytest.fixture
def model():
    return Reads().eval()


def written(model):
    with torch.no_grad():
        model.conv.weight.add_(1)


CHANGES = {
    'conv.weight': [
        written, lambda m: setattr(m.conv.weight, 'data', torch.rand_like(m.conv.weight)),
        lambda m: setattr(m.conv, 'weight', nn.Parameter(m.conv.weight.clone())),
        lambda m: m.conv.load_state_dict(m.conv.state_dict())],
    'norm.running_mean': [lambda m: m.norm.running_mean.fill_(2)],
    'scale': [lambda m: setattr(m, 'scale', torch.ones(4, 1, 1))],
    'plain': [lambda m: m.plain.add_(1), lambda m: setattr(m, 'plain', torch.zeros(2))],
    'one': [lambda m: setattr(m, 'one', torch.ones(1))],
    'array': [lambda m: setattr(m, 'array', np.ones(2))],
    'norm.eps': [lambda m: setattr(m.norm, 'eps', 0.5)],
    'conv.stride': [lambda m: setattr(m.conv, 'stride', (2, 2))],
    'conv.forward': [lambda m: setattr(m.conv, 'forward', nn.Identity().forward)],
    'act': [lambda m: setattr(m, 'act', torch.tanh)],
    'last': [lambda m: setattr(m, 'last', 2), lambda m: delattr(m, 'last')],
    'config': [lambda m: setattr(m, 'config', Config())],
    'name': [lambda m: setattr(m, 'name', 'b')],
    'least': [lambda m: setattr(m, 'least', 0.5), lambda m: setattr(m, 'least', '0.0')],
    'sizes': [lambda m: setattr(m, 'sizes', (1, (3.0, None)))],
    'norm': [lambda m: setattr(m, 'norm', nn.Identity())],
    'more': [lambda m: setattr(m, 'more', None), lambda m: m.add_module('more', nn.Identity())],
    'the mode of the model': [lambda m: m.train()],
    'the mode of norm': [lambda m: m.norm.train()],
    'the hooks of conv': [lambda m: m.conv.register_forward_hook(print),
                          lambda m: m.conv.register_forward_pre_hook(print)]}


@pytest.mark.parametrize(('name', 'change'), [(n, c) for n, all_ in CHANGES.items() for c in all_])
def test_a_change_of_the_model_is_seen_and_named(name, change, model):
    snapshot = Snapshot(model)
    assert not snapshot.change()
    change(model)
    assert snapshot.change() == name


def test_equal_numbers_and_texts_are_no_change_and_are_watched(model):
    model.least = math.nan
    snapshot = Snapshot(model)
    model.name, model.least = ''.join(['a']), float('nan')
    model.sizes = (1, (float('2'), None))
    assert not snapshot.change()
    model.sizes = (1, (4.0, None))
    assert snapshot.change() == 'sizes'


def test_what_the_code_stores_in_a_run_is_no_change(model):
    snapshot = Snapshot(model)
    snapshot.note_results(model, lambda: model(X))
    assert model.last is None and not hasattr(model, 'count')
    for _ in range(2):
        model(X)
        assert not snapshot.change()
    model.name = 'b'
    assert snapshot.change() == 'name'


def test_what_is_stored_in_a_run_that_is_settled_is_no_change(model):
    snapshot = Snapshot(model)
    model(X)
    snapshot.settle()
    assert not snapshot.change()


def test_new_data_never_gets_the_address_of_the_old(model):
    snapshot = Snapshot(model)
    # An allocator often reuses the address of freed data at once, after one change or after two.
    for _ in range(20):
        for factor in 2, .5:
            model.conv.weight.data = model.conv.weight.data * factor
            assert snapshot.change() == 'conv.weight'


def test_a_model_of_inference_mode_and_tensors_without_memory_are_watched_for_the_rest():
    with torch.inference_mode():
        model = Reads().eval()
    model.plain = torch.eye(2).to_sparse()
    snapshot = Snapshot(model)
    assert not snapshot.change()
    model.norm.eps = 0.5
    assert snapshot.change() == 'norm.eps'


def test_hooks_of_libraries_are_no_change(model):
    snapshot = Snapshot(model)

    def gathers(*arguments):
        pass
    # the library transformers adds such a hook when a model runs for the first time
    gathers.__module__ = 'transformers.utils.output_capturing'
    model.register_forward_hook(gathers)
    assert not snapshot.change()
