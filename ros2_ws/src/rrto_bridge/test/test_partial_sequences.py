"""Replay of inferences with a data-dependent shape.

The part before this shape is replayed, although the rest of the inference varies.
"""

import numpy as np
import pytest
from fake import Direct, Offload
from rrto_bridge.protocol.record import DTOH, HTOD, Call, Meta, Ref
from rrto_bridge.search.partial_sequences import PartialSequences

LAYERS = 8


def data(found, number):
    """Return an input with `found` elements that are not zero."""
    return np.array([[number + 1] * found + [0] * (6 - found)])


def detector(device, found, tail=True, keep=None):
    """Run one inference for each number in `found`; return the outputs.

    Each inference selects this number of elements.
    """
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
    assert device.machine.finished >= len(VARYING) - 5
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


def until(device, rounds):
    """Run inferences with a loop that reads a value in each round; return the outputs.

    `rounds`: for each inference, the number of rounds of its loop.
    """
    own = [device.put(np.full((1, 6), k + 2)) for k in range(LAYERS)]
    printed = []
    for number, count in enumerate(rounds):
        x = device.put(data(3, number))
        for weight in own:
            x = device.mul(x, weight)
        for _ in range(count):
            x = device.mul(x, own[0])
            printed.append(device.item(device.sum(x)))
        printed.append(device.get(x).tolist())
    return printed


ROUNDS = [5, 7, 6, 9, 5, 8, 7, 6, 5, 9, 6, 8, 7]


@pytest.mark.parametrize('seed', range(3))
def test_what_comes_before_a_loop_of_varying_length_is_replayed_with_its_first_rounds(seed):
    device = Offload(seed)
    assert until(device, ROUNDS) == until(Direct(), ROUNDS)
    assert device.machine.finished >= len(ROUNDS) - 7
    assert device.machine.sequences == 1


M = Meta((1, 4), (4, 1), 'float32')


def two_stages(device, found, keep=None):
    """Run inferences of two stages, with an `nms` on the robot in between; return the outputs.

    `found`: for each inference, the number of results of `nms`. The second stage begins with an
    input, and uses tensors of the first stage.
    """
    own = [device.put(np.full((1, 6), k + 2)) for k in range(LAYERS)]
    printed, kept = [], []
    for number, size in enumerate(found):
        x = device.put(data(3, number))
        for weight in own:
            x = device.mul(x, weight)
        features = device.mul(x, 1)
        chosen = device.nonzero(x)
        printed.append(device.get(device.add(chosen, device.put(np.full((), number)))).tolist())
        nms = device.put(np.arange(size) + number)
        printed.append(device.get(device.sum(nms)).tolist())
        second = device.put(np.full((1, 6), number + 1))
        for weight in own:
            second = device.add(device.mul(second, weight), features)
        if number == keep:
            kept.append(device.mul(second, 1))
        printed.append(device.get(device.nonzero(second)).tolist())
        last = device.put(np.arange(size))
        printed.append(device.get(device.mul(last, 3)).tolist())
    return printed + [device.get(t).tolist() for t in kept]


SIZES = [1, 4, 2, 5, 3, 9, 8, 7, 12, 11, 10, 6, 14, 15, 13, 17]


@pytest.mark.parametrize('seed', range(3))
def test_both_stages_around_an_input_of_varying_shape_are_replayed(seed):
    device = Offload(seed)
    assert two_stages(device, SIZES) == two_stages(Direct(), SIZES)
    assert device.machine.sequences == 2 and device.machine.finished >= 2 * (len(SIZES) - 6)


def test_what_follows_a_size_that_comes_again_and_again_is_replayed_too():
    sizes = [SIZES[k % 4] for k in range(40)]
    device = Offload()
    assert two_stages(device, sizes, 30) == two_stages(Direct(), sizes, 30)
    assert device.machine.finished > len(sizes)


class Program:
    """Sends calls to a `PartialSequences`; `found` contains the sequences that it finds."""

    def __init__(self):
        self.partial = PartialSequences(3)
        self.handles = 0
        self.found = []

    def call(self, op, *arguments, meta=M, wanted=False):
        made = () if op == DTOH else (self.handles,)
        self.handles += len(made)
        found = self.partial.observe(Call(op, arguments, (), made, (meta,) * len(made), wanted))
        self.found += [found] if found else []
        return Ref(made[0]) if made else None

    def infer(self, size, weight, scalar=2):
        y = self.call('mul', self.call(HTOD), weight, scalar)
        chosen = self.call('nonzero', y, meta=Meta((size,), (1,), 'int64'), wanted=True)
        self.call(DTOH, self.call('neg', chosen), wanted=True)


def test_a_stretch_is_found_at_its_fifth_time():
    program = Program()
    weight = program.call(HTOD)
    for size in (1, 2, 3, 4, 5):
        assert not program.found
        program.infer(size, weight)
    sequence, = program.found
    assert [s.op for s in sequence.steps] == [HTOD, 'mul', 'nonzero']
    assert sequence.steps[-1].metas == (None,)


@pytest.mark.parametrize('infer', [
    lambda program, weight, k: program.infer(k, weight, k),  # the scalar also varies
    lambda program, weight, k: program.infer(k, Ref(-1 - k)),  # the weight also varies
    lambda program, weight, k: program.infer(5, weight),                     # nothing varies
    lambda program, weight, k: program.call('nonzero', weight, wanted=True)])  # there is no input
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
        program.partial.interrupt({})
        program.call('nonzero', program.call('mul', x, weight), meta=Meta((size,), (1,), 'int64'),
                     wanted=True)
    assert not program.found
