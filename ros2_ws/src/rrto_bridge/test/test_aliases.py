"""Tensors that share memory on a CPU also share it on the device.

The tests combine every way to make a tensor, to alias it, to write to it and to read it. Each
combination must equal plain PyTorch bit for bit.
"""

import copy
import io
import itertools
import os

import pytest
import remote
import torch
from torch import nn

BASE = torch.arange(6.0).view(2, 3) - 2
OTHER = torch.tensor([[0.5, -1.5, 2.5], [7.0, -8.0, 9.0]])
REFUSED = 'rrto: resize_ cannot enlarge a tensor'
GROWING = ('grow', 'reshape in place')   # operations that may need more memory than the tensor has
PASSES = 7   # number of passes of each combination in mode `replay`, enough for a replay


def nothing(t, device):
    pass


def from_host(t, device):
    t.data.copy_(BASE)


def from_device(t, device):
    t.data.copy_(BASE.to(device))


# Maps the name of a way to make a tensor to two functions: the first makes the tensor; the second
# fills the tensor, after the test has made an alias of the tensor.
CREATIONS = {
    'to': (lambda d: BASE.clone().to(d), nothing),
    'transposed to': (lambda d: torch.tensor(BASE.t().tolist()).t().to(d), nothing),
    'tensor': (lambda d: torch.tensor(BASE.tolist(), device=d), nothing),
    'zeros': (lambda d: torch.zeros(2, 3, device=d), nothing),
    'computed': (lambda d: BASE.to(d) * 2, nothing),
    'view': (lambda d: torch.arange(12.0, device=d).view(2, 6)[:, 1:4], nothing),
    'random': (lambda d: torch.rand(2, 3, device=d), nothing),
    'empty, host': (lambda d: torch.empty(2, 3, device=d), from_host),
    'empty, device': (lambda d: torch.empty(2, 3, device=d), from_device),
    'empty, fill': (lambda d: torch.empty(2, 3, device=d), lambda t, d: t.fill_(2)),
    'empty, foreach': (lambda d: torch.empty(2, 3, device=d),
                       lambda t, d: torch._foreach_copy_([t.data], [BASE.to(d)])),
    'empty, out': (lambda d: torch.empty(2, 3, device=d),
                   lambda t, d: torch.mul(BASE.to(d), 3, out=t.detach())),
    'empty_like': (lambda d: torch.empty_like(torch.zeros(2, 3, device=d)), from_host),
    'empty_strided': (lambda d: torch.empty_strided((2, 3), (1, 2), device=d), from_host),
    'new_empty': (lambda d: torch.zeros(1, device=d).new_empty(2, 3), from_host),
    'parameter': (lambda d: nn.Parameter(torch.empty(2, 3, device=d), requires_grad=False),
                  from_host),
    'layer': (lambda d: nn.Linear(3, 2, device=d).requires_grad_(False).weight, from_host),
}

ALIASES = {
    'itself': lambda t: t,
    'detach': lambda t: t.detach(),
    'data': lambda t: t.data,
    'twice': lambda t: t.detach().data,
    'view': lambda t: t.view(2, 1, 3) if t.stride(1) == 1 else t.t(),
    'row': lambda t: t[1],
    'columns': lambda t: t[:, 1:],
    't': lambda t: t.t(),
    'expand': lambda t: t.expand(2, 2, 3),
    'as_strided': lambda t: t.as_strided((2,), (1,), t.storage_offset()),
    'unbind': lambda t: t.unbind(1)[2],
    'chunk': lambda t: t.chunk(2)[1],
    'view_as': lambda t: t.detach().view_as(t),
    'copy.copy': copy.copy,
    'parameter': lambda t: nn.Parameter(t, requires_grad=False),
    'set_': lambda t: torch.empty(0, device=t.device).set_(t),
    'set_ of a view': lambda t: torch.empty(0, device=t.device).set_(t[1]),
    '.data =': lambda t: _data_set(torch.empty(0, device=t.device), t),
    **({'shallow_copy_data_': lambda t: torch.ops.aten.shallow_copy_data_(
        torch.empty(0, device=t.device), t)} if hasattr(torch.ops.aten, 'shallow_copy_data_')
       else {}),
    'to': lambda t: t.to(t.device),
    'as_tensor': torch.as_tensor,
    'bits': lambda t: t.view(torch.int32),
    'buffer': lambda t: _buffer(t).t.detach(),
    'tied': lambda t: _tied(t)[1].weight,
    'squeezed': lambda t: t.unsqueeze(0).squeeze_(0),
}


