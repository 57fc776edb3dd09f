"""Tests of the Python type of tensors on the device, and of negated or conjugated tensors.

PyTorch negates or conjugates some tensors only by a flag; their memory stays unchanged.
"""

import copy
import pickle
from functools import partial
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest
import remote
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx


def imported(tmp_path, source, before='import torch\nfrom torch import nn\n'):
    path = tmp_path / 'program.py'
    path.write_text(before + source)
    loader = SourceFileLoader('program', str(path))
    module = module_from_spec(spec_from_loader('program', loader))
    loader.exec_module(module)
    return module


def test_a_program_that_compares_types_sees_those_of_pytorch(engine, tmp_path):
    module = imported(tmp_path, '''
TABLE = {torch.Tensor: 'tensor', nn.Parameter: 'parameter', int: 'number'}
def kind(x):
    return 'tensor' if type(x) is torch.Tensor else TABLE[type(x)]
def looked_up(x):
    return TABLE.get(type(x)), type(x) == torch.Tensor, type(x) in (torch.Tensor, nn.Parameter)
def alike(x, y):
    return type(x) is type(y)
''')
    layer, x = nn.Linear(2, 2).cuda(), torch.ones(2).cuda()
    for value in (x, x + 1, x[0], layer.weight.data, layer(x)):
        assert module.kind(value) == 'tensor' and module.alike(value, x.cpu())
        assert module.looked_up(value) == ('tensor', True, True)
    for value in (layer.weight, nn.Parameter(x)):
        assert module.looked_up(value) == ('parameter', False, True)
        assert not module.alike(value, x)
    assert module.kind(3) == 'number'


def test_all_else_is_as_with_pythons_type(engine, tmp_path):
    module = imported(tmp_path, '''
def found(x):
    class Meta(type):
        def __new__(cls, name, bases, names):
            return super().__new__(cls, name, bases, names)
    class A(metaclass=Meta):
        kind: type[int] | None = None
    made = type('Made', (A,), {'value': 3})
    assert isinstance(A, type) and issubclass(Meta, type) and type(made) is Meta
    assert made.value == 3 and type(type) is type and type(3) is int and type(3)(4) == 4
    assert {type: 1}[type(int)] == 1 and type.__name__ == 'type' and type.mro(A)[0] is A
    return type(x) is torch.Tensor, isinstance(x, type), type(A) is Meta, type(int) is type
''')
    for x in (torch.ones(1), torch.ones(1).cuda()):
        assert module.found(x) == (True, False, True, True)


def test_modules_without_pytorch_keep_pythons(engine, tmp_path):
    assert 'type' not in vars(imported(tmp_path, 'name = str(type(3))\n', before=''))


def test_classes_have_the_names_of_pytorchs(engine):
    x, layer = torch.ones(2).cuda(), nn.Linear(2, 2).cuda()
    for mine, wanted in ((x, torch.Tensor), (x + 1, torch.Tensor), (nn.Parameter(x), nn.Parameter),
                         (layer.weight, nn.Parameter), (layer.weight.data, torch.Tensor)):
        for found in (mine.__class__, type(mine)):
            assert (found.__module__, found.__name__, found.__qualname__) == (
                wanted.__module__, wanted.__name__, wanted.__qualname__)


class Scaled(nn.Parameter):
    """A subclass of `Parameter` in the program.

    Libraries for quantised weights define such classes.
    """

    def doubled(self):
        return self * 2


def test_parameters_keep_the_class_of_the_program(engine):
    layer = nn.Linear(2, 2)
    layer.weight = Scaled(torch.ones(2, 2))
    layer.weight.note = 'mine'
    layer.cuda()
    for p in (layer.weight, Scaled(torch.ones(2, 2).cuda()), copy.deepcopy(layer).weight,
              copy.copy(layer.weight)):
        assert isinstance(p, Scaled) and isinstance(p, nn.Parameter) and p.is_cuda
        assert p.doubled().tolist() == [[2, 2], [2, 2]] and type(p).__name__ == 'Scaled'
    assert layer.weight.note == 'mine' and 'weight' in dict(layer.named_parameters())
    # Pickling loses the subclass; with a parameter on the CPU, PyTorch does the same.
    loaded = pickle.loads(pickle.dumps(layer.weight))
    assert isinstance(loaded, nn.Parameter) and not isinstance(loaded, Scaled)
    assert loaded.is_cuda and loaded.note == 'mine'
    assert type(layer.half().weight).__name__ == 'Scaled'
    assert type(layer.cpu().weight) is Scaled and layer.weight.note == 'mine'
    assert isinstance(nn.Linear(2, 2).cuda().weight, nn.Parameter)


