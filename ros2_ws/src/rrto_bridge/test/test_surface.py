"""What programs use besides operators: accelerators, generators, streams, packed sequences."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import remote
import torch
from fleet_testing import LIMIT
from torch import nn


@remote.since((2, 9), 'torch.accelerator.memory_allocated')
def test_the_accelerator_is_the_device(replay):
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
    device = torch.accelerator.current_accelerator()
    assert device.type == 'cuda' and torch.accelerator.current_device_index() == 0
    model = nn.Linear(2, 2).to(device)
    y = model(torch.ones(1, 2, device=device))
    torch.accelerator.synchronize()
    assert y.is_cuda and torch.accelerator.memory_allocated() > 0
    assert torch.accelerator.current_stream() is not None
    torch.accelerator.set_device_index(0)


def test_generators_of_the_device_draw_the_numbers_of_the_cpus(engine):
    def draw(device):
        g = torch.Generator(device).manual_seed(11)
        assert isinstance(g, torch.Generator) and g.device.type == device
        state = g.get_state()
        seen = [torch.randn(2, 3, generator=g, device=device), torch.rand(4, generator=g,
                device=device).mul(2), torch.randperm(6, generator=g, device=device),
                torch.multinomial(torch.ones(5, device=device), 3, generator=g),
                torch.empty(3, device=device).uniform_(-1, 1, generator=g),
                torch.bernoulli(torch.full((4,), 0.5, device=device), generator=g)]
        g.set_state(state)
        return [x.cpu() for x in (*seen, torch.randn(3, generator=g, device=device),
                                  torch.normal(torch.zeros(2, device=device), 1.0))]

    torch.manual_seed(0)
    expected = draw('cpu')
    for _ in range(6):
        torch.manual_seed(0)
        assert all(map(torch.equal, draw('cuda'), expected))
    assert isinstance(torch.default_generator, torch.Generator)


def test_one_argument_that_can_not_be_sent_does_not_keep_an_operator_here(replay, capsys):
    x = torch.zeros(50, device='cuda')
    x.uniform_(generator=torch.Generator('cuda'))
    before = replay.machine.calls
    x.uniform_()
    x.sum().item()
    assert replay.machine.calls - before == 3 and capsys.readouterr().err == ''


def test_the_generators_state_is_kept_and_set(engine):
    for _ in range(5):
        torch.manual_seed(4)
        torch.rand(2, device='cuda').cpu()
        state = torch.cuda.get_rng_state()
        x = torch.rand(3, device='cuda').cpu()
        torch.cuda.set_rng_state(state)
        assert torch.equal(torch.rand(3, device='cuda').cpu(), x)
        with torch.random.fork_rng():
            torch.manual_seed(9)
            inside = torch.rand(3, device='cuda').cpu()
        torch.manual_seed(9)
        assert torch.equal(torch.rand(3, device='cuda').cpu(), inside)
    torch.cuda.manual_seed(12)
    assert torch.cuda.initial_seed() == 12
    assert [s.dtype for s in torch.cuda.get_rng_state_all()] == [torch.uint8]


def test_events_and_streams(engine):
    start, end = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        start.record(stream)
        x = torch.ones(3, device='cuda') * 2
        end.record(stream)
    end.synchronize()
    stream.synchronize()
    torch.Event('cuda').record()
    assert start.elapsed_time(end) >= 0 and x.tolist() == [2, 2, 2] and end.query()


@pytest.mark.parametrize(('timed', 'recorded'), [(True, False), (False, True)])
def test_no_time_between_events_that_have_none(engine, timed, recorded):
    events = [torch.cuda.Event(enable_timing=timed) for _ in range(2)]
    for event in events[:1 + recorded]:
        event.record()
    with pytest.raises(RuntimeError, match='Both events must be'):
        events[0].elapsed_time(events[1])


@pytest.mark.parametrize('make', [
    lambda: nn.LSTM(3, 4, batch_first=True, bidirectional=True), lambda: nn.GRU(3, 4, 2),
    lambda: nn.RNN(3, 4)], ids=['lstm', 'gru', 'rnn'])
def test_packed_sequences(engine, make, recwarn):
    torch.manual_seed(0)
    layer = make()
    first = getattr(layer, 'batch_first', False)
    inputs = [torch.rand(3, 5, 3) if first else torch.rand(5, 3, 3) for _ in range(6)]

    def run(x):
        with torch.no_grad():
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([2, 5, 3]), first, False)
            out, hidden = layer(packed)
            out, lengths = nn.utils.rnn.pad_packed_sequence(out, first)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
            return out.cpu(), hidden.cpu(), lengths

    expected = [run(x) for x in inputs]
    layer.cuda()
    for x, values in zip(inputs, expected, strict=True):
        assert all(map(torch.equal, run(x.cuda()), values))
    assert not [w for w in recwarn if 'cuDNN' in str(w.message)]


def test_data_parallel_on_one_device(engine):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    x = torch.rand(4, 3)
    expected = model(x)
    parallel = nn.DataParallel(model).cuda()
    assert torch.equal(parallel(x).cpu(), expected)
    assert torch.equal(parallel(x.cuda()).cpu(), expected)


@pytest.mark.parametrize('use', [
    lambda x: torch.cuda.CUDAGraph(), lambda x: torch.cuda.graph(None),
    lambda x: torch.utils.dlpack.to_dlpack(x), lambda x: x.__cuda_array_interface__,
    lambda x: torch.cuda.utilization(), lambda x: x.set_(torch.zeros(2).untyped_storage())],
    ids=['graph', 'capture', 'dlpack', 'interface', 'utilization', 'storage'])
def test_what_is_not_possible_is_one_line_that_says_what_to_do(replay, use):
    with pytest.raises(RuntimeError) as caught:
        use(torch.ones(2, device='cuda'))
    text = str(caught.value)
    assert text.startswith('rrto: ') and ';' in text and '\n' not in text


def test_what_is_made_like_a_tensor_of_the_device_may_be_on_the_cpu(engine, capsys):
    x = torch.ones(2, 3, device='cuda')
    for made in (x.new_zeros(2, device='cpu'), torch.zeros_like(x, device='cpu'),
                 torch.full_like(x, 2, device='cpu'), x.new_tensor([1.0], device='cpu')):
        assert made.device.type == 'cpu' and (made + torch.ones(1)).device.type == 'cpu'
    assert torch.zeros_like(torch.ones(2), device='cuda').is_cuda
    assert capsys.readouterr().err == ''


def test_a_device_that_is_not_there(replay):
    for use in (lambda: torch.ones(1).to('cuda:1'), lambda: torch.zeros(1, device='cuda:3'),
                lambda: torch.ones(1, device='cuda').to('cuda:1')):
        with pytest.raises(RuntimeError, match='invalid device ordinal'):
            use()


class Numbers(torch.utils.data.Dataset):
    """A data set whose items depend on the seed of the worker."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        torch.manual_seed(index)
        return torch.rand(3) + index


