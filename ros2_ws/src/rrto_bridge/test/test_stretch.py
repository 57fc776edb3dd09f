"""What comes before a data-dependent shape is replayed where the rest varies."""

import numpy as np
import pytest
from fake import Direct, Offload
from rrto_bridge.record import DTOH, HTOD, Call, Meta, Ref
from rrto_bridge.search import Search
from rrto_bridge.stretch import Stretches

LAYERS = 8


def data(found, number):
    """An input in which so many elements are not zero."""
    return np.array([[number + 1] * found + [0] * (6 - found)])


def detector(device, found, tail=True, keep=None):
    """Inferences whose selection has the sizes `found`; what is printed."""
    own = [device.put(np.full((1, 6), k + 2)) for k in range(LAYERS)]
    count = device.put(np.zeros((1, 1), np.int64))
    printed, kept = [], []
    for number, size in enumerate(found):
        x = device.put(data(size, number))
        for weight in own:
            x = device.mul(x, weight)
        device.add_(count, device.sum(x))
        features = device.mul(x, 1)
        chosen = device.nonzero(x)
        if number == keep:
            kept.append(device.mul(features, 1))
        if tail:
            constant = device.put(np.full((1,), 7))
            chosen = device.add(device.mul(chosen, 2), constant)
            chosen = device.cat((chosen, device.nonzero(device.add(chosen, constant))))
        printed.append(device.get(chosen).tolist())
        printed.append(device.get(device.sum(features)).tolist())
    return printed + [device.get(t).tolist() for t in (count, *kept)]


VARYING = [1, 2, 3, 4, 5, 1, 2, 6, 3, 3, 1, 5, 2, 4]


@pytest.mark.parametrize('tail', [False, True])
@pytest.mark.parametrize('seed', range(3))
def test_the_part_before_a_varying_shape_is_replayed(tail, seed):
    device = Offload(seed)
    assert detector(device, VARYING, tail) == detector(Direct(), VARYING, tail)
    assert device.machine.finished >= len(VARYING) - 4
    assert device.machine.sequences == 1


def test_nothing_of_it_is_made_twice():
    device = Offload()
    asked = []
    apply = device.server.apply
    device.server.apply = lambda r: (asked.append(type(r).__name__), apply(r))
    detector(device, VARYING, keep=9)
    assert 'Abandon' not in asked and asked.count('Finish') == device.machine.finished


def test_what_it_leaves_may_be_kept_and_is_freed():
    device = Offload()
    assert detector(device, VARYING, keep=9) == detector(Direct(), VARYING, keep=9)
    one = device.put(np.ones((1, 1), np.int64))
    for _ in range(2):
        device.item(one)
    assert set(device.executor.tensors) == set(device.metas) and device.executor.used == 0


def test_where_the_shape_is_the_same_the_whole_pass_is_replayed():
    device = Offload()
    assert detector(device, [3] * 12) == detector(Direct(), [3] * 12)
    assert device.machine.sequences == 1 and device.machine.finished == 9


def test_shapes_that_begin_to_vary():
    found = [3] * 8 + VARYING + VARYING
    device = Offload()
    assert detector(device, found) == detector(Direct(), found)
    assert device.machine.finished > len(found) // 2


M = Meta((1, 4), (4, 1), 'float32')


class Program:
    """Writes calls into a Stretches."""

    def __init__(self):
        self.stretches = Stretches(Search())
        self.handles = 0
        self.found = []

    def call(self, op, *arguments, meta=M, wanted=False):
        made = () if op == DTOH else (self.handles,)
        self.handles += len(made)
        found = self.stretches.observe(Call(op, arguments, (), made, (meta,) * len(made), wanted))
        self.found += [found] if found else []
        return Ref(made[0]) if made else None

    def infer(self, size, weight, scalar=2):
        y = self.call('mul', self.call(HTOD), weight, scalar)
        chosen = self.call('nonzero', y, meta=Meta((size,), (1,), 'int64'), wanted=True)
        self.call(DTOH, self.call('neg', chosen), wanted=True)


def test_a_stretch_is_found_at_its_third_time():
    program = Program()
    weight = program.call(HTOD)
    for size in (1, 2, 3):
        assert not program.found
        program.infer(size, weight)
    sequence, = program.found
    assert [s.op for s in sequence.steps] == [HTOD, 'mul', 'nonzero']
    assert sequence.steps[-1].metas == (None,)


@pytest.mark.parametrize('infer', [
    lambda program, weight, k: program.infer(k, weight, k % 2),              # another scalar
    lambda program, weight, k: program.infer(k, Ref(-1 - k)),                 # another tensor
    lambda program, weight, k: program.infer(5, weight),                     # nothing varies
    lambda program, weight, k: program.call('nonzero', weight, wanted=True)])  # no input
def test_what_does_not_repeat_or_not_vary_is_not_found(infer):
    program = Program()
    weight = program.call(HTOD)
    for k in range(12):
        infer(program, weight, k)
    assert not program.found


def test_a_replayed_pass_ends_a_stretch():
    program = Program()
    weight = program.call(HTOD)
    for size in range(9):
        x = program.call(HTOD)
        program.stretches.interrupt(set())
        program.call('nonzero', program.call('mul', x, weight), meta=Meta((size,), (1,), 'int64'),
                     wanted=True)
    assert not program.found
