"""Robot and server have different versions of PyTorch: what both have runs on the server."""

import pytest
import remote
import torch
import torch.nn.functional as F
from rrto_bridge.execution import context
from rrto_bridge.protocol.errors import Refused, UnknownOperator
from rrto_bridge.protocol.operators import agree, form, resolve
from rrto_bridge.protocol.record import Call

SOFTMAX = 'aten._softmax.default'
NEWER = 'bool precise=False'


def form_of(name):
    return form(resolve(name))


@pytest.fixture
def lacks(monkeypatch):
    """Make the server's PyTorch lack an operator."""
    def without(name):
        def lacking(op, theirs):
            if op == name:
                raise UnknownOperator(f'{op} has another form in PyTorch 0.1')
            return agree(op, theirs)
        monkeypatch.setattr(context, 'agree', lacking)
    return without


def test_a_form_says_what_a_caller_relies_on():
    assert form_of(SOFTMAX) == ('Tensor', 'Tensor self', 'int dim', 'bool half_to_float')
    assert form_of('aten.add_.Tensor') == ('Tensor(a!)', 'Tensor(a!) self', 'Tensor other',
                                           '*number alpha=1')
    # numbers that PyTorch can trace (SymInt) are numbers
    assert form_of('aten.expand.default') == ('Tensor(a)', 'Tensor(a) self', 'List[int] size',
                                              '*bool implicit=False')
    assert form_of('aten.nonzero.default')[0] == 'Tensor, wanted'


def test_arguments_with_defaults_may_come_at_the_end():
    ours = form_of(SOFTMAX)
    assert agree(SOFTMAX, ours)
    assert not agree(SOFTMAX, (*ours, NEWER))
    assert agree('aten.sum.default', form_of('aten.sum.default')[:-1])


@pytest.mark.parametrize('theirs', [
    (), ('Tensor',), ('Tensor(a)', *form_of(SOFTMAX)[1:]), (*form_of(SOFTMAX), 'bool precise'),
    form_of(SOFTMAX)[:-1], (*form_of(SOFTMAX)[:2], 'int axis', *form_of(SOFTMAX)[3:]),
    (*form_of(SOFTMAX)[:2], 'int dim=0', *form_of(SOFTMAX)[3:])])
def test_any_other_difference_is_refused(theirs):
    with pytest.raises(UnknownOperator, match='_softmax.default has another form in PyTorch'):
        agree(SOFTMAX, theirs)


def test_an_operator_that_the_server_lacks_runs_here_and_is_named_once(engine, lacks, capsys):
    lacks(SOFTMAX)
    x, y = torch.randn(2, 3), torch.randn(3, 3)
    there = x.cuda(), y.cuda()
    for _ in range(6):
        result = F.softmax(there[0] @ there[1], -1) @ there[1]
        assert torch.equal(result.cpu(), F.softmax(x @ y, -1) @ y)
    said, = capsys.readouterr().err.splitlines()[:1]
    assert f'{SOFTMAX} runs on this machine, not on the server' in said
    assert 'has another form in PyTorch 0.1); first used at' in said and __file__ in said


def test_an_operator_that_does_not_exist_on_the_server_is_unknown_to_it():
    engine = remote.start('async')
    missing = Call('aten.add.newer')
    engine.machine.introduce(missing.op, ('Tensor', 'Tensor self'))
    ticket = engine.machine.issue(missing, (), False)[1]
    with pytest.raises(UnknownOperator, match='has no operator aten.add.newer'):
        engine.settle(ticket)


def test_a_server_is_asked_once_for_each_operator(lacks):
    engine = remote.start('async')
    lacks(SOFTMAX)
    x = torch.ones(2).cuda()
    F.softmax(x, 0)
    sent = []
    introduce = engine.machine.introduce
    engine.machine.introduce = lambda op, form: sent.append(op) or introduce(op, form)
    before = engine.machine.round_trips
    for _ in range(3):
        F.softmax(x, 0)
    assert sent == []
    assert engine.machine.round_trips == before + 3   # it fetches the argument, and no more
    x + x
    x + x
    assert sent == ['aten.add.Tensor']


def test_a_lost_server_takes_its_gaps_with_it(lacks, capsys):
    engine = remote.start('async', journal=True)
    lacks(SOFTMAX)
    x = torch.ones(2).cuda()
    F.softmax(x, 0)
    assert list(engine.unknown) == [SOFTMAX]
    engine.port.lives = 0
    assert F.softmax(x, 0).cpu().tolist() == [0.5, 0.5]
    assert not remote._device.connection.engine.unknown


def test_only_a_call_that_passes_an_argument_the_server_lacks_is_refused(monkeypatch, engine):
    monkeypatch.setattr(context, 'agree', lambda op, theirs: False)
    assert torch.ones(3).cuda().sum(dtype=torch.float64).item() == 3
    call = context._without_more(resolve('aten.sum.default'), lambda *args, **kwargs: 'ran')
    assert call(1, dtype=None) == call(1, default_dtype=torch.float64) == 'ran'
    for args, kwargs in (((1, 2), {}), ((1,), {'precise': True})):
        with pytest.raises(Refused, match='sum.default has fewer arguments in PyTorch'):
            call(*args, **kwargs)
