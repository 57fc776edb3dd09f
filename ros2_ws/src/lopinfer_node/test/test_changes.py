"""A change of a traced model is detected, wherever the change was made."""

import argparse
import array
import collections
import ctypes
import dataclasses
import functools
import multiprocessing
import types
import weakref

import numpy as np
import pytest
import torch
from lopinfer_node.errors import ModelError
from lopinfer_node.model.contents import PART, Contents
from lopinfer_node.model.snapshot import Snapshot
from torch import nn

SCALES = [1.0, 2.0]
TABLE = {'deep': {'offset': 0.5}}
OFFSET = 0.25
RUNTIME = types.SimpleNamespace(gain=1.0)
SOFT = torch.ones(3)
GRID = np.ones(4, np.float32)


@dataclasses.dataclass
class Config:
    scale: float = 1.0
    unread: int = 0
    steps: list = dataclasses.field(default_factory=lambda: [1, 2])


class Slots:
    __slots__ = ('bias',)

    def __init__(self):
        self.bias = 1.0


def helper(x):
    return x + OFFSET


@functools.lru_cache
def cached():
    return TABLE['deep']['offset']


def closing(limits):
    def clip(x):
        return x.clamp(*limits)
    return clip


class Reads(nn.Module):
    """Reads not only its argument but also values such as globals, attributes and closures."""

    factor = 2.0
    limits = [0.0, 1.0]

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(3, 4, 3)
        self.config, self.slots, self.hidden = Config(), Slots(), [nn.Linear(2, 2).eval()]
        self.options, self.array = {'add': 1.0}, np.ones(3)
        self.act, self.clip = functools.partial(torch.mul, other=2), closing([0, 1])
        self.log = []

    def forward(self, x):
        y = self.conv(x) * SCALES[0] + cached() + RUNTIME.gain + SOFT.sum() + float(GRID.sum())
        y = helper(y) * self.config.scale * self.config.steps[0] + self.slots.bias
        y = self.clip(self.act(y)) + self.options['add'] + float(self.array.sum())
        return self.hidden[0](y[..., :2]) * self.factor + self.limits[0] + self.extra()

    def extra(self):
        return 0.0


@pytest.fixture
def model():
    return Reads().eval()


def seen(snapshot):
    """Return the change that ``snapshot`` finds, or None.

    One call of `look` checks only some of the values, so the function calls it often enough to
    check all values.
    """
    found = snapshot.change()
    for _ in range(64):
        found = found or (snapshot.look() and snapshot.change())
    return found


def put(owner, name, value):
    def change(model, patch):
        patch.setattr(owner(model) if isinstance(owner, types.FunctionType) else owner, name, value)
    return change


def item(owner, key, value):
    def change(model, patch):
        of = owner(model)
        before = of[key]
        of[key] = value
        PUT_BACK.append(lambda: of.__setitem__(key, before))
    return change