def _data_set(new, t):
    new.data = t
    return new


def _buffer(t):
    module = nn.Module()
    module.register_buffer('t', t)
    return module


def _tied(t):
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2))
    for layer in module:
        layer.weight = t if isinstance(t, nn.Parameter) else nn.Parameter(t, requires_grad=False)
    return module


def _item(x, value):
    x[...] = value


def _mask(x, d):
    x[x > 0] = 7


def _index(x, d):
    x[torch.tensor([0], device=d)] = 4


def _grow(x, d):
    x.resize_(x.numel() * 2)
    x.view(-1)[x.numel() // 2:].fill_(1)


def _add(x, d):
    x += 1


MUTATIONS = {
    'none': nothing,
    'add_': lambda x, d: x.add_(1),
    '+=': _add,
    'zero_': lambda x, d: x.zero_(),
    'copy_ host': lambda x, d: x.copy_(OTHER.flatten()[0]),
    'copy_ host row': lambda x, d: x.copy_(OTHER.to(x.dtype).flatten()[:x.shape[-1]]),
    'copy_ device': lambda x, d: x.copy_(OTHER.to(d)[0, :x.shape[-1]]),
    'setitem': lambda x, d: _item(x, 5),
    'setitem host': lambda x, d: _item(x, OTHER.to(x.dtype)[1, :x.shape[-1]]),
    'setitem device': lambda x, d: _item(x, OTHER.to(d).to(x.dtype)[1, :x.shape[-1]]),
    'mask': _mask,
    'index': _index,
    'out': lambda x, d: torch.add(x, 1, out=x),
    'out detached': lambda x, d: torch.mul(x, 2, out=x.detach()),
    'foreach': lambda x, d: torch._foreach_add_([x, x.detach()], 1),
    'foreach zero': lambda x, d: torch._foreach_zero_([x.data]),
    'data zero': lambda x, d: x.data.zero_(),
    'detached fill': lambda x, d: x.detach().fill_(3),
    'scatter': lambda x, d: x.scatter_(0, torch.zeros(x.shape, dtype=torch.int64, device=d), 2),
    'uniform': lambda x, d: nn.init.uniform_(x),
    't_': lambda x, d: x.t_().add_(1),
    'transpose_': lambda x, d: x.transpose_(0, -1).add_(1),
    'squeeze_': lambda x, d: x.unsqueeze(0).squeeze_().squeeze_(0).add_(1),
    'as_strided_': lambda x, d: x.as_strided_((1,), (1,), x.storage_offset()).add_(1),
    'detach_': lambda x, d: x.detach().detach_().add_(1),
    'unsqueeze_': lambda x, d: x.unsqueeze_(0).mul_(2),
    'set_': lambda x, d: x.set_(OTHER.clone().to(d)).add_(1),
    '.data =': lambda x, d: _data_set(x, OTHER.to(d) * 2).add_(1),
    'shrink': lambda x, d: x.resize_(1).add_(1),
    'reshape in place': lambda x, d: x.resize_(x.shape[::-1]).add_(1),
    'grow': _grow,
    'swap': lambda x, d: torch.utils.swap_tensors(x.detach(), x.detach()),
    'twice': lambda x, d: (x.add_(1), x.detach().mul_(2)),
    'through a view': lambda x, d: x.view(-1)[0:1].sub_(4),
}

READS = {
    'cpu': lambda x: x.cpu(),
    'list': lambda x: torch.tensor(x.tolist()),
    'sum': lambda x: torch.tensor(x.sum().item()),
    'computed': lambda x: (x * 2 + 1).cpu(),
    'into': lambda x: torch.zeros(x.shape, dtype=x.dtype).copy_(x),
    'contiguous': lambda x: x.contiguous().cpu(),
}


def run(device, creation, alias, mutation, which):
    """Apply a mutation to a tensor or its alias; return the properties and values of the two.

    If an operation raises an error, return `REFUSED` if the error begins with this text, otherwise
    return 'error'.
    """
    torch.manual_seed(3)
    make, fill = CREATIONS[creation]
    with torch.no_grad():
        t = make(device)
        try:
            a = ALIASES[alias](t)
            fill(t, device)
            torch.manual_seed(4)
            MUTATIONS[mutation]((t, a)[which], device)
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            return REFUSED if str(error).startswith(REFUSED) else 'error'
        seen = []
        for x in (t, a):
            seen += [x.shape, x.dtype, x.stride(), x.storage_offset(), x.requires_grad]
            seen += [read(x) for read in READS.values()]
        return seen


def same(a, b):
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return all(bits(x) == bits(y) if isinstance(x, torch.Tensor) else x == y
               for x, y in zip(a, b, strict=True))


def bits(x):
    dense = torch.empty(x.shape, dtype=x.dtype).copy_(x)
    return x.shape, x.dtype, dense.flatten().view(torch.uint8).numpy().tobytes()


def combinations():
    return [(*names, which) for names in itertools.product(CREATIONS, ALIASES, MUTATIONS)
            for which in (0, 1) if which == 0 or names[1] != 'itself']


def check(mode, cases):
    remote.start(mode)
    wrong = []
    for case in cases:
        expected = run('cpu', *case)
        for _ in range(PASSES if mode == 'replay' else 1):
            try:
                got = run('cuda', *case)
            except Exception as error:
                got = f'{type(error).__name__}: {error}'[:90]
            if case[2] in GROWING and got == REFUSED:
                break
            if not same(got, expected):
                wrong.append((case, got if isinstance(got, str) else '', expected == 'error'))
                break
    assert not wrong, f'{len(wrong)} of {len(cases)}:\n' + '\n'.join(map(str, wrong[:60]))


def test_some_combinations(mode):
    check(mode, combinations()[remote.MODES.index(mode)::933 if mode == 'replay' else 453])


@pytest.mark.long
@pytest.mark.parametrize('mode', remote.MODES)
def test_more_combinations(mode):
    check(mode, combinations()[7 + remote.MODES.index(mode)::67 if mode == 'replay' else 29])


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get('ROG_SLOW'), reason='takes an hour; set ROG_SLOW=1')
@pytest.mark.parametrize('mode', remote.MODES)
@pytest.mark.parametrize('creation', CREATIONS)
def test_all_combinations(mode, creation):
    check(mode, [case for case in combinations() if case[0] == creation])


