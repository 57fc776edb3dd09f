"""Operators that get tensors of the device and tensors of the CPU.

If such an operator writes into a tensor, the tensor stays where it is, or the operator raises an
error.
"""

import contextlib
import itertools

import pytest
import remote
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from rrto_bridge.program.remote import RemoteTensor
from rrto_bridge.protocol.operators import operator, resolve

MISMATCH = 'Expected .*same device|Expected all tensors|devices must match'


def tensor(*values):
    return torch.tensor(values)


VALID_ON_CUDA = {
    'mask': lambda a, d: a.__setitem__(d(tensor(True, False, True, False)), 5),
    'mask, 0-dim value': lambda a, d: a.__setitem__(d(tensor(True, False, True, False)),
                                                    torch.tensor(5.0)),
    'mask, values of the CPU': lambda a, d: a.__setitem__(d(tensor(True, False, True, False)),
                                                          tensor(5.0, 6.0)),
    'indices': lambda a, d: a.__setitem__(d(tensor(3, 1)), 5),
    'list, 0-dim value': lambda a, d: a.__setitem__([0, 2], d(torch.tensor(6.0))),
    'indices, 0-dim value': lambda a, d: a.__setitem__(d(tensor(0, 2)), d(torch.tensor(6.0))),
    'slice': lambda a, d: a.__setitem__(slice(1, 3), d(tensor(7.0, 8.0))),
    'number': lambda a, d: a.__setitem__(2, d(torch.tensor(7.0))),
    'index_put_': lambda a, d: a.index_put_((d(tensor(1, 1)),), torch.tensor(2.0), accumulate=True),
    'fill_': lambda a, d: a.fill_(d(torch.tensor(6.0))),
    'fill_ of a number': lambda a, d: a[2].fill_(d(torch.tensor(6.0))),
    'index_fill_': lambda a, d: a.index_fill_(0, tensor(1, 2), d(torch.tensor(6.0))),
    'copy_': lambda a, d: a.copy_(d(torch.arange(4.0))),
    '_foreach_copy_': lambda a, d: torch._foreach_copy_([a, a[1]], [d(torch.arange(4.0)),
                                                                   d(torch.tensor(9.0))]),
    'resize_as_': lambda a, d: a.resize_as_(d(torch.zeros(2))),
}


@pytest.mark.parametrize('name', VALID_ON_CUDA)
def test_writes_into_tensors_of_the_cpu_arrive_there(engine, name):
    write = VALID_ON_CUDA[name]
    for _ in range(5):   # in mode `replay`, the device replays the later repetitions
        expected, written = torch.zeros(4), torch.zeros(4)
        write(expected, lambda t: t)
        write(written, lambda t: t.cuda())
        assert torch.equal(written, expected)


def test_results_are_on_the_side_of_what_they_are_made_from(engine):
    cpu, mask = torch.zeros(4), tensor(True, False, True, False)
    made = torch.index_put(cpu, (mask.cuda(),), torch.tensor(5.0))
    assert made.device == cpu.device and made.tolist() == [5, 0, 5, 0]
    made = torch.index_put(cpu.cuda(), (mask,), torch.tensor(5.0))
    assert made.is_cuda and made.tolist() == [5, 0, 5, 0]
    grid, row = torch.zeros(2, 2), torch.ones(2)
    made = torch.select_scatter(grid, row.cuda(), 0, 1)
    assert made.device == cpu.device and made.tolist() == [[0, 0], [1, 1]]
    made = torch.slice_scatter(grid.cuda(), row[None], 0, 1, 2)
    assert made.is_cuda and made.tolist() == [[0, 0], [1, 1]]
    assert torch.ops.aten.is_same_size(grid, grid.cuda())