PUT_BACK = []
HERE = 'test_changes'
AT_ONCE = {
    'a value in a global list': (item(lambda m: SCALES, 0, 3.0), f'{HERE}.SCALES[0]'),
    'a value deep in a global dictionary': (item(lambda m: TABLE['deep'], 'offset', 1.0), 'offset'),
    'a global number': (lambda m, p: p.setitem(globals(), 'OFFSET', 9.0), f'{HERE}.OFFSET'),
    'a global function': (lambda m, p: p.setitem(globals(), 'helper', torch.relu), 'helper'),
    'a global namespace': (put(RUNTIME, 'gain', 3.0), f'{HERE}.RUNTIME.gain'),
    'a global tensor, in place': (lambda m, p: SOFT.add_(0), f'{HERE}.SOFT'),
    'a global array': (lambda m, p: p.setitem(globals(), 'GRID', np.ones(4)), f'{HERE}.GRID'),
    'a config object': (put(lambda m: m.config, 'scale', 3.0), 'config.scale'),
    'a list in a config object': (item(lambda m: m.config.steps, 0, 3), 'config.steps[0]'),
    'another config object': (put(lambda m: m, 'config', Config(5.0)), 'config'),
    'an equal config object': (put(lambda m: m, 'config', Config()), 'config'),
    'an object with slots': (put(lambda m: m.slots, 'bias', 3.0), 'slots.bias'),
    'a dictionary in an attribute': (item(lambda m: m.options, 'add', 2.0), "options['add']"),
    'one more item': (lambda m, p: m.options.update(sub=1), "options['sub']"),
    'another dictionary': (put(lambda m: m, 'options', {'add': 3.0}), 'options'),
    'a weight of a module in a list': (put(lambda m: m.hidden[0], 'weight', nn.Parameter(
        torch.ones(2, 2))), 'hidden[0].weight'),
    'a module in a list': (item(lambda m: m.hidden, 0, nn.Linear(2, 2)), 'hidden[0]'),
    'the mode of a module in a list': (lambda m, p: m.hidden[0].train(), 'the mode of hidden[0]'),
    'what a closure holds': (lambda m, p: m.clip.__closure__[0].cell_contents.append(3), 'clip'),
    'a partial': (lambda m, p: m.act.keywords.update(other=9), 'act'),
    'an attribute of the class': (put(Reads, 'factor', 3.0), 'Reads.factor'),
    'a list of the class': (item(lambda m: Reads.limits, 0, 3.0), 'Reads.limits[0]'),
    'a method of the class': (put(Reads, 'extra', lambda self: 1.0), 'Reads.extra'),
    'the computation of the class': (put(Reads, 'forward', lambda self, x: x), 'Reads.forward'),
    'that of a class of PyTorch': (put(nn.Conv2d, 'forward', lambda self, x: x), 'Conv2d.forward'),
    'an equal weight': (lambda m, p: setattr(m.conv, 'bias', nn.Parameter(m.conv.bias.clone())),
                        'conv.bias')}


@pytest.fixture(autouse=True)
def as_before():
    yield
    while PUT_BACK:
        PUT_BACK.pop()()


@pytest.mark.parametrize('kind', AT_ONCE)
def test_a_change_of_a_value_that_the_code_reads_is_detected(kind, model, monkeypatch):
    change, name = AT_ONCE[kind]
    snapshot = Snapshot(model)
    assert not snapshot.change()
    change(model, monkeypatch)
    assert name in snapshot.change()


@pytest.mark.parametrize('change', [
    lambda m: setattr(m.config, 'unread', 3), lambda m: m.log.append(3),
    lambda m: setattr(m, 'log', []), lambda m: setattr(m.conv, 'groups', int('1')),
    lambda m: setattr(m, 'options', {'add': float('1')})])
def test_unread_or_equal_values_do_not_count_as_changes(change, model):
    snapshot = Snapshot(model)
    change(model)
    assert not seen(snapshot)


def test_an_equal_replacement_is_watched(model):
    snapshot = Snapshot(model)
    model.options = {'add': 1.0}
    assert not snapshot.change()
    model.options['add'] = 2.0
    assert snapshot.change() == "options['add']"


class Box(nn.Module):
    """Multiplies its input by the number that the function ``read`` gets from ``box``."""

    def __init__(self, box, read):
        super().__init__()
        self.box, self.read = box, read

    def forward(self, x):
        return x * float(self.read(self.box))


class Defaults:
    """Has a class attribute, which an attribute of an object can hide."""

    gain = 2.0


def gain(box):
    return box.gain


def first(box):
    return box[0]


def attribute(box):
    return attribute.gain


