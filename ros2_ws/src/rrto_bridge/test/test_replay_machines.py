"""For every program, the replay machines return the values that direct execution returns."""

import numpy as np
import pytest
from fake import Direct, Executor, Offload, meta_of
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from programs_fake import Pass, Program
from rrto_bridge.client import replay
from rrto_bridge.protocol.record import Call, Meta, Ref
from rrto_bridge.protocol.sequence import build, matches, substitute
from rrto_bridge.search.search import Search

SETTINGS = examples(150)


def both(program, schedule, seed=0, infer=None):
    """Check that the program returns the same values on `Offload` as on `Direct`.

    Return the `Offload` device.
    """
    expected = program.run(Direct(), schedule)
    device = Offload(seed, infer)
    assert program.run(device, schedule) == expected
    return device


def infer(op, arguments, keywords):
    """Return the metas of a call by executing it on zeros."""
    def zeros(meta):
        return np.zeros(meta.shape, np.int64)

    results, _ = Executor().kernels[op].call(
        list(substitute(arguments, Meta, zeros)),
        {n: substitute(v, Meta, zeros) for n, v in keywords})
    return tuple(None if r is None else meta_of(r) for r in results)


passes = st.builds(
    Pass, model=st.integers(0, 2), rows=st.sampled_from((1, 2, 2, 2, 3)),
    stop=st.sampled_from((None,) * 6 + (0, 1, 4)), extra=st.sampled_from((None,) * 6 + (0, 1, 5)),
    keep=st.sampled_from((None,) * 5 + (0, 3)))
runs = st.lists(st.tuples(passes, st.integers(1, 5)), min_size=2, max_size=10)


@SETTINGS
@given(seed=st.integers(0, 1 << 30), length=st.integers(2, 12), prefetch=st.booleans(),
       turns=runs, batches=st.booleans())
def test_any_program_gets_the_same_values(seed, length, prefetch, turns, batches):
    schedule = [turn for turn, times in turns for _ in range(times)]
    both(Program(seed, 3, length, prefetch), schedule, seed, infer if batches else None)


@SETTINGS
@given(seed=st.integers(0, 1 << 30), length=st.integers(2, 12))
def test_nothing_is_left_on_the_server(seed, length):
    device = Offload(seed)
    program = Program(seed, 2, length)
    program.run(device, [Pass()] * 8 + [Pass(1), Pass(stop=1), Pass(1)] + [Pass(keep=1)] * 4)
    held = {id(t): t for t in (*program.weights, *program.buffers, program.state)}
    del program
    # Every call also sends the `Free` requests that are still waiting.
    device.item(next(iter(held.values())))
    device.item(next(iter(held.values())))
    assert set(device.executor.tensors) == set(device.metas)


def plain(device, weights, x, extra=None):
    """Run a model with one layer per weight, and return its result.

    `extra`: index of a layer; one more operation runs before this layer.
    """
    for position, weight in enumerate(weights):
        if position == extra:
            x = device.mul(x, 7)
        x = device.add(device.mul(x, 3), weight)
    return x


def weights(device, count=4):
    return [device.put(np.full((1, 4), k + 1)) for k in range(count)]


def data(number, rows=2):
    return np.arange(rows * 4).reshape(rows, 4) + number


def settled(program, device, passes=5):
    """Run passes of a program, so that all later passes are replayed.

    Return a function that counts what has happened since these first passes: the numbers of
    round trips, single calls, messages and runs.
    """
    for number in range(passes):
        program(number)
    before = device.round_trips, device.single, device.messages, device.machine.runs
    return lambda: tuple(b - a for a, b in zip(before, (
        device.round_trips, device.single, device.messages, device.machine.runs), strict=True))


def test_one_round_trip_and_no_single_call_in_steady_state():
    device = Offload()
    own = weights(device)

    def infer_once(number):
        return device.get(plain(device, own, device.put(data(number)))).tolist()

    count = settled(infer_once, device)
    for number in range(200):
        assert infer_once(number) == (data(number) * 81 + 27 + 18 + 9 + 4).tolist()
    trips, single, messages, runs = count()
    assert (trips, single, runs) == (200, 0, 200)
    assert messages <= 3 * 200               # per pass a Finish, a Free and a Start, sent together