@pytest.mark.parametrize('mode', ['async', 'replay'])
def test_data_loaders_with_workers(mode):
    expected = [x.sum().item() for x in torch.utils.data.DataLoader(Numbers(), 4)]
    remote.start(mode)
    scale = torch.ones(1).cuda()
    loader = torch.utils.data.DataLoader(Numbers(), 4, num_workers=2, timeout=LIMIT)
    for _ in range(2):
        assert [(x.cuda() * scale).sum().item() for x in loader] == expected


def _child(queue, x):
    torch.manual_seed(1)
    torch.cuda.manual_seed_all(1)
    queue.put(torch.rand(torch.cuda.device_count()).item())
    try:
        queue.put((x + 1).sum().item())
    except RuntimeError as error:
        queue.put(str(error))
    sys.exit(3)


def test_a_forked_child_is_told_when_it_uses_the_device_and_ends(replay):
    x = torch.ones(2).cuda()
    context = multiprocessing.get_context('fork')
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue, x))
    child.start()
    torch.manual_seed(1)
    assert queue.get(timeout=LIMIT) == torch.rand(1).item()
    assert "use the 'spawn' start method" in queue.get(timeout=LIMIT)
    child.join(LIMIT)
    assert child.exitcode == 3 and x.sum().item() == 2


def test_a_child_that_is_forked_before_the_device_was_used_may_use_it():
    remote.start('replay')
    torch.manual_seed(5)   # this does not use the device
    pid = os.fork()
    if not pid:
        os._exit(0 if torch.ones(2, device='cuda').sum().item() == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_type_of_a_parameter_makes_another_one(replay):
    weight = nn.Linear(2, 2).cuda().weight
    made = type(weight)(torch.ones(2, device='cuda'), requires_grad=False)
    assert isinstance(made, nn.Parameter) and made.is_cuda and not made.requires_grad


def test_a_tensor_is_told_which_stream_uses_it(replay):
    assert torch.ones(2, device='cuda').record_stream(torch.cuda.current_stream()) is None


def test_gammas_are_drawn_with_the_other_numbers_of_the_device(engine):
    def draw(device):
        torch.manual_seed(3)
        ones = torch.ones(4, device=device)
        return [t.cpu() for t in (torch.rand(3, device=device), torch._standard_gamma(ones),
                                  torch._sample_dirichlet(ones), torch.rand(3, device=device))]
    for got, want in zip(draw('cuda'), draw('cpu'), strict=True):
        assert torch.equal(got, want)


def test_a_cell_that_can_not_be_traced_on_the_device_says_so(replay):
    cell, x = nn.GRUCell(3, 2).eval(), torch.ones(1, 3)
    torch.jit.trace(cell, x)
    with pytest.raises(RuntimeError, match='trace the module on the CPU'):
        torch.jit.trace(cell.cuda(), x.cuda())


SPARED = '''
import sys
sys.path.insert(0, {folder!r})
import remote, torch
remote.start('replay')
print((torch.ones(2).cuda() + 1).sum().item(), 'torch.distributed.tensor' in sys.modules)
import torch.distributed.tensor
print(torch.distributed.tensor.DTensor.__module__, (torch.ones(2).cuda() + 2).sum().item())
'''


@remote.since((2, 5), 'torch.distributed.tensor.DTensor')
def test_the_first_call_imports_nothing_that_a_program_has_no_use_for():
    """The first call does not import the module of `DTensor`, which would take a second.

    PyTorch looks up `DTensor` in the first call.
    """
    code = SPARED.format(folder=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, '-c', code], text=True, capture_output=True, check=True,
                          timeout=LIMIT)
    assert done.stdout == '4.0 False\ntorch.distributed.tensor 6.0\n'


