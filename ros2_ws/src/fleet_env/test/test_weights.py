"""A model's weights are written whole, and taken from any file that fits; others are named."""

import math
import subprocess
import sys

import pytest
import torch
from fleet_env.errors import VersionError, WeightsError
from fleet_env.versions import Versions
from fleet_env.weights import load_weights, state_bytes
from safetensors.torch import load, save_file
from torch import nn
from written_versions import ABOUT


class Whole(nn.Module):
    """A model with all that a state_dict may hold: buffers, tied weights, three types."""

    def __init__(self, classes=3):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, classes)
        self.low = nn.Parameter(torch.ones(2, dtype=torch.bfloat16), requires_grad=False)
        self.tied = self.head
        self.register_buffer('strided', torch.arange(6.).view(2, 3).t())

    def forward(self, x):
        return self.tied(self.norm(self.conv(x)).mean((2, 3)))


def trained(**options):
    torch.manual_seed(1)
    model = Whole(**options)
    model(torch.randn(8, 3, 6, 6))
    return model


def same(one, other):
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype
                                        for k in a)


PLAIN = """
import sys, torch, safetensors.torch
sys.path.insert(0, sys.argv[2])
from test_weights import Whole, trained
model = Whole()
model.load_state_dict(safetensors.torch.load_file(sys.argv[1]), strict=True)
x = torch.ones(2, 3, 6, 6)
assert torch.equal(model.eval()(x), trained().eval()(x))
"""


def test_a_version_loads_in_plain_pytorch(tmp_path, request):
    Versions(tmp_path).write(state_bytes(trained()), accuracy=math.nan, **ABOUT)
    subprocess.run([sys.executable, '-c', PLAIN, str(tmp_path / 'latest/model.safetensors'),
                    str(request.path.parent)], check=True, timeout=120)


def test_every_key_is_in_the_file_and_no_other():
    model = trained()
    assert load(state_bytes(model)).keys() == model.state_dict().keys()


def files(folder, model):
    """Write the weights in each form that a user may have; return the places."""
    state = model.state_dict()
    Versions(folder / 'run/models').write(state_bytes(model), accuracy=.5, **ABOUT)
    torch.save(state, folder / 'w.pt')
    torch.save(state, folder / 'w.pth')
    untied = {k: v.contiguous() for k, v in state.items() if not k.startswith('tied')}
    save_file(untied, folder / 'untied.safetensors')
    save_file(untied | {'rog/updated_at': torch.zeros(3, dtype=torch.int64)},
              folder / 'checkpoint-000001.safetensors')
    return ['run', 'run/models', 'run/models/1', 'run/models/latest/model.safetensors', 'w.pt',
            'w.pth', 'untied.safetensors', 'checkpoint-000001.safetensors']


def test_weights_come_from_a_version_a_run_and_any_state_dict(tmp_path):
    model = trained()
    for place in files(tmp_path, model):
        filled = Whole()
        assert load_weights(filled, tmp_path / place).is_file()
        assert same(filled, model), place


@pytest.mark.parametrize('change, words', [
    (lambda s: s.pop('norm.running_mean'), "lacks 'norm.running_mean' that the model has"),
    (lambda s: s.pop('conv.bias') is s.pop('conv.weight'), "lacks 'conv.weight' and 1 more that"),
    (lambda s: s.update(other=torch.ones(1)), "has 'other' that the model does not have"),
    (lambda s: s.update(low=torch.ones(3)), r"'low' has the shape \[3\], and \[2\] in the model"),
    (lambda s: (s.pop('norm.running_mean'), s.update({'rog/updated_at': torch.ones(1)})),
     "checkpoint of a server, which holds what is trained; take the run's models/latest")])
def test_the_first_tensor_that_does_not_fit_is_named(tmp_path, change, words):
    state = {k: v.contiguous().clone() for k, v in trained().state_dict().items()}
    change(state)
    save_file(state, tmp_path / 'w.safetensors')
    model = Whole()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(WeightsError, match=words) as raised:
        load_weights(model, tmp_path / 'w.safetensors')
    assert str(tmp_path / 'w.safetensors') in str(raised.value)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize('name, write, words', [
    ('w.safetensors', lambda path: path.write_bytes(b'x' * 99), 'is not a safetensors file'),
    ('w.pt', lambda path: path.write_bytes(b'x' * 99), 'it is damaged, or of another program'),
    ('w.pt', lambda path: torch.save(nn.Linear(1, 1), path),
     r'state_dict of torch.save: it has an object of torch.nn.modules.linear.Linear; write it'),
    ('w.pt', lambda path: torch.save([torch.ones(1)], path), 'it is of type list'),
    ('w.pt', lambda path: torch.save({'epoch': 3, 'model': {}}, path),
     "it has 'epoch', which is no tensor; write it by torch.save"),
    ('w.pt', lambda path: None, 'there is no ')])
def test_a_file_that_holds_no_state_dict_is_named(tmp_path, name, write, words):
    write(tmp_path / name)
    with pytest.raises(VersionError, match=words):
        load_weights(nn.Linear(1, 1), tmp_path / name)


def test_a_version_that_was_changed_is_refused(tmp_path):
    place = tmp_path / files(tmp_path, trained())[2] / 'model.safetensors'
    data = bytearray(place.read_bytes())
    data[-1] ^= 1
    place.write_bytes(data)
    with pytest.raises(VersionError, match=r'model.safetensors was changed after it was written'):
        load_weights(Whole(), tmp_path / 'run')


def test_a_state_that_is_no_tensor_cannot_be_a_version():
    class Stateful(nn.Linear):
        def get_extra_state(self):
            return {'calls': 3}

        def set_extra_state(self, state):
            pass

    with pytest.raises(WeightsError, match="'_extra_state' .* is of type dict"):
        state_bytes(Stateful(1, 1))
