"""`build` makes steps from a recorded pass; `instantiate` makes the calls of a pass from steps."""

from rrto_bridge.protocol.record import DTOH, HTOD, Call, Meta, Persistent, Ref
from rrto_bridge.protocol.sequence import Bound, Own, build, instantiate

M = Meta((2, 2), (2, 1), 'float32')
WEIGHT, STATE = 3, 40


def recorded():
    return [
        Call(HTOD, (), (), (50,), (M,)),
        Call('split', (Ref(50), (Ref(WEIGHT), 1.0)), (('out', Ref(STATE)),), (51, None, 52),
             (M, None, M)),
        Call('add_', (Ref(51), Ref(STATE)), (), (51,), (M,)),
        Call('row', (Ref(52), 0), (), (53,), (M,)),
        Call(DTOH, (Ref(51),), (), (), (), True)]


def test_handles_become_roles():
    sequence = build(recorded(), {STATE: M}, {50, 53})
    split, add = sequence.steps[1:3]
    assert split.arguments == (Own(0), (Persistent(WEIGHT), 1.0))
    assert split.keywords == (('out', Bound(0)),)
    assert split.results == (Own(1), None, Own(2))
    assert add.results == (Own(1),)
    assert sequence.slots == 4
    assert sequence.kept == {0, 3}
    assert sequence.bound == (M,)
    assert sequence.made == [0, 1, 3, 3, 4, 4]
    assert sequence.needs == [0, 1]


def test_roles_become_handles_again():
    sequence = build(recorded(), {STATE: M}, ())
    assert sequence.calls(5, 50, [STATE]) == recorded()
    assert instantiate(sequence.steps[2], 90, [7]).arguments == (Ref(91), Ref(7))


def test_roles_of_the_same_number_differ():
    assert len({Own(3), Bound(3), Persistent(3)}) == 3


def test_common_prefix_minds_types():
    def with_scalar(scalar):
        calls = recorded()
        calls[3] = Call('row', (Ref(52), scalar), (), (53,), (M,))
        return build(calls, {STATE: M}, ())

    one = with_scalar(0)
    assert one.common(with_scalar(0)) == 5
    for other in (1, False, 0.0, -0.0):
        assert one.common(with_scalar(other)) == 3
    assert one.common(build(recorded()[:2], {STATE: M}, ())) == 2
    assert one.common(build(recorded(), {}, ())) == 1


def test_metas_are_those_at_the_end():
    calls = recorded()
    turned = M._replace(stride=(1, 2))
    calls[2] = Call('t_', (Ref(51),), (), (51,), (turned,))
    assert build(calls, {}, ()).metas == {0: M, 1: turned, 2: M, 3: M}