SIZES = {'full': ((2,), 1.0), 'randint': (5, (2,)), 'linspace': (0, 1, 3), 'logspace': (0, 1, 3),
         'tensor': ([1],), 'as_tensor': ([1],), 'asarray': ([1],), 'empty_strided': ((2,), (1,)),
         'empty_permuted': ((2,), (0,)), 'tril_indices': (2, 2), 'triu_indices': (2, 2),
         'normal': (0.0, 1.0, (2,)), 'range': (0, 3)}
LIKE = {'full_like': (1,), 'randint_like': (5,), 'new_full': ((2,), 1.0), 'new_tensor': ([2],),
        'new_empty_strided': ((2,), (1,))}
MAKERS = {
    **{name: lambda name=name, **how: getattr(torch, name)(*SIZES.get(name, (2,)), **how)
       for name in (*SIZES, 'empty', 'zeros', 'ones', 'rand', 'randn', 'randperm', 'arange', 'eye',
                    'scalar_tensor', 'hann_window', 'hamming_window', 'bartlett_window',
                    'blackman_window', 'kaiser_window')},
    **{name: lambda name=name, **how: getattr(torch, name)(torch.ones(2), *LIKE.get(name, ()),
                                                           **how)
       for name in dir(torch) if name.endswith('_like')},
    **{name: lambda name=name, **how: getattr(torch.ones(2), name)(*LIKE.get(name, (2,)), **how)
       for name in dir(torch.Tensor) if name.startswith('new_') and name != 'new'},
    'fftfreq': lambda **how: torch.fft.fftfreq(3, **how),
    'rfftfreq': lambda **how: torch.fft.rfftfreq(3, **how),
    'a layer': lambda **how: nn.Linear(2, 2, **how).weight,
    'to_empty': lambda **how: nn.Linear(2, 2, device='meta').to_empty(**how).weight,
}


@pytest.mark.parametrize('name', MAKERS)
def test_whatever_makes_a_tensor_takes_the_number_of_the_device(replay, name):
    torch.manual_seed(0)
    made = MAKERS[name](device=0)
    assert made.device == torch.device('cuda', 0)
    torch.manual_seed(0)
    expected = MAKERS[name](device='cpu')
    assert made.shape == expected.shape and made.dtype is expected.dtype
    if 'empty' not in name:
        torch.testing.assert_close(made.cpu(), expected)
    with pytest.raises(RuntimeError, match='invalid device ordinal'):
        MAKERS[name](device=1)


def test_whatever_makes_a_tensor_can_pin_it(replay):
    for name in ('zeros', 'ones', 'full', 'rand', 'tensor', 'zeros_like', 'full_like', 'new_ones'):
        assert MAKERS[name](pin_memory=True).is_pinned() and not MAKERS[name]().is_pinned()


def test_classes_and_modes_see_the_functions_that_make_tensors(replay):
    seen = []

    class Seeing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Mine(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, kinds, args=(), kwargs=None):
            seen.append(function)
            return super().__torch_function__(function, kinds, args, kwargs or {})

    with Seeing():
        torch.zeros(2)
    torch.zeros_like(torch.ones(2).as_subclass(Mine))
    assert seen == [torch.zeros, torch.zeros_like]
    with torch.device(0):
        assert torch.ones(2).is_cuda and torch.as_tensor([1]).is_cuda
    scripted = torch.jit.script(made_in_a_script)
    assert scripted(torch.ones(2)).tolist() == [1, 2]


def made_in_a_script(x: torch.Tensor):
    return torch.zeros(2) + torch.ones_like(x) + torch.arange(2)


def test_a_packed_sequence_goes_to_the_number_of_the_device(replay):
    packed = nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert packed.to(0).data.is_cuda and packed.cuda(0).data.is_cuda
