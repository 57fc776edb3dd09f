"""A predicted meta (shape, strides, dtype and offset) equals the meta of the result.

Calls of an unknown kind are not predicted.
"""

import pytest
import torch
from remote import since
from rrto_bridge.client import predict
from rrto_bridge.client.infer import infer, sketch
from rrto_bridge.client.predict import Predictor
from rrto_bridge.execution.context import Context
from rrto_bridge.protocol.record import Call, Ref
from rrto_bridge.protocol.tensors import meta_of


def aten(op, *arguments, **keywords):
    """Return (call, metas of its tensors, answer of the server) for an operator call."""
    context = Context(torch.device('cpu'), 1 << 30)
    metas = []

    def name(value):
        if isinstance(value, torch.Tensor):
            metas.append(meta_of(value))
            context.add(len(metas), value)
            return Ref(len(metas))
        return tuple(map(name, value)) if isinstance(value, (tuple, list)) else value

    call = Call(f'aten.{op}', name(arguments), tuple((k, name(v)) for k, v in keywords.items()))
    return call, tuple(metas), context.execute(call.op, call.arguments, call.keywords, 100)


@pytest.fixture
def learnt(monkeypatch):
    monkeypatch.setattr(predict, 'WAITS', 0)
    return Predictor(sketch, infer)


def image(n, size):
    return torch.rand(n, 4, size, size)


CALLS = {
    'add': lambda n: aten('add.Tensor', torch.rand(n, 4), torch.rand(4), alpha=2),
    'in place': lambda n: aten('relu_.default', torch.rand(n, 4)),
    'view': lambda n: aten('view.default', torch.rand(n, 4), (n * 2, 2)),
    'of a view': lambda n: aten('transpose.int', torch.rand(2 * n, 4)[n:], 0, 1),
    'slice': lambda n: aten('slice.Tensor', torch.rand(n, 4), 0, 1, n - 1),
    'strides': lambda n: aten('clone.default', torch.rand(4, n).t()),
    'two results': lambda n: aten('sort.default', torch.rand(n, 4), 1),
    'list': lambda n: aten('unbind.int', torch.rand(n, 4)),
    'cat': lambda n: aten('cat.default', (torch.rand(n, 4), torch.rand(2, 4))),
    'norm': lambda n: aten('native_batch_norm.default', image(2, n), *torch.rand(4, 4), False, 0.1,
                           1e-5),
    'convolution': lambda n: aten('convolution.default', image(2, n), torch.rand(3, 4, 3, 3), None,
                                  (1, 1), (1, 1), (1, 1), False, (0, 0), 1),
    'attention': lambda n: aten('scaled_dot_product_attention.default',
                                *torch.rand(3, 1, 2, n, 8)),
    'attention of one': lambda n: aten('scaled_dot_product_attention.default',
                                       torch.rand(1, 1, 2, 8).transpose(1, 2),
                                       *torch.rand(2, 1, 2, n, 8)),
    'norm of a batch': lambda n: aten('native_batch_norm.default', image(2, n), *torch.rand(4, 4),
                                      True, 0.1, 1e-5),
    'channels last': lambda n: aten('relu.default', image(2, n).to(
        memory_format=torch.channels_last))}


@pytest.mark.parametrize('make', CALLS.values(), ids=CALLS)
def test_another_size_is_predicted(learnt, make):
    learnt.learn(*make(3))
    for size in (4, 7, 12):
        call, metas, answer = make(size)
        assert learnt.predict(call, metas) == answer


@pytest.mark.parametrize('other', [
    lambda: aten('add.Tensor', torch.rand(5, 4), torch.rand(4), alpha=2.0),
    lambda: aten('add.Tensor', torch.rand(5, 4).double(), torch.rand(4), alpha=2),
    lambda: aten('add.Tensor', torch.rand(4, 5).t(), torch.rand(4), alpha=2),
    lambda: aten('add.Tensor', torch.rand(1, 5, 4), torch.rand(4), alpha=2),
    lambda: aten('add.Tensor', torch.rand(0, 4), torch.rand(4), alpha=2),
    lambda: aten('sub.Tensor', torch.rand(5, 4), torch.rand(4), alpha=2)])
def test_another_kind_of_call_is_not(learnt, other):
    learnt.learn(*CALLS['add'](3))
    call, metas, _ = other()
    assert learnt.predict(call, metas) is None


def test_an_odd_stride_of_one_row_is_a_kind_of_its_own(learnt):
    """`layer_norm` drops it, and its shape rule keeps it."""
    def norm(rows):
        return aten('native_layer_norm.default', rows, (8,), *torch.rand(2, 8), 1e-5)

    learnt.learn(*norm(torch.rand(1, 5, 8)))
    odd = torch.rand(1, 8, 3, 3).to(memory_format=torch.channels_last).flatten(2).transpose(1, 2)
    assert odd.stride() == (8, 8, 1)
    call, metas, answer = norm(odd)
    assert learnt.predict(call, metas) is None
    learnt.learn(call, metas, answer)
    assert learnt.predict(call, metas) in (None, answer)


def test_an_answer_that_no_rule_gives_is_never_predicted(learnt):
    call, metas, answer = CALLS['add'](3)
    learnt.learn(call, metas, answer._replace(stride=(8, 2)))
    assert learnt.predict(*CALLS['add'](5)[:2]) is None


def test_a_call_that_is_wrong_is_left_to_the_server(learnt):
    learnt.learn(*CALLS['view'](3))
    call, metas, _ = CALLS['view'](5)
    assert learnt.predict(Call(call.op, (call.arguments[0], (7, 7))), metas) is None


def test_a_slow_rule_is_asked_only_in_a_program_that_has_waited_often():
    asked = []

    def slow(*call):
        asked.append(call)
        return infer(*call)

    predictor = Predictor(lambda *call: 1 / 0, slow)
    call, metas, answer = CALLS['add'](3)
    another, its_metas, expected = CALLS['add'](4)
    predictor.learn(call, metas, answer)
    for _ in range(predict.WAITS):
        assert predictor.predict(another, its_metas) is None and not asked
        predictor.learn(call, metas, answer)
    assert predictor.predict(another, its_metas) == expected


@pytest.mark.parametrize('name', ['convolution', 'norm', pytest.param(
    'attention', marks=since((2, 8), 'attention that lays its result out as the query')),
                                  'attention of one'])
def test_a_fast_rule_is_asked_from_the_first_call_on(name):
    predictor = Predictor(sketch, infer)
    predictor.learn(*CALLS[name](5))
    call, metas, answer = CALLS[name](7)
    assert predictor.predict(call, metas) == answer