REFUSED_BY_CUDA = {
    'add_': lambda c, x: c.add_(x),
    '+= sum': lambda c, x: c.__iadd__(x.sum()),
    'mul_': lambda c, x: c.mul_(x),
    'lerp_': lambda c, x: c.lerp_(x, 0.5),
    'clamp_': lambda c, x: c.clamp_(min=x),
    'out=': lambda c, x: torch.add(x, x, out=c),
    'sum, out=': lambda c, x: torch.sum(x, 0, out=c),
    '_foreach_add_': lambda c, x: torch._foreach_add_([c], [x]),
    '_foreach_mul_': lambda c, x: torch._foreach_mul_([c], x),
    'set_': lambda c, x: c.set_(x),
    'put_': lambda c, x: c.put_(torch.tensor([0]).cuda(), x.view(1)),
    'masked_fill_': lambda c, x: c.masked_fill_(torch.tensor(True), x),
    'scatter_': lambda c, x: c.scatter_(0, torch.tensor(0).cuda(), x),
    'values of an index': lambda c, x: c.expand(2).clone().__setitem__([0, 1], x.expand(2)),
    'values of an index there': lambda c, x: x.expand(2).clone().__setitem__([0, 1], c.expand(2)),
    'sizes': lambda c, x: torch.ones(3) + x,
}


@pytest.mark.parametrize('name', REFUSED_BY_CUDA)
def test_what_cuda_refuses_is_refused_and_changes_nothing(engine, name):
    c, x = torch.tensor(0.0), torch.tensor(3.0).cuda()
    with pytest.raises(RuntimeError, match=MISMATCH):
        REFUSED_BY_CUDA[name](c, x)
    assert c.item() == 0 and x.item() == 3


DECOMPOSED = {
    **{f'conv{k}d': (getattr(F, f'conv{k}d'), *[(2, 2, *[4] * k)] * 2, (2,)) for k in (1, 2, 3)},
    **{f'conv_transpose{k}d': (getattr(F, f'conv_transpose{k}d'), *[(2, 2, *[4] * k)] * 2, (2,))
       for k in (1, 2, 3)},
    'linalg.solve': (torch.linalg.solve, (3, 3), (3, 1)),
    'linalg.solve_ex': (torch.linalg.solve_ex, (3, 3), (3, 1)),
    'convolution': (lambda *given: torch.convolution(*given, (1,), (0,), (1,), False, (0,), 1),
                    (1, 2, 4), (3, 2, 2), (3,)),
    'grid_sampler_3d': (lambda *given: torch.ops.aten.grid_sampler_3d(*given, 1, 1, False),
                        (1, 1, 2, 2, 2), (1, 1, 1, 1, 3)),
}


@pytest.mark.parametrize('name', DECOMPOSED)
def test_an_operator_that_this_machine_would_decompose_is_refused(engine, capsys, name):
    function, *shapes = DECOMPOSED[name]
    for odd, there in itertools.product(range(len(shapes)), (False, True)):
        given = [torch.ones(shape) for shape in shapes]
        with pytest.raises(RuntimeError, match=f'{MISMATCH}|should be the same'):
            function(*[t.cuda() if (k == odd) is there else t for k, t in enumerate(given)])
    assert capsys.readouterr().err == ''


def test_a_tensor_of_the_cpu_is_not_indexed_by_the_device(engine):
    with pytest.raises(RuntimeError, match='either on cpu or on the same device.*cpu'):
        torch.arange(4.0)[tensor(1, 2).cuda()]
    with pytest.raises(RuntimeError, match='cuda:0 and meta'):
        torch.zeros((), device='meta') + torch.zeros(2).cuda()


def test_a_custom_operator_returns_the_tensor_of_the_cpu_that_it_wrote(engine):
    library = torch.library.Library('rrto_placement', 'FRAGMENT')
    library.define('add_(Tensor(a!) x, Tensor y) -> Tensor(a!)')
    library.impl('add_', lambda x, y: x.add_(y), 'CPU')
    cpu = torch.zeros(2)
    assert torch.ops.rrto_placement.add_(cpu, torch.ones(2).cuda()) is cpu
    assert cpu.tolist() == [1, 1]
    library._destroy()


def test_what_a_custom_operator_wrote_without_saying_so_is_kept(engine):
    library = torch.library.Library('rrto_silent', 'FRAGMENT')
    library.define('double(Tensor x, Tensor[] more) -> ()')

    def double(x, more):
        for t in (x, *more):
            t.numpy()[...] *= 2   # PyTorch's version counter does not count this change

    library.impl('double', double, 'CPU')
    x, y, z = (tensor(k, k).cuda() for k in (1, 2, 0))
    torch.ops.rrto_silent.double(x, [y, z])
    assert (x.tolist(), y.tolist(), z.tolist()) == ([2, 2], [4, 4], [0, 0])
    library._destroy()


