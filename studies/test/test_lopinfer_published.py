"""Tests that graphs and costs from the published profiles give the published latencies."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from fleet_env.links.trace import read_trace
from fleet_env.vision import import_torchvision
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from lopinfer_node.cli.main import main
from lopinfer_node.errors import ProfileError
from lopinfer_node.planning import evaluate
from lopinfer_node.planning.plan import Plan, check
from lopinfer_node.planning.table import BANDWIDTHS
from rog_studies import lopinfer_published as published

SHARED = Path(__file__).resolve().parents[3] / 'shared/data'
FILES = SHARED / 'lop_profiles'
needs_files = pytest.mark.skipif(not FILES.is_dir(), reason='published profiles are not here')
TORCHVISION = {'VGG19_BN': 'vgg19_bn', 'ResNet152': 'resnet152', 'DenseNet121': 'densenet121',
               'ConvNeXt_Large': 'convnext_large'}
DEVICE_ONLY = {'VGG19_BN': 87, 'ConvNeXt_Large': 198, 'ResNet152': 87, 'DenseNet121': 75,
               'kapao': 397, 'agrnav': 782}


@pytest.fixture(scope='module')
def models():
    return {m: published.load(FILES / f'{m}.csv') for m in published.MODELS}


@needs_files
@pytest.mark.parametrize('model', published.MODELS)
def test_device_only_takes_what_was_published(models, model):
    seconds = models[model].device.whole.sum()
    assert seconds * 1e3 == pytest.approx(DEVICE_ONLY[model], rel=0.05)


@needs_files
def test_half_of_the_columns_of_resnet152_gain_nothing(models):
    device = models['ResNet152'].device
    assert (device.fixed + device.per_share / 2).sum() > 0.99 * device.whole.sum()


@needs_files
@pytest.mark.parametrize('model', published.MODELS)
def test_extreme_plans_are_valid_and_every_tensor_is_used(models, model):
    graph = models[model].graph
    check(Plan.device_only(graph))
    check(Plan.server_only(graph))
    assert all(graph.consumers[n.index] or n.index in graph.outputs for n in graph.nodes)
    models[model].device.check(graph)
    models[model].server.check(graph)


@needs_files
@pytest.mark.parametrize(('model', 'size'), [('VGG19_BN', 602112), ('kapao', 1843200),
                                             ('agrnav', 2097152)])
def test_the_input_has_the_published_bytes(models, model, size):
    assert models[model].graph.input_bytes == size


@pytest.fixture(scope='module')
def torchvision_models():
    return import_torchvision().models


def windows_in_order(torchvision_models, name):
    """Return (op, kernel, stride, padding, input size) of each call, in order.

    The numbers are for the axis of the width.
    """
    import torch
    with torch.device('meta'):
        model = getattr(torchvision_models, name)(weights=None).eval()
        seen = []

        def note(module, inputs, _):
            def last(x):
                return x[-1] if isinstance(x, tuple) else x
            op = {'Conv2d': 'conv2d', 'MaxPool2d': 'max_pool2d', 'AvgPool2d': 'avg_pool2d'}
            seen.append((op[type(module).__name__], last(module.kernel_size), last(module.stride),
                         last(module.padding), inputs[0].shape[-1]))

        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d | torch.nn.MaxPool2d | torch.nn.AvgPool2d):
                module.register_forward_hook(note)
        model(torch.zeros(1, 3, 224, 224))
    return seen


@needs_files
@pytest.mark.parametrize('model', TORCHVISION)
def test_windows_are_those_of_torchvision(models, torchvision_models, model):
    from lopinfer_node.model.footprint import window
    expected = windows_in_order(torchvision_models, TORCHVISION[model])
    nodes = [n for n in models[model].graph.nodes if n.op in ('conv2d', 'max_pool2d', 'avg_pool2d')]
    assert [n.op for n in nodes] == [e[0] for e in expected]
    for node, (_, kernel, stride, padding, extent) in zip(nodes, expected, strict=True):
        true = window(node.extent, extent, kernel, stride, padding)
        (found,) = node.footprints
        assert np.array_equal(found.starts, true.starts), node.name
        assert np.array_equal(found.ends, true.ends), node.name


@needs_files
def test_a_tensor_that_is_written_to_is_read_in_its_latest_version(models):
    graph = models['kapao'].graph
    at = {n.name: n.index for n in graph.nodes}
    assert graph.nodes[at['view_361']].inputs == (at['__setitem___360'],)
    assert at['__setitem___355'] in graph.nodes[at['__setitem___360']].inputs
    assert graph.nodes[at['__setitem___360']].shape == graph.nodes[at['sigmoid_336']].shape


@needs_files
def test_dilated_convolutions_of_agrnav_need_wider_windows(models):
    convolutions = [n for n in models['agrnav'].graph.nodes if n.op == 'conv3d']
    widths = [int(n.footprints[0].ends[100] - n.footprints[0].starts[100]) for n in convolutions]
    assert widths == [3, 3, 3, 5, 5, 7, 7, 3]


@needs_files
def test_a_launch_that_takes_longer_makes_every_share_dearer(models):
    slow = published.load(FILES / 'VGG19_BN.csv', device_launch=400e-6)
    fast = models['VGG19_BN']
    assert slow.device.fixed.sum() > 2 * fast.device.fixed.sum()
    assert slow.device.whole.sum() >= fast.device.whole.sum()
    assert np.array_equal(slow.server.whole, fast.server.whole)


@given(st.lists(st.tuples(st.floats(0, 2), st.booleans(), st.booleans()), min_size=1, max_size=12),
       st.floats(0, 1))
@examples(200)
def test_fixed_and_per_share_add_up_to_the_run(lines, launch):
    times = np.array([t for t, _, _ in lines])
    kept = np.array([k or i == len(lines) - 1 for i, (_, _, k) in enumerate(lines)])
    launched = np.array([b for _, b, _ in lines]) & kept
    fixed, per_share = published.split(times, launched, launch, np.flatnonzero(kept))
    end, issued = 0.0, 0.0
    for t, new in zip(times, launched, strict=True):
        issued += launch * new
        end = max(end, issued) + t
    assert (fixed >= 0).all() and (per_share >= 0).all()
    assert fixed.sum() + per_share.sum() == pytest.approx(end)


def test_a_file_of_another_model_is_refused(tmp_path):
    with pytest.raises(ProfileError, match=r'Net\.csv: kernel sizes are known for VGG19_BN'):
        published.load(tmp_path / 'Net.csv')


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ProfileError, match='cannot be read'):
        published.load(tmp_path / 'VGG19_BN.csv')


@needs_files
@pytest.mark.parametrize(('old', 'new'), [
    ('op_name', 'name'), ('conv2d', 'conv9d'), ('8.3937', 'fast'), ('1x64x224x224', '1x64x224x225'),
    ('1x64x112x112', '1x64x9x9')])
def test_a_damaged_file_is_refused(tmp_path, old, new):
    path = tmp_path / 'VGG19_BN.csv'
    shutil.copy(FILES / path.name, path)
    path.chmod(0o644)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ProfileError, match=r'VGG19_BN\.csv'):
        published.load(path)


@needs_files
@pytest.mark.parametrize('link', published.LATENCIES)
@pytest.mark.parametrize('model', published.MODELS)
def test_server_only_is_near_the_published_runs(models, model, link):
    graph, device, server = models[model]
    table = [Plan.server_only(graph)] * len(BANDWIDTHS)
    trace = read_trace(SHARED / f'traces/lop_{link}.txt')
    costs = evaluate.costs_of(graph, device, server)
    mean = evaluate.replay(graph, table, costs, trace).mean * 1e3
    # The mean rate of the published runs differed by up to 9 % from the mean of the trace.
    assert 0.8 < mean / published.LATENCIES[link][model][1] < 1.05


@needs_files
def test_the_command_plans_on_a_published_profile(capsys):
    assert main(['plan', str(FILES / 'VGG19_BN.csv'), '--bandwidth', '10']) == 0
    assert 'VGG19_BN' in capsys.readouterr().out