def pieces(device):
    """Return a model whose tensors share memory in several ways.

    The model has tied parameters, views of a buffer, an alias, and tensors that share no memory.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3)).to(device)
    model[1].weight = model[0].weight
    whole = torch.arange(12.0, device=device)
    model.register_buffer('part', whole[2:8].view(2, 3))
    model.register_buffer('rest', whole[4:])
    model.alias = model.part.detach()
    return model.eval()


@pytest.mark.parametrize('away', ['deepcopy', 'copy', 'save', 'save whole'])
def test_copies_and_files_keep_what_is_shared(mode, away):
    def program(device):
        model = pieces(device)
        if away == 'deepcopy':
            twin = copy.deepcopy(model)
        elif away == 'copy':
            twin = copy.copy(model)
        else:
            file = io.BytesIO()
            torch.save(model if away == 'save whole' else
                       {**model.state_dict(), 'alias': model.alias}, file)
            file.seek(0)
            twin = torch.load(file, weights_only=False)
            if away == 'save':
                twin['part'].add_(5)
                return [v.cpu() for v in twin.values()]
        with torch.no_grad():
            twin.part.mul_(3)
            twin[1].weight.add_(1)
            twin.alias[0].sub_(1)
        assert isinstance(twin[0].weight, nn.Parameter) and twin[0].weight is twin[1].weight
        return [t.cpu() for m in (model, twin)
                for t in (*m.parameters(), *m.buffers(), m.alias)]

    expected = program('cpu')
    remote.start(mode)
    got = program('cuda')
    assert same([x.detach() for x in got], [x.detach() for x in expected])


def test_modules_that_were_made_on_the_device_change_their_type_and_move(mode):
    remote.start(mode)
    torch.manual_seed(0)
    expected = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with torch.device('cuda'):
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model.load_state_dict(expected.state_dict())
    weight = model[0].weight
    x = torch.rand(4, 3)
    for change in ('half', 'double', 'bfloat16', 'float', 'cpu', 'cuda', 'eval', 'half', 'cpu'):
        getattr(model, change)()
        if change not in ('cpu', 'cuda'):
            getattr(expected, change)()
        assert model[0].weight is weight and isinstance(weight, nn.Parameter)
        assert weight.is_cuda is (change != 'cpu')
        y = x.to(weight.device, weight.dtype)
        with torch.no_grad():
            assert same([model(y).cpu()], [expected(y.cpu())])
    assert type(model[0].weight) is nn.Parameter
