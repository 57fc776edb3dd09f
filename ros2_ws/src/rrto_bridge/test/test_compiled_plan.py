"""The replaying server refuses invalid runs; it can undo a run (replay of a pass) at every step."""

import numpy as np
import pytest
from fake import Executor, meta_of
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rrto_bridge.execution.replay_server import MAX_SEQUENCES, ReplayServer
from rrto_bridge.protocol.actions import (
    Abandon,
    Define,
    Finish,
    Forget,
    Free,
    More,
    Start,
    Switch,
    Value,
)
from rrto_bridge.protocol.errors import OutOfMemory, RemoteError
from rrto_bridge.protocol.record import DTOH, HTOD, Call, Persistent, Ref
from rrto_bridge.protocol.sequence import Bound, Own, Sequence, Step, build

M = meta_of(np.zeros((1, 4), np.int64))
ONE = meta_of(np.zeros((1, 1), np.int64))
X = np.arange(4).tobytes()
BUFFER, STATE = 1, 2


def sequence(number=0):
    """Return a sequence that writes a buffer in three ways and draws a random number.

    The sequence writes the buffer directly, by a view, and by an operator that does not return the
    buffer.
    """
    calls = [
        Call(HTOD, (), (), (10,), (M,)),
        Call('add_', (Ref(BUFFER), Ref(10)), (), (BUFFER,), (M,)),
        Call('noise', (Ref(10),), (), (11,), (M,)),
        Call('row', (Ref(BUFFER), 0), (), (12,), (M,)),
        Call('add_', (Ref(12), Ref(11)), (), (12,), (M,)),
        Call('track', (Ref(12),), (('total', Ref(BUFFER)),), (13,), (M,)),
        Call('add', (Ref(13), Ref(STATE)), (), (14,), (M,)),
        Call('item', (Ref(13),), (), (), (), True),
        Call(HTOD, (), (), (15,), (M,)),
        Call('add_', (Ref(BUFFER), Ref(15)), (), (BUFFER,), (M,)),
        Call(DTOH, (Ref(14),), (), (), (), True)]
    made = build(calls, {STATE: M}, {14})
    made.number = number
    return made


def server():
    executor = Executor()
    executor.tensors = {BUFFER: np.full((1, 4), 5), STATE: np.full((1, 4), 7)}
    machine = ReplayServer(executor)
    machine.apply(Define(sequence()))
    return machine, executor


def one_by_one(count, failing=''):
    """Execute the first `count` steps without a plan; return the executor.

    The executor then has the created tensors, with handles from 100 on, and the new state
    of the generator. Operators named `failing` fail. Calls that use results of a failed
    call also fail.
    """
    _, executor = server()
    calls = sequence().calls(count, 100, [STATE])
    for call in calls:
        if call.op == DTOH or call.op == 'item':
            continue
        if call.op == failing or not executor.tensors.keys() >= set(call.inputs()):
            executor.lost.update(dict.fromkeys(call.fresh(), 'RuntimeError'))
            continue
        if call.op == HTOD:
            results = (executor.upload(X, M),)
        else:
            args = [executor.tensors[a.handle] if isinstance(a, Ref) else a for a in call.arguments]
            keys = {n: executor.tensors[v.handle] for n, v in call.keywords}
            results, _ = executor.kernels[call.op].call(args, keys)
        for handle, tensor in zip(call.results, results, strict=True):
            executor.tensors.setdefault(handle, tensor)
    return executor


OPERATORS = ('', 'add_', 'noise', 'row', 'track', 'add', 'item')


@examples(100)
@given(ahead=st.integers(0, 12), count=st.integers(0, 11), late=st.booleans(),
       failing=st.sampled_from(OPERATORS), finish=st.booleans(), told=st.booleans())
def test_ended_anywhere_it_is_as_if_made_one_by_one(ahead, count, late, failing, finish, told):
    machine, executor = server()
    for step in machine._plans[0].instructions:
        if step.call is not None and step.call == getattr(executor.kernels.get(failing), 'call', 0):
            step.call = fail
    machine.apply(Start(1, 0, 100, (X,), () if late else (STATE,)))
    list(machine.advance(ahead))
    machine.apply(More(1, (X,), (STATE,) if late else ()))
    list(machine.advance(ahead))
    expected = one_by_one(11 if finish else count, failing)
    ends = {h for h in {*expected.tensors, *expected.lost} if h >= 100}
    alive = tuple(ends & {104}) if finish else tuple(ends)
    error = machine.apply(Finish(1, alive) if finish else Abandon(1, count, alive, told))
    ops = [step.op for step in sequence().steps]
    failed = failing in ops[:11 if finish else count] and (finish or not told)
    assert isinstance(error, ZeroDivisionError) == failed
    assert {h for h in executor.tensors if h >= 100} == expected.tensors.keys() & set(alive)
    assert executor.lost.keys() == expected.lost.keys() & set(alive)
    for handle, tensor in executor.tensors.items():
        assert np.array_equal(tensor, expected.tensors[handle]), handle
    assert executor.random() == expected.random()
    assert not machine.ready and executor.used == 0