def test_values_needed_in_between_cost_one_round_trip_each():
    device = Offload()
    own = weights(device)

    def infer_once(number):
        x = device.put(data(number))
        total = 0
        for weight in own:
            x = device.add(x, weight)
            total += device.item(x)
        return device.get(device.add(x, own[0])), total

    count = settled(infer_once, device)
    for number in range(10):
        infer_once(number)
    assert count()[:2] == (10 * (1 + len(own)), 0)


def test_several_inputs_travel_in_one_message():
    device = Offload()
    own = weights(device)

    def infer_once(number):
        x, y = device.put(data(number)), device.put(data(number + 1))
        z = device.put(data(number + 2))
        return device.get(plain(device, own, device.add(device.add(x, y), z)))

    count = settled(infer_once, device)
    starts = []
    apply = device.server.apply
    device.server.apply = lambda r: (starts.append(r), apply(r))
    infer_once(9)
    kinds = [type(r).__name__ for r in starts]
    assert kinds.count('Start') == 1 and 'More' not in kinds
    assert count()[0] == 1


@pytest.mark.parametrize('position', range(9))
@pytest.mark.parametrize('seed', range(3))
def test_a_branch_at_any_position_with_buffers_before_and_after(position, seed):
    def program(device):
        own, printed = weights(device), []
        buffer = device.put(np.ones((1, 4), np.int64))
        for number in range(30):
            x = device.put(data(number))
            for step in range(9):
                if number % 7 == 6 and step == position:
                    x = device.mul(x, 7)
                if step in (2, 6):
                    device.add_(buffer, device.sum(x))
                x = device.add(device.mul(x, 3), own[step % 4])
            printed.append(device.get(device.add(x, buffer)).tolist())
        return [*printed, device.get(buffer).tolist()]

    device = Offload(seed)
    assert program(device) == program(Direct())
    assert device.machine.finished > 10


@pytest.mark.parametrize('position', range(8))
def test_an_exception_at_any_position(position):
    def program(device):
        own, printed = weights(device, 8), []
        buffer = device.put(np.ones((1, 4), np.int64))
        for number in range(24):
            x = device.put(data(number))
            for step in range(8):
                if number % 5 == 4 and step == position:
                    break
                if step in (2, 6):
                    device.add_(device.row(buffer, 0), device.sum(x))
                x = device.add(x, own[step])
            else:
                printed.append(device.get(device.add(x, buffer)).tolist())
        return [*printed, device.get(buffer).tolist()]

    device = Offload(position)
    assert program(device) == program(Direct())
    assert device.machine.finished > 5


def test_two_models_are_told_apart_by_their_first_calls():
    device = Offload()
    one, two = weights(device), weights(device)
    order = [0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 1, 0, 1, 1]

    def infer_once(number):
        model = (one, two)[order[number]]
        return device.get(plain(device, model, device.put(data(number)))).tolist()

    count = settled(infer_once, device, 8)
    for number in range(8, len(order)):
        infer_once(number)
    trips, single, _, runs = count()
    assert (trips, single, runs) == (10, 0, 10)
    assert device.machine.sequences == 2


def test_a_branch_that_is_known_is_replayed():
    device = Offload()
    own = weights(device, 40)

    def infer_once(number, extra):
        return device.get(plain(device, own, device.put(data(number)), extra)).tolist()

    for number in range(4):
        infer_once(number, None)
    for number in range(8):
        infer_once(number, 30)
    before = device.single
    order = [None, 30, 30, None, 30, None, None, 30]
    switched = []
    apply = device.server.apply
    device.server.apply = lambda r: (switched.append(type(r).__name__), apply(r))
    direct = Direct()
    expected = weights(direct, 40)
    for number, extra in enumerate(order):
        assert infer_once(number, extra) == direct.get(
            plain(direct, expected, direct.put(data(number)), extra)).tolist()
    assert device.single == before
    assert 'Switch' in switched and 'Abandon' not in switched


def test_another_batch_size_is_replayed_at_once():
    device = Offload(infer=infer)
    own = weights(device)

    def infer_once(number, rows):
        x = device.add(device.put(data(number, rows)), device.zeros((rows, 4)))
        flat = device.view(plain(device, own, x), (rows * 4,))
        return device.get(device.view(flat, (rows, 4))).tolist()

    count = settled(lambda n: infer_once(n, 2), device)
    for rows in (3, 1, 7, 2, 3, 16):
        assert infer_once(rows, rows) == (data(rows, rows) * 81 + 58).tolist()
    assert count()[:2] == (6, 0)