COLLECTIVES = {
    'all_reduce': lambda a, out: dist.all_reduce(out.add_(a), async_op=True).wait(),
    'all_gather': lambda a, out: dist.all_gather([out], a),
    'scatter': lambda a, out: dist.scatter(out, [a]),
    'reduce_scatter': lambda a, out: dist.reduce_scatter(out, [a]),
    'all_to_all': lambda a, out: dist.all_to_all_single(out, a),
    'gather': lambda a, out: dist.gather(a, [out]),
    'functional': lambda a, out: out.add_(functional.all_reduce(a, 'sum', dist.group.WORLD)),
}


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=remote.since((2, 5), 'reduce_scatter of gloo'))
    if name == 'reduce_scatter' else name for name in COLLECTIVES])
def test_collectives_write_their_results(engine, name, gloo):
    out = torch.zeros(3).cuda()
    COLLECTIVES[name](tensor(1.0, 2.0, 3.0).cuda(), out)
    assert out.tolist() == [1, 2, 3]


@pytest.fixture(scope='module')
def gloo():
    dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def writers():
    """Yield all operators that a server executes and that write into one of several tensors."""
    for schema in torch._C._jit_get_all_schemas():
        base = schema.name.removeprefix('aten::')
        tensors = [a for a in schema.arguments if str(a.type) in ('Tensor', 'List[Tensor]')]
        writes = any(a.alias_info and a.alias_info.is_write for a in tensors)
        if schema.name.startswith('aten::') and 'empty' not in base \
                and writes and len(tensors) > 1:
            with contextlib.suppress(RuntimeError):   # also of operators for TorchScript only
                overload = resolve(f'aten.{base}.{schema.overload_name or "default"}')
                if not operator(overload).decomposes:
                    yield overload


FILLED = {'Tensor': lambda: torch.tensor(0.25), 'List[Tensor]': lambda: [torch.tensor(0.25)],
          'number': lambda: 1, 'int': lambda: 0, 'float': lambda: 0.5, 'bool': lambda: False,
          'List[int]': lambda: [], 'List[number]': lambda: [1], 'str': lambda: 'mean'}


def test_every_operator_that_writes_into_the_cpu_does_so_or_refuses():
    """An operator that is called to write into a CPU tensor writes into it, or raises an error.

    The test derives each call from the operator's schema. Every written argument is a 0-dim tensor
    on the CPU; all other tensors are on the device.
    """
    remote.start('rpc')
    wrote, refused = 0, 0
    for function in writers():
        schema = function._schema
        given = {a.name: FILLED[str(a.type)]() for a in schema.arguments
                 if not a.has_default_value() and str(a.type) in FILLED}
        written = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
        given |= {n: FILLED['Tensor']() for n in written if n not in given}

        def call(send, given=given, written=written, function=function):
            arguments = {}
            for name, value in given.items():
                copy = [t.clone() for t in value] if type(value) is list and value \
                    and isinstance(value[0], torch.Tensor) else \
                    value.clone() if isinstance(value, torch.Tensor) else value
                if send and name not in written and isinstance(value, torch.Tensor):
                    copy = copy.cuda()
                elif send and name not in written and type(copy) is list:
                    copy = [t.cuda() if isinstance(t, torch.Tensor) else t for t in copy]
                arguments[name] = copy
            torch.manual_seed(0)
            function(**arguments)
            return [arguments[n] for n in written]

        try:
            found = call(True)
        except Exception:
            refused += 1
            continue
        wrote += 1
        assert not any(isinstance(t, RemoteTensor) for t in itertools.chain(*(
            t if type(t) is list else [t] for t in found))), function
        for mine, its in zip(found, call(False), strict=True):
            for one, other in zip(*((t if type(t) is list else [t]) for t in (mine, its)),
                                  strict=True):
                assert torch.equal(one, other), function
    assert wrote >= 5 and refused > 600, (wrote, refused)