def fail(arguments, keywords):
    raise ZeroDivisionError


def test_finished_it_is_as_if_made_one_by_one():
    machine, executor = server()
    machine.apply(Start(1, 0, 100, (X, X), (STATE,)))
    values = list(machine.advance(1000))
    assert [v.index for v in values] == [0, 1]
    machine.apply(Finish(1, (104,)))
    expected = one_by_one(11)
    assert np.array_equal(values[1].value, expected.tensors[104])
    assert set(executor.tensors) == {BUFFER, STATE, 104}
    assert np.array_equal(executor.tensors[BUFFER], expected.tensors[BUFFER])
    assert executor.used == 0


def test_a_tensor_that_is_missing_is_an_error_of_the_run():
    machine, executor = server()
    machine.apply(Start(1, 0, 100, (X,), ()))
    machine.apply(More(1, (X,), (99,)))
    value, = list(machine.advance(1000))
    assert value == Value(1, 0, error='RemoteError: no tensor 99') and not machine.ready
    machine.apply(Abandon(1, 0, ()))
    machine.apply(Start(2, 0, 100, (X, X), (STATE,)))
    assert len(list(machine.advance(1000))) == 2


def chain(length, views):
    """Return a sequence in which each tensor is computed from the previous tensor.

    `views`: whether the operators read the previous tensor through a view.
    """
    calls = [Call(HTOD, (), (), (10,), (M,))]
    for k in range(length):
        if views:
            calls.append(Call('row', (Ref(10 + k), 0), (), (100 + k,), (M,)))
        calls.append(Call('mul', (Ref(100 + k if views else 10 + k), 3), (), (11 + k,), (M,)))
    calls.append(Call(DTOH, (Ref(10 + length),), (), (), (), True))
    return build(calls, {}, {10 + length})


@pytest.mark.parametrize('views', [False, True])
def test_a_run_counts_what_it_holds_at_a_time(views):
    """A run needs memory for at most the input and two tensors at a time, 32 bytes each.

    After the last step it needs memory for the input and one tensor.
    """
    for limit, answer in ((96, ''), (95, 'OutOfMemory: full')):
        machine, executor = server()
        made = chain(20, views)
        made.number = 1
        machine.apply(Define(made))
        executor.limit = limit
        machine.apply(Start(1, 1, 100, (X,), ()))
        value, = list(machine.advance(1000))
        assert value.error == answer
        if answer:
            machine.apply(Abandon(1, 0, ()))
            assert executor.used == 0 and set(executor.tensors) == {BUFFER, STATE}
        else:
            assert executor.used == 64
            machine.apply(Finish(1, (100 + made.slots - 1,)))
            assert executor.used == 0


def test_stops_where_a_shape_is_not_as_recorded():
    machine, executor = server()
    calls = [Call(HTOD, (), (), (10,), (M,)),
             Call('nonzero', (Ref(10),), (), (11,), (meta_of(np.zeros(3, np.int64)),), True),
             Call('add_', (Ref(BUFFER), Ref(10)), (), (BUFFER,), (M,)),
             Call(DTOH, (Ref(10),), (), (), (), True)]
    nonzero = build(calls, {}, ())
    nonzero.number = 1
    machine.apply(Define(nonzero))
    machine.apply(Start(1, 1, 100, (np.array([1, 0, 0, 2]).tobytes(),), ()))
    value, = list(machine.advance(1000))
    assert value.metas == (meta_of(np.zeros(2, np.int64)),)
    assert executor.tensors[BUFFER].tolist() == [[5] * 4]
    machine.apply(Abandon(1, 2, (101,)))
    assert executor.tensors[101].tolist() == [0, 3]


def test_inputs_of_a_run_are_the_programs_memory():
    """The inputs in the messages `Start` and `More` count towards the program's memory.

    If they need too much memory, the run fails.
    """
    machine, executor = server()
    executor.limit = 200
    machine.apply(Start(1, 0, 100, (X,), ()))
    assert executor.used == 32 * 2     # the input and the saved buffer
    machine.apply(More(1, (bytes(200),), (STATE,)))
    value, = machine.advance(1000)
    assert value.error == 'OutOfMemory: full' and not machine.ready
    assert isinstance(machine.apply(Abandon(1, 11, ())), OutOfMemory)
    assert executor.used == 0
    machine.apply(Start(2, 0, 100, (bytes(300),), ()))
    value, = machine.advance(1000)
    assert value.error == 'OutOfMemory: full'
    machine.apply(Abandon(2, 0, ()))
    executor.limit = 1000
    machine.apply(Start(3, 0, 100, (X, X), (STATE,)))
    assert len(list(machine.advance(1000))) == 2 and executor.used >= 64
    machine.apply(Finish(3, ()))
    assert executor.used == 0