def test_tensors_of_a_pass_may_be_used_later():
    def program(device):
        own, history, printed = weights(device), [], []
        for number in range(20):
            x = device.put(data(number))
            middle = device.mul(x, 2)
            if number in (8, 9, 15):
                history.append(middle)
            printed.append(device.get(plain(device, own, middle)).tolist())
            if number == 17:
                printed += [device.get(h).tolist() for h in history]
        return printed

    device = Offload()
    assert program(device) == program(Direct())
    assert device.machine.finished > 8


def test_a_shape_that_changes_with_the_data():
    def program(device):
        own, printed = weights(device), []
        for number in range(24):
            x = device.put(np.array([[1, 2, 0, number % 6 == 5]], np.int64))
            found = device.mul(device.nonzero(x), 5)
            printed.append((found.meta.shape, device.get(device.sum(found)).tolist(),
                            device.item(own[0])))
        return printed

    device = Offload()
    assert program(device) == program(Direct())
    assert device.machine.finished > 8


def test_a_program_that_never_repeats_says_so_once(monkeypatch):
    monkeypatch.setattr(replay, 'HOPELESS', 60)
    device = Offload(search=Search(limit=40))
    own = weights(device)
    for number in range(40):
        device.get(device.mul(device.put(data(number)), number))
    assert len(device.notices) == 1 and 'no sequence repeats' in device.notices[0]
    assert device.machine.runs == 0
    del own


def test_a_program_of_many_calls_is_not_said_to_be_without_a_sequence_before_it_has_one():
    device = Offload()
    for number in range(7):
        x = device.put(data(number))
        for _ in range(2700):
            x = device.mul(x, 1)
        found = device.nonzero(device.put(np.arange(number + 2)))
        device.get(found)
    assert device.machine.search.observed > 1 << 14
    assert not device.notices


def test_a_freed_model_is_forgotten():
    device = Offload()
    for model in range(3):
        own = weights(device, 6)
        for number in range(6):
            device.get(plain(device, own, device.put(data(number))))
        assert device.machine.sequences == 1, model
        del own
    assert device.machine.finished == 9


def test_an_error_on_the_server_reaches_the_program_which_goes_on():
    device = Offload()
    own = weights(device)

    def infer_once(number):
        return device.get(plain(device, own, device.put(data(number)))).tolist()

    for number in range(5):
        infer_once(number)
    kernel = device.executor.kernels['add']
    failing = [True]

    def add(a, k):
        if failing:
            raise MemoryError('full')
        return kernel.call(a, k)

    for step in device.server._plans[0].instructions:
        if step.kind == '' and len(step.holes) == 2:
            step.call = add
    with pytest.raises(RuntimeError, match='full'):
        infer_once(5)
    failing.clear()
    for number in range(6, 14):
        assert infer_once(number) == (data(number) * 81 + 58).tolist()
    assert device.machine.finished > 5


def test_when_the_server_is_lost_the_calls_so_far_are_known():
    device = Offload()
    own = weights(device)
    for number in range(5):
        device.get(plain(device, own, device.put(data(number))))
    x = device.put(data(5))
    y = device.mul(x, 3)
    calls = device.machine.lost()
    assert [c.op for c, _ in calls] == ['htod', 'mul']
    assert calls[0][1] == data(5).tobytes() and calls[1][0].results == (y.handle,)
    assert device.machine.sequences == 0 and device.machine.expected is None


def test_a_sequence_that_fails_pauses():
    device = Offload()
    own = weights(device, 20)
    for number in range(5):
        device.get(plain(device, own, device.put(data(number))))
    runs = device.machine.runs
    for number in range(60):
        device.get(plain(device, [*own[:15], own[number % 7], own[0]], device.put(data(number))))
    assert device.machine.runs - runs < 15