attribute.gain = 2.0
DICTIONARY, VIEWED, REFERENT = {'gain': 2.0}, bytearray(2), Config()
BOXES = {  # (object, function that reads its number, function that changes it)
    'argparse.Namespace': (argparse.Namespace(gain=2.0), gain, lambda b: setattr(b, 'gain', 3.0)),
    "an object's own value of its class": (Defaults(), gain, lambda b: setattr(b, 'gain', 3.0)),
    'an attribute that was not there': (Config(), lambda b: getattr(b, 'gain', 2.0),
                                        lambda b: setattr(b, 'gain', 3.0)),
    'Counter': (collections.Counter([0]), first, lambda b: b.update([0])),
    'ChainMap': (collections.ChainMap({}, {0: 2.0}), first, lambda b: b.maps[1].update({0: 3.0})),
    'UserDict': (collections.UserDict({0: 2.0}), first, lambda b: b.update({0: 3.0})),
    'UserList': (collections.UserList([2.0]), first, lambda b: b.append(b.__setitem__(0, 3.0))),
    'a read-only view': (types.MappingProxyType(DICTIONARY), lambda b: b['gain'],
                         lambda b: DICTIONARY.update(gain=3.0)),
    'array': (array.array('d', [2.0]), first, lambda b: b.append(b.__setitem__(0, 3.0) or 1.0)),
    'bytearray': (bytearray(2), first, lambda b: b.__setitem__(0, 3)),
    'memoryview': (memoryview(VIEWED), first, lambda b: VIEWED.__setitem__(0, 3)),
    'ctypes': (ctypes.c_double(2.0), lambda b: b.value, lambda b: setattr(b, 'value', 3.0)),
    'a number that processes share': (multiprocessing.Value('d', 2.0), lambda b: b.value,
                                      lambda b: setattr(b, 'value', 3.0)),
    'a bound method': (DICTIONARY.get, lambda b: b('gain'), lambda b: DICTIONARY.clear()),
    'a weak reference': (weakref.ref(REFERENT), lambda b: b().scale,
                         lambda b: setattr(REFERENT, 'scale', 3.0)),
    'an attribute of a function': (None, attribute, lambda b: setattr(attribute, 'gain', 3.0)),
    'a module': (types.ModuleType('settings'), gain, lambda b: setattr(b, 'gain', 3.0)),
    'every second number': (np.zeros(9)[::2], first, lambda b: b.fill(3.0)),
    'every second element': (torch.zeros(9)[::2], first, lambda b: b.numpy().fill(3.0))}


BOXES['a module'][0].gain = 2.0


@pytest.mark.parametrize('kind', BOXES)
def test_a_change_in_an_object_of_a_library_is_detected(kind):
    DICTIONARY['gain'] = 2.0
    box, read, change = BOXES[kind]
    snapshot = Snapshot(Box(box, read).eval())
    assert not seen(snapshot)
    change(box)
    assert seen(snapshot)


def raw(tensor, at):
    """Write one element by its address, as another process does through shared memory."""
    ctypes.c_float.from_address(tensor.data_ptr() + 4 * at).value = 7.0


BEHIND = {
    'numpy': lambda m: m.conv.weight.detach().numpy().fill(3),
    'data in place': lambda m: m.conv.weight.data.mul_(2),
    'one element by its address': lambda m: raw(m.conv.weight, 107),
    'one of the bias': lambda m: raw(m.conv.bias, 3),
    'a global tensor': lambda m: raw(SOFT, 2),
    'an array': lambda m: m.array.fill(3),
    'two weights exchanged': lambda m: m.conv.weight.detach().numpy()[[0, 1]].sort(0) or
    m.conv.weight.detach().numpy().__setitem__(slice(None), m.conv.weight.detach().numpy()[::-1])}


@pytest.mark.parametrize('how', BEHIND)
def test_a_write_that_pytorch_does_not_count_is_seen_in_the_background(how, model):
    snapshot = Snapshot(model)
    assert not seen(snapshot)
    BEHIND[how](model)
    assert seen(snapshot)


def test_writes_into_a_model_made_in_inference_mode_are_seen():
    with torch.inference_mode():
        model = Reads().eval()
        snapshot = Snapshot(model)
        assert not seen(snapshot)
        model.conv.weight[3, 2, 1, 1] += 1e-3
    assert seen(snapshot) == 'conv.weight'


