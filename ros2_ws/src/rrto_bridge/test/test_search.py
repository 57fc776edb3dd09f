"""The search accepts a sequence only after enough repetitions, when the last repetition ends."""

import pickle

import pytest
from logs import DTOH, HTOD, generate
from oracle import answer, wrong
from rrto_bridge.protocol.record import Call, Meta, Ref
from rrto_bridge.protocol.sequence import Bound, Own
from rrto_bridge.search.search import Search

M = Meta((1, 4), (4, 1), 'float32')
ITEM = 'aten._local_scalar_dense.default'


class Program:
    """Sends calls to a search; `found` is the last sequence that the search has found, or None."""

    def __init__(self, **options):
        self.search = Search(**options)
        self.handles = 0
        self.found = None

    def call(self, op, *arguments, meta=M, results=1):
        wanted = op in (DTOH, ITEM)
        made = () if wanted else tuple(range(self.handles, self.handles + results))
        self.handles += len(made)
        call = Call(op, arguments, (), made, (meta,) * len(made), wanted)
        self.found = self.search.observe(call) or self.found
        return Ref(made[0]) if made else None

    def infer(self, weight, scalar=2):
        x = self.call(HTOD)
        y = self.call('aten.mul.Tensor', x, weight, scalar)
        self.call(DTOH, y)


@pytest.mark.parametrize('repetitions', [3, 4, 7])
def test_accepts_after_exactly_r_passes(repetitions):
    program = Program(repetitions=repetitions)
    weight = program.call(HTOD)
    for count in range(1, repetitions + 1):
        assert program.found is None
        program.infer(weight)
        program.search.freed(program.handles - 1 if count % 2 else -5)
    steps = program.found.steps
    assert [s.op for s in steps] == [HTOD, 'aten.mul.Tensor', DTOH]


@pytest.mark.parametrize('seed', range(0, 500, 2))
def test_made_logs_that_repeat_are_accepted_at_the_third_pass(seed):
    log = generate(seed)
    found, at = answer(Search(), log)
    assert wrong(log, at, found, 3) == ''
    assert log.clean[at] == 3


@pytest.mark.parametrize('seed', range(1, 500, 2))
def test_made_logs_where_nothing_comes_three_times_are_refused(seed):
    assert answer(Search(), generate(seed, steady=False)) == (None, None)


@pytest.mark.parametrize('scalars', [(1, 1.0, True), (0.0, -0.0, 0), ('1', 1, 1j)])
def test_scalars_of_different_type_are_different(scalars):
    program = Program()
    weight = program.call(HTOD)
    for scalar in scalars * 3:
        assert program.found is None
        program.infer(weight, scalar)
    assert len(program.found.steps) == 9


def test_nan_equals_itself():
    program = Program()
    weight = program.call(HTOD)
    for _ in range(3):
        program.infer(weight, float('nan'))
    assert program.found


def test_weights_that_change_are_no_sequence():
    program = Program()
    for _ in range(20):
        program.infer(program.call(HTOD, meta=M._replace(offset=program.handles)))
    assert program.found is None


def test_prefetched_input_is_bound():
    program = Program()
    weight = program.call(HTOD)
    ahead = program.call(HTOD)
    for _ in range(3):
        assert program.found is None
        x, ahead = ahead, program.call(HTOD)
        program.call(DTOH, program.call('aten.mul.Tensor', x, weight))
    assert program.found.steps[0].op == HTOD
    assert program.found.steps[1].arguments[0] == Bound(0)
    assert program.found.bound == (M,)


def test_two_outputs_are_one_pass():
    program = Program()
    for _ in range(4):
        x = program.call(HTOD)
        program.call(DTOH, program.call('aten.neg.default', x))
        program.call(DTOH, program.call('aten.abs.default', x))
    assert [s.op for s in program.found.steps] == [
        HTOD, 'aten.neg.default', DTOH, 'aten.abs.default', DTOH]


def test_inner_loop_without_input_is_not_taken_for_a_pass():
    program = Program()
    weight = program.call(HTOD)
    for _ in range(3):
        assert program.found is None
        program.call(HTOD)
        for _ in range(5):
            program.call('aten.add_.Tensor', weight, weight, results=0)
            program.call(ITEM, weight)
        program.call(DTOH, weight)
    assert len(program.found.steps) == 12


def test_a_pass_without_input_is_accepted_in_the_end():
    program = Program()
    weight = program.call(HTOD)
    for count in range(24):
        assert program.found is None, count
        program.call(ITEM, program.call('aten.sum.default', weight))
    assert program.found


def test_what_lives_on_is_kept():
    program = Program()
    weight = program.call(HTOD)
    for _ in range(3):
        x = program.call(HTOD)
        y = program.call('aten.mul.Tensor', x, weight)
        z = program.call('aten.neg.default', y)
        program.search.freed(y.handle)
        program.call(DTOH, z)
    assert program.found.kept == {0, 2}
    assert program.found.steps[1].results == (Own(1),)


def test_no_pass_spans_a_replayed_one():
    whole, broken = Program(), Program()
    for program in (whole, broken):
        weight = program.call(HTOD)
        for _ in range(6):
            x = program.call(HTOD)
            program.call(ITEM, x)
            if program is broken:
                program.search.interrupt({})
            program.call(DTOH, program.call('aten.mul.Tensor', x, weight))
    assert len(whole.found.steps) == 4
    assert broken.found is None


def test_passes_apart_count_together():
    program = Program()
    weight = program.call(HTOD)
    for _ in range(3):
        # This call is not part of a pass, so the sequence must not contain it.
        program.call('aten.neg.default', weight)
        program.search.interrupt({})
        program.infer(weight)
    assert len(program.found.steps) == 3


def test_an_input_that_was_dropped_counts_for_no_pass():
    program = Program()
    weight = program.call(HTOD)
    for _ in range(10):
        program.call(HTOD)
        program.search.interrupt({})
        program.call(ITEM, program.call('aten.sum.default', weight))
    assert program.found is None


def test_memory_is_bounded_and_the_search_goes_on():
    program = Program(limit=100)
    weight = program.call(HTOD)
    sizes = []
    for k in range(1000):
        program.infer(weight, k)
        if k % 100 == 99:
            sizes.append(len(pickle.dumps(program.search)))
    assert max(sizes) < 1.2 * sizes[4]
    for _ in range(5):
        program.infer(weight)
    assert program.found


def test_noise_between_passes_starts_the_count_again():
    program = Program()
    weight = program.call(HTOD)
    for _ in range(2):
        program.infer(weight)
    program.call(DTOH, weight)
    for _ in range(2):
        program.infer(weight)
    assert program.found is None
    program.infer(weight)
    assert program.found


def test_same_log_same_answer():
    log = generate(8)
    (one, at), (other, again) = answer(Search(), log), answer(Search(), log)
    assert at == again and one.keys == other.keys


def test_two_repetitions_may_be_initialisation():
    with pytest.raises(ValueError, match='at least 3'):
        Search(repetitions=2)