def test_a_value_is_there_before_the_rest_is_run():
    machine, executor = server()
    machine.apply(Start(1, 0, 100, (X, X), (STATE,)))
    values = machine.advance(1000)
    assert next(values).index == 0 and machine.ready
    assert [v.index for v in values] == [1] and not machine.ready


def test_runs_as_far_as_it_has_inputs():
    machine, _ = server()
    machine.apply(Start(1, 0, 100, (X,), ()))
    assert list(machine.advance(1000)) == []
    machine.apply(More(1, (), (STATE,)))
    assert [v.index for v in list(machine.advance(1000))] == [0]
    assert not machine.ready


def test_switch_begins_again_under_a_new_number():
    machine, executor = server()
    machine.apply(Define(sequence(7)))
    machine.apply(Start(1, 0, 100, (X,), (STATE,)))
    first = list(machine.advance(1000))
    machine.apply(Switch(1, 2, 7))
    second = list(machine.advance(1000))
    assert [(v.run, v.index) for v in first + second] == [(1, 0), (2, 0)]
    assert first[0].value == second[0].value
    machine.apply(Abandon(2, 0, ()))
    assert executor.tensors[BUFFER].tolist() == [[5] * 4]


def test_a_failing_operator_stops_the_run_and_can_be_undone():
    machine, executor = server()
    kernel = executor.kernels['add']
    executor.kernels['add'] = kernel.__class__(lambda a, k: 1 / 0)
    broken = sequence(9)
    machine.apply(Define(broken))
    machine.apply(Start(1, 9, 100, (X,), (STATE,)))
    value, = list(machine.advance(1000))
    assert 'ZeroDivisionError' in value.error and (value.run, value.index) == (1, 0)
    assert not machine.ready
    machine.apply(Abandon(1, 0, ()))
    assert executor.tensors[BUFFER].tolist() == [[5] * 4]


@pytest.mark.parametrize('steps', [
    (), (Step('add', (Own(0), Own(0)), (), (Own(0),), (M,)),),
    (Step(HTOD, (), (), (Own(1),), (M,)),), (Step(HTOD, (), (), (), ()),),
    (Step(HTOD, (), (), (Own(0),), (None,)),), (Step(HTOD, (), (), (Own(0),), ()),),
    (Step(DTOH, (), (), (), (), True),),
    (Step('add', (Bound(1), Bound(0)), (), (Own(0),), (M,)),),
    (Step('add', (Bound(0), Bound(0)), (), (Own(0),), (M,)),),
    (Step('add_', (Persistent(1), Persistent(1)), (), (Persistent(9),), (M,)),)])
def test_sequences_that_cannot_be_are_refused(steps):
    machine, _ = server()
    bad = Sequence(steps, frozenset())
    bad.number = 5
    with pytest.raises(RemoteError):
        machine.apply(Define(bad))


@pytest.mark.parametrize('requests', [
    (Start(1, 3, 100, (), ()),), (More(1, (), ()),), (Finish(1, ()),), (Abandon(1, 0, ()),),
    (Switch(1, 2, 0),), (Define(sequence()),),
    (Start(1, 0, 100, (), ()), Start(2, 0, 200, (), ())),
    (Start(1, 0, 100, (), (STATE, STATE)),),
    (Start(1, 0, 100, (X,), (99,)), Finish(1, ())),
    (Start(1, 0, 100, (), ()), Switch(1, 2, 8)),
    (Start(1, 0, 100, (), ()), Abandon(1, 5, ())),
    (Start(1, 0, 100, (X,), ()), Abandon(1, 999, ())),
    (Start(1, 0, 100, (X,), ()), Abandon(1, -1, (100,))),
    (Start(1, 0, 100, (X,), ()), Abandon(1, 2, (BUFFER,))),
    (Start(1, 0, 100, (X, X), (STATE,)), Finish(1, (100,))),
    (Start(1, 0, BUFFER, (X,), ()), Abandon(1, 1, (BUFFER,))),
    (Start(1, 0, 100, (X,), ()), Finish(1, ())),
    tuple(Define(sequence(k)) for k in range(1, MAX_SEQUENCES + 1))])
def test_requests_that_cannot_be_are_refused_and_harm_nobody(requests):
    machine, executor = server()
    other, untouched = server()
    with pytest.raises(RemoteError):
        for request in requests:
            machine.apply(request)
    for handle, tensor in untouched.tensors.items():
        assert np.array_equal(executor.tensors[handle], tensor)


def test_forgotten_sequences_and_freed_tensors_are_gone():
    machine, executor = server()
    machine.apply(Forget(0))
    machine.apply(Free((BUFFER, 12345)))
    assert set(executor.tensors) == {STATE}
    with pytest.raises(RemoteError):
        machine.apply(Start(1, 0, 100, (), ()))