def test_memory_shared_with_another_process_is_read_again(model):
    model.share_memory()
    snapshot = Snapshot(model)
    worker = torch.multiprocessing.get_context('spawn').Process(target=raw_elsewhere,
                                                                args=(model.conv.weight.detach(),))
    worker.start()
    worker.join()
    assert worker.exitcode == 0 and seen(snapshot) == 'conv.weight'


def raw_elsewhere(tensor):
    tensor[3, 2, 0, 0] = 9.0


def test_new_data_never_gets_the_address_of_the_old(model):
    snapshot = Snapshot(model)
    # Repeat the change, because an allocator often reuses the address of freed data at once. The
    # snapshot must prevent such a reuse: it keeps the old data alive.
    for _ in range(20):
        model.conv.weight.data = model.conv.weight.data * 2
        model.conv.weight.data = model.conv.weight.data / 2
    assert snapshot.change() == 'conv.weight'


@pytest.mark.parametrize('shape', [(3 * PART // 4 + 5,), (64, 32, 3, 3), (300, 7)])
@pytest.mark.parametrize('layout', [lambda t: t, lambda t: t.transpose(0, -1), lambda t: t.half()])
def test_any_element_of_a_weight_counts(shape, layout):
    weight = layout(torch.rand(shape, generator=torch.Generator().manual_seed(0)))
    contents = Contents({'small': torch.rand(2), 'w': weight})
    draw = np.random.default_rng(0)
    for _ in range(5):
        assert not any(contents.look(PART) for _ in range(8))
        index = tuple(int(draw.integers(n)) for n in weight.shape)
        before = weight[index].clone()
        weight[index] += 1
        assert [found for _ in range(8) if (found := contents.look(PART))][0] == 'w'
        weight[index] = before


class Answers:
    """Returns itself as the value of every attribute, whatever the name."""

    def __getattr__(self, name):
        return self


class Refuses:
    """Raises RuntimeError for every attribute, where Python expects AttributeError."""

    def __getattr__(self, name):
        raise RuntimeError(name)


def test_modules_that_import_each_other_and_objects_that_answer_to_all_names_are_followed(model):
    one, other = types.ModuleType('one'), types.ModuleType('other')
    one.other, other.one, one.scale = other, one, 2.0
    namespace = {'one': one}
    exec('def act(x):\n    return x * one.other.one.scale', namespace)
    model.act, model.options = namespace['act'], {'a': Answers(), 'b': Refuses()}
    model.loop = [model.options]
    model.options['loop'] = model.loop
    snapshot = Snapshot(model)
    assert not seen(snapshot)
    one.scale = 3.0
    assert snapshot.change() == 'one.scale'


def test_a_model_that_cannot_be_followed_is_refused_with_a_reason(model):
    class Breaks(dict):
        def items(self):
            raise KeyError('mine')
    model.options = Breaks(add=1.0)
    with pytest.raises(ModelError, match="cannot watch what its code reads: KeyError: 'mine'"):
        Snapshot(model)


CACHE = {}
LAST = types.SimpleNamespace(shape=None, calls=0, gain=1.0)


class Caches(nn.Module):
    """Keeps shapes in a global cache, counts its calls in an object, and logs in a list."""

    def __init__(self):
        super().__init__()
        self.log = []

    def forward(self, x):
        CACHE[len(CACHE)] = x.shape
        LAST.shape, LAST.calls = x.shape, LAST.calls + 1
        self.log.append(x.shape)
        return x * LAST.gain


def test_values_that_the_code_changes_in_a_run_are_results(monkeypatch):
    monkeypatch.setitem(vars(LAST), 'gain', 1.0)
    model, x = Caches().eval(), torch.ones(2)
    snapshot = Snapshot(model, lambda: model(x))
    assert model.log == []
    for _ in range(3):
        model(x)         # stands for a call in another part of the program
        assert not seen(snapshot)
    model.log.clear()
    assert not seen(snapshot)
    LAST.gain = 2.0
    assert snapshot.change() == 'test_changes.LAST.gain'
