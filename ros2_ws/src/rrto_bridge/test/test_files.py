"""Programs save and load weights; what PyTorch would load onto CUDA is loaded onto the device."""

import io
import itertools
import pickle
import subprocess
import sys
import zipfile
from multiprocessing.reduction import ForkingPickler

import pytest
import safetensors.torch
import torch
from fleet_testing import LIMIT
from torch import nn

pytestmark = pytest.mark.filterwarnings('ignore::DeprecationWarning', 'ignore::UserWarning')


class Model(nn.Module):
    """Has tensors in every place in which TorchScript keeps tensors."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.tied = nn.Linear(3, 2)
        self.tied.weight = self.layer.weight
        self.register_buffer('scale', torch.tensor([2.0, 3.0]))
        self.shift = torch.tensor([3.0, -1.0])
        self.parts = [torch.tensor([4.0, 1.0])]
        self.named = {'one': torch.tensor([5.0, 2.0])}
        self.pair = (torch.tensor([6.0, 7.0]), 3)

    def forward(self, x):
        y = self.layer(x) * self.scale + self.shift + self.tied(x)
        return y + self.parts[0] * self.named['one'] - self.pair[0]


X = torch.rand(4, 3, generator=torch.Generator().manual_seed(1))
MAKE = {'scripted': lambda m, x: torch.jit.script(m), 'traced': torch.jit.trace,
        'frozen': lambda m, x: torch.jit.freeze(torch.jit.script(m))}


def saved(module):
    file = io.BytesIO()
    torch.jit.save(module, file)
    return file.getvalue()


def said_to_be_of_cuda(content):
    """Return the file that a machine with CUDA would have written."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, 'w') as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith('.pkl'):
                data = data.replace(b'X\x03\x00\x00\x00cpu', b'X\x06\x00\x00\x00cuda:0')
            new.writestr(name, data)
    return made.getvalue()


@pytest.mark.parametrize(('kind', 'place'), [*itertools.product(
    MAKE, ['cuda', 'cuda:0', torch.device('cuda'), 'in the file', 'torch.load'])])
def test_a_scripted_module_is_loaded_onto_the_device(engine, tmp_path, kind, place):
    model = Model().eval()
    with torch.no_grad():
        expected = model(X)
        content = saved(MAKE[kind](model, X))
        path = tmp_path / 'model.pt'
        path.write_bytes(said_to_be_of_cuda(content) if place == 'in the file' else content)
        if place == 'torch.load':
            loaded = torch.load(path, map_location='cuda', weights_only=False)
        elif place == 'in the file':
            loaded = torch.jit.load(str(path))
        else:
            loaded = torch.jit.load(io.BytesIO(content), map_location=place)
        for _ in range(5):
            assert torch.equal(loaded(X.cuda()).cpu(), expected)
        assert all(t.is_cuda for t in loaded.state_dict().values())
        if kind == 'scripted':
            loaded.layer.weight.zero_()
            assert not loaded.tied.weight.any()     # the two weights are still the same parameter


@pytest.mark.parametrize('kind', MAKE)
def test_a_scripted_module_of_the_device_is_saved(engine, kind):
    model = Model().eval()
    with torch.no_grad():
        expected = model(X)
        model.cuda()
        for name in ('shift', 'parts', 'named', 'pair'):
            value = getattr(model, name)
            setattr(model, name, value.cuda() if name == 'shift' else [value[0].cuda()]
                    if name == 'parts' else {'one': value['one'].cuda()} if name == 'named'
                    else (value[0].cuda(), 3))
        module = MAKE[kind](model, X.cuda())
        content = saved(module)
        assert torch.equal(module(X.cuda()).cpu(), expected)   # saving has not changed the module
        assert torch.equal(torch.jit.load(io.BytesIO(content))(X), expected)
        loaded = torch.jit.load(io.BytesIO(content), map_location='cuda')
        assert torch.equal(loaded(X.cuda()).cpu(), expected)


