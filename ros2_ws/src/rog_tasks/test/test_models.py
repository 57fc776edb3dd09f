"""The built-in models have the published sizes, and no state besides their parameters."""

import pytest
import torch
from rog_tasks.models import MODELS


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize('name, channels, classes, parameters', [
    ('digitnet', 1, 10, 159_626), ('mnistnet', 1, 10, 21_840), ('lenet5', 3, 10, 62_006),
    ('convnet', 3, 100, 586_184)])
def test_they_have_as_many_parameters_as_published(name, channels, classes, parameters):
    assert count(MODELS[name](channels, classes)) == parameters
    assert MODELS[name]().state_dict().keys() == dict(MODELS[name]().named_parameters()).keys()


@pytest.mark.parametrize('name', MODELS)
@pytest.mark.parametrize('channels, classes, size', [(1, 10, 28), (3, 7, 32), (2, 2, 16),
                                                     (1, 3, 40)])
def test_they_take_images_of_any_kind_and_draw_nothing(name, channels, classes, size):
    model = MODELS[name](channels, classes)
    images = torch.rand(3, channels, size, size)
    logits = model(images)
    assert logits.shape == (3, classes) and torch.equal(logits, model(images))
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize('name, size', [('mnistnet', 28), ('lenet5', 32), ('convnet', 32)])
def test_at_the_published_size_they_are_the_published_networks(name, size):
    torch.manual_seed(0)
    model = MODELS[name]()
    images = torch.rand(2, model.conv1.in_channels, size, size)
    expected = model(images)
    model.pool = torch.nn.Identity()
    assert torch.equal(model(images), expected)