@remote.since((2, 8), 'subclass of Parameter that differs from Parameter in isinstance')
def test_parameters_are_not_of_another_class(engine):
    assert not isinstance(nn.Linear(2, 2).cuda().weight, Scaled)


COMPLEX = {
    'itself': lambda z: z, 'conj': lambda z: z.conj(), 'twice': lambda z: z.conj().conj(),
    'imag': lambda z: z.conj().imag, 'imag of itself': lambda z: z.imag,
    'view': lambda z: z.conj()[0:1], 'mH': lambda z: z.mH, 'adjoint': lambda z: z.adjoint(),
    'H': lambda z: z.H, 'clone': lambda z: z.conj().clone(), 'product': lambda z: z.conj() * 2,
    'resolved': lambda z: z.conj().resolve_conj(), 'negated': lambda z: -z.conj().imag,
    'resolved part': lambda z: z.conj().imag.resolve_neg(), 'real': lambda z: z.conj().real,
    'physical': lambda z: z.conj_physical(), 'transposed': lambda z: z.conj().t(),
}


@pytest.mark.parametrize('name', COMPLEX)
def test_what_is_conjugated_or_negated_in_name_only_says_so(engine, name):
    z = torch.view_as_complex(torch.arange(8.0).view(2, 2, 2))
    mine, its = COMPLEX[name](z.cuda()), COMPLEX[name](z)
    for ask in ('is_conj', 'is_neg'):
        assert getattr(mine, ask)() is getattr(its, ask)() is getattr(torch, ask)(mine), ask
    assert torch.equal(mine.cpu(), its.resolve_conj().resolve_neg())
    assert torch.equal(torch.resolve_conj(mine).cpu(), its.resolve_conj().resolve_neg())


def sine(x):
    return (x * x).sin().sum()


def parts(x):
    y = x.view(3, 1).t()
    return y[0, 1:].exp() + y.detach().sum()


def attention(x):
    return torch.nn.functional.scaled_dot_product_attention(*[x.view(1, 1, 3, 1)] * 3)