def test_a_module_stays_on_the_cpu_unless_it_is_asked_for(engine):
    model = Model().eval()
    with torch.no_grad():
        content = saved(torch.jit.script(model))
        for place in (None, 'cpu', torch.device('cpu')):
            assert torch.equal(torch.jit.load(io.BytesIO(content), place)(X), model(X))
    with pytest.raises(RuntimeError, match='ordinal 1'):
        torch.jit.load(io.BytesIO(content), 'cuda:1')
    with pytest.raises(ValueError, match='does not exist'):
        torch.jit.load('/nowhere.pt')


def test_what_shares_memory_in_a_file_shares_it_on_the_device(engine):
    base = torch.arange(12.0)
    file = io.BytesIO()
    torch.save({'a': base, 'b': base.view(3, 4)[:, 1], 'c': base[2:5], 'd': base,
                'e': torch.ones(2)}, file)
    file.seek(0)
    loaded = torch.load(file, map_location='cuda', weights_only=False)
    assert loaded['a'] is loaded['d'] and all(t.is_cuda for t in loaded.values())
    loaded['a'].zero_()
    loaded['c'].add_(1)
    assert loaded['b'].tolist() == [0, 0, 0] and loaded['e'].tolist() == [1, 1]
    assert loaded['a'].tolist() == [0, 0, 1, 1, 1] + [0] * 7


def test_a_part_that_is_saved_alone_is_the_part(engine):
    file = io.BytesIO()
    torch.save([torch.arange(6.0).view(2, 3).t()[1:]], file)
    file.seek(0)
    loaded, = torch.load(file, map_location='cuda')
    assert loaded.tolist() == [[1, 4], [2, 5]] and loaded.stride() == (1, 3)


class Mover(nn.Module):
    def forward(self, x, y):
        if y.sum() > 0:
            x = torch.cat([x.to(y.device), y])
        return x.to(y.device)


def move(x, y):
    return x.to(y.device) * y


def test_scripts_move_tensors_to_the_device(replay):
    scripts = [torch.jit.script(Mover()), torch.jit.script(move)]
    loaded = torch.jit.load(io.BytesIO(saved(torch.jit.script(Mover()))))
    for script in (*scripts, loaded):
        for _ in range(3):
            moved = script(X, X.cuda())
            assert moved.is_cuda and torch.equal(moved.cpu(), script(X, X))


