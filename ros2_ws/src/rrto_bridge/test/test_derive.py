"""Sequences for other batch sizes are derived from one sequence whose arguments contain sizes."""

import pytest
from rrto_bridge.client.infer import sketch as infer
from rrto_bridge.protocol.record import DTOH, HTOD, Call, Meta, Ref
from rrto_bridge.protocol.sequence import build, substitute
from rrto_bridge.protocol.tensors import contiguous
from rrto_bridge.search.derive import derive


def meta(shape):
    return contiguous(shape, 'float32')


def model(batch):
    """Return calls like those of attention; handles 0 and 1 are weights."""
    b = batch
    rows = [
        (HTOD, ()),
        ('aten.expand.default', (Ref(0), (b, -1, -1))),
        ('aten.cat.default', ((Ref(11), Ref(10)), 1)),
        ('aten.transpose.int', (Ref(12), 0, 1)),
        ('aten.cat.default', ((Ref(13),),)),
        ('aten.view.default', (Ref(14), (7 * b, 8))),
        ('aten.mm.default', (Ref(15), Ref(1))),
        ('aten.view.default', (Ref(16), (7, b, 8))),
        ('aten.view.default', (Ref(17), (7, b * 2, 4))),
        ('aten.transpose.int', (Ref(18), 0, 1)),
        ('aten.sum.dim_IntList', (Ref(19), (1,))),
        ('aten.zeros.default', ((b, 2, 4),)),
        ('aten.view.default', (Ref(20), (b, 2, -1))),
        ('aten.add.Tensor', (Ref(21), Ref(22))),
        ('aten.view.default', (Ref(23), (b, 8))),
        (DTOH, (Ref(24),))]
    metas = {0: meta((1, 1, 8)), 1: meta((8, 8))}
    calls = []
    for k, (op, arguments) in enumerate(rows):
        if op == DTOH:
            calls.append(Call(op, arguments, (), (), (), True))
            continue
        if op == HTOD:
            made = meta((b, 6, 8))
        else:
            made, = infer(op, substitute(arguments, Ref, lambda r: metas[r.handle]), ())
        metas[10 + k] = made
        calls.append(Call(op, arguments, (), (10 + k,), (made,)))
    return build(calls, {}, {24}), metas


@pytest.mark.parametrize('old', [1, 2, 3])
@pytest.mark.parametrize('new', [1, 2, 4, 5])
def test_equals_what_would_be_recorded(old, new):
    sequence, metas = model(old)
    expected, _ = model(new)
    if old == new:
        return
    derived = derive(sequence, meta((new, 6, 8)), infer, metas.__getitem__)
    assert derived.keys == expected.keys
    assert derived.kept == expected.kept


@pytest.mark.parametrize('given', [
    Meta((3, 6, 9), (54, 9, 1), 'float32'), Meta((3, 6, 8), (48, 8, 1), 'float64'),
    Meta((3, 6, 8), (1, 3, 18), 'float32'), Meta((3, 48), (48, 1), 'float32')])
def test_only_the_batch_may_differ(given):
    sequence, metas = model(2)
    assert derive(sequence, given, infer, metas.__getitem__) is None


def test_what_inference_refuses_has_to_be_recorded():
    metas = {0: meta((2, 4))}
    calls = [Call(HTOD, (), (), (1,), (meta((2, 4)),)),
             Call('aten.mul.Tensor', (Ref(1), Ref(0)), (), (2,), (meta((2, 4)),)),
             Call(DTOH, (Ref(2),), (), (), (), True)]
    sequence = build(calls, {}, ())
    assert derive(sequence, meta((3, 4)), infer, metas.__getitem__) is None