@pytest.mark.parametrize('grad', [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize('kind', ['real', 'fake', 'symbolic'])
@pytest.mark.parametrize('name', ['layer', 'sine', 'parts', 'attention', 'learnt'])
def test_make_fx_records_what_was_computed_or_refuses(name, kind, grad):
    torch.manual_seed(0)
    remote.start('replay')
    layer = nn.Linear(3, 3)
    function = {'layer': layer, 'sine': sine, 'parts': parts, 'learnt': layer,
                'attention': attention}[name]
    x, other = torch.arange(3.0), torch.tensor([1.0, -2.0, 0.5])
    expected = function(other).detach()
    layer.cuda()
    with grad():
        given = x.cuda().requires_grad_(name == 'learnt')
        try:
            made = make_fx(function, tracing_mode=kind)(given)
        except RuntimeError as error:
            assert 'rrto: ' in str(error) and '\n' not in str(error)
            return
        torch.testing.assert_close(made(other.cuda()).cpu().detach(), expected)


def test_linearize_is_refused_and_jvp_is_right(engine):
    x, v = torch.arange(3.0), torch.tensor([1.0, -2.0, 0.5])
    expected = torch.func.jvp(sine, (x,), (v,))
    linear = torch.func.linearize(sine, x)[1](v)
    assert torch.equal(linear, expected[1])
    mine = torch.func.jvp(sine, (x.cuda(),), (v.cuda(),))
    assert torch.equal(mine[1].cpu(), expected[1])
    for function in (sine, partial(torch.sum, dim=0)):
        with pytest.raises(RuntimeError, match='rrto: .*torch.func.jvp'):
            torch.func.linearize(function, x.cuda())




def test_a_tensor_says_which_other_one_is_the_same_memory(engine):
    def said(x):
        return [x.is_set_to(y) for y in (x, x.view(6), x.detach(), x[1:], x.clone(),
                                         x.view(2, 3), torch.ones(6))]

    assert said(torch.ones(6).cuda()) == said(torch.ones(6))


def _shifted(x):
    y = x.clone()
    y[1:] = x[:-1] * 2
    return y


FORWARD = {
    'a view': lambda x: x[1:] * 2, 'into a view': _shifted,
    'through a view': lambda x: x.view(1, 3).mul(3)[:, ::2].cumsum(1)}


@pytest.mark.parametrize('function', FORWARD.values(), ids=FORWARD)
def test_forward_derivatives_of_views_lie_in_memory_as_on_a_cpu(engine, function):
    def derivatives(memory):
        x = memory[2:5]
        rows = memory[1:7].view(2, 3)
        return [torch.func.jvp(function, (x,), (torch.ones_like(x),))[1],
                torch.func.jacfwd(function)(x), torch.func.vmap(lambda row: torch.func.jvp(
                    function, (row,), (row * 2,))[1])(rows)]

    memory = torch.arange(8.0)
    for mine, one in zip(derivatives(memory.cuda()), derivatives(memory), strict=True):
        assert torch.equal(mine.cpu(), one)


def test_torch_export_says_in_one_line_what_to_do(engine):
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    expected = layer(x)
    moved = torch.export.export(copy.deepcopy(layer), (x,)).module().cuda()
    assert torch.equal(moved(x.cuda()).cpu(), expected)
    for model, given in ((copy.deepcopy(layer).cuda(), x), (layer, x.cuda())):
        for strict in (False, True):
            with pytest.raises(RuntimeError, match=r'^rrto: torch.export .*module\(\).cuda\(\)$'):
                torch.export.export(model, (given,), strict=strict)


LAZY = {'moved': lambda: nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()).cuda(),
        'moved by its number': lambda: nn.Sequential(nn.LazyLinear(3)).to(0),
        'converted': lambda: nn.LazyLinear(3).double().cuda().float(),
        'there and back': lambda: nn.LazyLinear(3).cuda().cpu().to('cuda'),
        'made there': lambda: nn.LazyLinear(3, device='cuda'),
        'copied': lambda: copy.deepcopy(nn.LazyLinear(3).cuda())}


@pytest.mark.parametrize('name', LAZY)
def test_lazy_modules_get_their_parameters_on_the_device(engine, name):
    model = LAZY[name]().eval()
    for value in (*model.parameters(), *model.buffers()):
        assert value.is_cuda
        if nn.parameter.is_lazy(value):
            with pytest.raises(ValueError, match='uninitialized'):
                value + 1
    x = torch.rand(2, 4)
    with torch.no_grad():
        y = model(x.cuda())
        for value in (*model.parameters(), *model.buffers()):
            assert value.is_cuda and not nn.parameter.is_lazy(value)
        weights = pickle.loads(pickle.dumps(model)).cpu()
        model.cpu()
        assert all(type(p) is nn.Parameter for p in model.parameters())
        torch.testing.assert_close(model(x), y.cpu())
        torch.testing.assert_close(weights(x), y.cpu())


def test_a_lazy_module_of_the_device_takes_weights(engine):
    model, other = nn.LazyLinear(3).cuda(), nn.Linear(2, 3).cuda()
    assert nn.parameter.is_lazy(pickle.loads(pickle.dumps(model)).weight)
    model.load_state_dict(other.state_dict())
    assert torch.equal(model(torch.ones(1, 2).cuda()), other(torch.ones(1, 2).cuda()))
    weight = nn.UninitializedParameter(device='cuda')
    weight.materialize((2, 2), device='cpu')
    assert not weight.is_cuda and type(weight) is nn.Parameter