class Wrapper(torch.Tensor):
    """A tensor that consists of another one, as the quantised tensors of libraries do."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype,
                                                   device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
        result = function(*(a.inner if isinstance(a, Wrapper) else a for a in args),
                          **(kwargs or {}))
        return cls(result) if isinstance(result, torch.Tensor) else result


class Holder:
    """An object of a program; it has a tensor, a parameter and a module."""

    def __init__(self, device):
        self.tensor = torch.arange(3.0, device=device)
        self.part = self.tensor[1:]
        self.parameter = nn.Parameter(torch.ones(2, device=device))
        self.parameter.note = 'mine'
        self.module = nn.Linear(2, 2).to(device)
        self.wrapper = Wrapper(torch.ones(2, device=device))

    def devices(self):
        return {t.device.type for t in (self.tensor, self.parameter, *self.module.parameters(),
                                        self.wrapper, self.wrapper.inner)}


def stored(value, **how):
    file = io.BytesIO()
    torch.save(value, file, **how)
    file.seek(0)
    return file


PLACES = [(None, None), ('cuda', 'cuda'), (torch.device('cuda', 0), 'cuda'), ('cpu', 'cpu'),
          # PyTorch looks up the places of storages as strings, those of wrappers as devices.
          ({}, None), ({'cpu': 'cuda:0', torch.device('cpu'): 'cuda:0'}, 'cuda'),
          ({'cuda:0': 'cpu', torch.device('cuda', 0): 'cpu'}, 'cpu')]


@pytest.mark.parametrize('saved_on', ['cpu', 'cuda'])
def test_every_tensor_of_an_object_is_loaded_to_its_place(engine, saved_on):
    for location, device in PLACES:
        loaded = torch.load(stored(Holder(saved_on)), location, weights_only=False)
        assert loaded.devices() == {device or saved_on}, location
        loaded.tensor[2] = 7
        assert loaded.part.tolist() == [1, 7] and loaded.wrapper.inner.tolist() == [1, 1]
        assert isinstance(loaded.parameter, nn.Parameter) and loaded.parameter.note == 'mine'


CHOICES = [(lambda storage, place: storage, 'cpu'), (lambda storage, place: None, None),
           (lambda storage, place: storage.cuda(0), 'cuda'),
           (lambda storage, place: storage.cuda(), 'cuda'),
           (lambda storage, place: storage.to(device='cuda'), 'cuda')]


@pytest.mark.parametrize('new', [True, False])
@pytest.mark.parametrize('saved_on', ['cpu', 'cuda'])
def test_a_function_chooses_where_tensors_are_loaded(engine, saved_on, new):
    for choose, device in CHOICES:
        x = torch.arange(3.0, device=saved_on)
        file = stored([x, x[1:], torch.empty(0)], _use_new_zipfile_serialization=new)
        loaded, part, empty = torch.load(file, map_location=choose)
        assert loaded.device.type == part.device.type == (device or saved_on)
        assert (empty.device.type == 'cuda') == (device == 'cuda')
        loaded[2] = 7
        assert part.tolist() == [1, 7]


def test_places_that_do_not_exist_are_refused(replay):
    for location, words in (('cuda:1', 'invalid device'), ('nowhere', 'tagged with nowhere')):
        with pytest.raises(RuntimeError, match=words):
            torch.load(stored(torch.ones(2)), location)
    assert torch.load(stored(torch.ones(2).cuda()), 'meta').is_meta


def test_what_is_pickled_on_the_device_comes_back_to_it(engine, monkeypatch):
    for dumped in (pickle.dumps, ForkingPickler.dumps):
        loaded = pickle.loads(dumped(Holder('cuda')))
        assert loaded.devices() == {'cuda'} and loaded.tensor.tolist() == [0, 1, 2]
    assert pickle.loads(pickle.dumps(Holder('cpu'))).devices() == {'cpu'}
    x = torch.ones(2).cuda()
    x.note = 'mine'
    assert pickle.loads(pickle.dumps(x)).note == 'mine'
    monkeypatch.setattr(torch.serialization, 'location_tag', lambda storage: 'cuda:0')
    of_cuda = pickle.dumps(torch.arange(2.0))    # as a machine with CUDA pickles its tensors
    monkeypatch.undo()
    assert pickle.loads(of_cuda).is_cuda and pickle.loads(of_cuda).tolist() == [0, 1]


@pytest.mark.long
def test_programs_without_the_device_read_what_was_saved_on_it(replay, tmp_path):
    saved = {'x': torch.arange(3.0).cuda(), 'p': nn.Parameter(torch.ones(2).cuda())}
    torch.save(saved, tmp_path / 'new.pt')
    torch.save(saved, tmp_path / 'old.pt', _use_new_zipfile_serialization=False)
    (tmp_path / 'a.pkl').write_bytes(pickle.dumps(saved))
    code = """import pickle, torch
for read in (lambda: torch.load('new.pt'), lambda: torch.load('old.pt', weights_only=True),
             lambda: pickle.load(open('a.pkl', 'rb'))):
    found = read()
    assert {t.device.type for t in found.values()} == {'cpu'} and found['x'].tolist() == [0, 1, 2]
    assert type(found['p']) is torch.nn.Parameter and not vars(found['x'])"""
    subprocess.run([sys.executable, '-c', code], cwd=tmp_path, check=True, timeout=LIMIT)


def test_safetensors_are_loaded_to_the_device(replay, tmp_path):
    file = tmp_path / 'a.safetensors'
    safetensors.torch.save_file({'x': torch.ones(2)}, file)
    for place in (0, 'cuda', 'cuda:0'):
        assert safetensors.torch.load_file(file, place)['x'].is_cuda