def test_a_bound_tensor_is_from_before_the_pass():
    def program(device):
        own, printed = weights(device), []
        ahead = device.put(data(0))
        for number in range(24):
            x, ahead = ahead, device.put(data(number))
            if number % 8 == 7:
                x = ahead
            printed.append(device.get(plain(device, own, x)).tolist())
        return printed

    device = Offload()
    assert program(device) == program(Direct())
    assert device.machine.finished > 8


def test_a_scalar_of_another_type_is_another_call():
    step = build([Call('mul', (Ref(1), 1, (2, 0.0)), (), (2,), (None,))], {}, ()).steps[0]
    assert matches(step, Call('mul', (Ref(1), 1, (2, 0.0))), 0, []) == []
    for other in ((1.0, (2, 0.0)), (True, (2, 0.0)), (1, (2, -0.0)), (1, (2.0, 0.0)), (1, (2,)),
                  (1, 2)):
        assert matches(step, Call('mul', (Ref(1), *other)), 0, []) is None
    assert matches(step, Call('mul', (1, 1, (2, 0.0))), 0, []) is None


def test_a_rival_that_was_ruled_out_does_not_come_back():
    def program(device):
        own, printed = weights(device, 24), []
        both_ways = [(3, 0)] * 4 + [(7, 1)] * 8 + [(3, 0), (7, 1)] * 3 + [(3, 1), (7, 0)] * 4
        for number, (factor, last) in enumerate(both_ways):
            x = device.put(data(number))
            for weight in own[2:]:
                x = device.add(x, weight)
            x = device.mul(x, factor)
            for weight in own[2:]:
                x = device.add(x, weight)
            printed.append(device.get(device.add(x, own[last])).tolist())
        return printed

    device = Offload()
    assert program(device) == program(Direct())
    assert device.machine.finished > 8


def test_a_run_opens_at_a_boundary_only():
    device = Offload()
    own = weights(device)
    for _ in range(26):  # without an input, the search finds the sequence after 24 passes
        device.item(device.sum(own[0]))
    runs = device.machine.runs
    assert runs > 0
    device.mul(own[0], 2)
    device.item(device.sum(own[0]))
    assert device.machine.runs == runs
    device.item(device.sum(own[0]))
    assert device.machine.runs == runs + 1


def test_what_is_kept_now_and_then_is_kept_for_good():
    device = Offload()
    own = weights(device)

    def infer_once(number, keep):
        one = device.mul(device.put(data(number)), 2)
        two = device.mul(one, 3)
        return device.get(plain(device, own, two)), (None, one, two)[keep]

    for number in range(18):
        kept = infer_once(number, number // 6)[1]
    single = device.single
    asked = []
    apply = device.server.apply
    device.server.apply = lambda r: (asked.append(type(r).__name__), apply(r))
    for number in range(9):
        kept = infer_once(number, number % 3)[1]
    assert device.single == single and 'Abandon' not in asked
    del kept


@pytest.mark.parametrize('order', ['AAB', 'AB', 'ABBB', 'AABBBBBB'])
def test_a_pass_may_use_what_a_replayed_one_left(order):
    """A pass may use a tensor that a replayed pass of another model has made.

    One model runs on key frames. Another model runs on the remaining frames and uses the features
    of the latest key frame.
    """
    def program(device):
        own, other, printed = weights(device), weights(device), []
        for number, model in enumerate('AAAAA' + order * 12):
            if model == 'A':
                features = plain(device, own, device.put(data(number)))
                printed.append(device.get(device.sum(features)).tolist())
            else:
                x = device.put(data(number, 1))
                printed.append(device.get(device.add(plain(device, other, x), features)).tolist())
        return printed

    device = Offload()
    assert program(device) == program(Direct())
    assert device.machine.sequences >= 2
    single = device.single
    assert single < (5 + 12 * len(order)) * 10 / 2   # most calls were replayed


def test_calls_of_a_closed_run_are_told():
    device = Offload()
    own = weights(device)
    for number in range(6):
        device.get(plain(device, own, device.put(data(number))))
    assert device.machine.closed is None
    x = device.put(data(6))
    calls = device.machine.closed()
    assert [c.op for c, _ in calls] == ['htod', *['mul', 'add'] * 4, 'dtoh']
    assert calls[0][1] == data(5).tobytes()
    device.sum(x)
    assert [c.op for c, _ in device.machine.closed()] == ['htod']
    device.sum(x)
    assert device.machine.closed is None
