"""For a program, the device behaves as a CUDA device does."""

import copy
import gc
import io
import threading
import weakref

import numpy as np
import pytest
import remote
import torch
from rrto_bridge.program.remote import RemoteTensor
from torch import nn


def halve(x):
    x.div_(2)


LIBRARY = torch.library.Library('rrto_test', 'FRAGMENT')
LIBRARY.define('running(Tensor x, Tensor(a!) out) -> Tensor(a!)')
LIBRARY.impl('running', lambda x, out: out.copy_(x.cumsum(0)), 'CPU')
LIBRARY.impl('running', lambda x, out: _loop(x, out), 'CompositeExplicitAutograd')
LIBRARY.define('twice(Tensor x) -> Tensor')
LIBRARY.define('halve_(Tensor(a!) x) -> ()')
LIBRARY.define('chosen(Tensor x, Tensor order) -> Tensor')
LIBRARY.impl('twice', lambda x: x * 2, 'CPU')
LIBRARY.impl('chosen', lambda x, order: x[order][:int(x.sum()) % 7 + 1].clone(), 'CPU')
LIBRARY.impl('halve_', halve, 'CPU')


def test_tensors_say_that_they_are_on_cuda(engine):
    x = torch.zeros(2, 3).cuda()
    assert x.is_cuda and x.device == torch.device('cuda:0') and str(x.device) == 'cuda:0'
    assert x.shape == (2, 3) and x.dtype is torch.float32 and x.get_device() == 0
    assert x.type() == 'torch.cuda.FloatTensor'
    assert repr(x[0]) == "tensor([0., 0., 0.], device='cuda:0')"
    assert repr(x.sum()) == "tensor(0., device='cuda:0')"
    assert f'{x.sum():.2f}' == '0.00'


def test_the_device_can_be_named_in_every_way(engine):
    cpu = torch.arange(3.0)
    for x in (cpu.cuda(), cpu.to('cuda'), cpu.to('cuda:0'), cpu.cuda(0), cpu.to(0),
              cpu.to(torch.device('cuda')),
              torch.tensor([0.0, 1, 2], device='cuda'), torch.arange(3.0, device='cuda'),
              torch.as_tensor(np.arange(3, dtype='f'), device='cuda')):
        assert isinstance(x, RemoteTensor) and x.tolist() == [0, 1, 2]
    with torch.device('cuda'):
        assert torch.ones(2).is_cuda and nn.Linear(2, 2).weight.is_cuda
    assert nn.Linear(2, 2).to(0).weight.is_cuda and nn.Linear(2, 2).cuda(0).bias.is_cuda
    assert x.to('cuda') is x and x.cuda() is x and x.cpu().device.type == 'cpu'
    with pytest.raises(RuntimeError, match='ordinal'):
        torch.cuda.get_device_properties(1)


def test_values_come_back_in_every_way(engine):
    x = torch.tensor([[1.5, -2.0]]).cuda()
    assert x.tolist() == [[1.5, -2.0]] and x[0, 1].item() == -2.0 and float(x.sum()) == -0.5
    assert bool((x > 0).any()) and int(x.argmax()) == 0 and len(x) == 1
    assert torch.equal(torch.zeros(1, 2).copy_(x), x.cpu())
    assert x.cpu().numpy().tolist() == x.numpy(force=True).tolist()
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(TypeError, match='Tensor.cpu'):
        np.asarray(x)


def test_devices_are_not_mixed(engine):
    x = torch.ones(3).cuda()
    assert (x + torch.tensor(1.0)).tolist() == [2, 2, 2]
    assert x[torch.tensor([0, 2])].shape == (2,)
    with pytest.raises(RuntimeError, match='same device.*cuda:0 and cpu'):
        x + torch.ones(3)


def test_writing_through_views_masks_and_indices(engine):
    def write(x):
        x[1] = 5
        x[:, 0] += 1
        x[x > 4] *= 2
        x.view(-1)[2:4].zero_()
        x[[0, 1], [1, 2]] = torch.tensor([7.0, 8.0]).to(x.device)
        y = x.t()
        y.add_(1)
        return x
    assert torch.equal(write(torch.arange(6.0).view(2, 3)),
                       write(torch.arange(6.0).view(2, 3).cuda()).cpu())


def test_in_place_views_and_out_arguments(engine):
    x = torch.arange(6.0).view(2, 3).cuda()
    alias = x.detach()
    x.t_().unsqueeze_(0)
    assert x.shape == (1, 3, 2) and alias.shape == (2, 3)
    assert x.tolist() == torch.arange(6.0).view(2, 3).t()[None].tolist()
    out = torch.empty(0, device='cuda')
    torch.add(alias, 1, out=out)
    assert out.shape == (2, 3) and out.sum().item() == 21


def test_strides_survive_the_way(engine):
    x = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert x.cuda().stride() == x.stride() == x.cuda().cpu().stride()
    y = torch.rand(4, 6)[:, ::2]
    assert torch.equal(y.cuda().cpu(), y) and y.cuda().stride() == y.to('cpu', copy=True).stride()
    for dtype in (torch.float16, torch.bfloat16, torch.bool, torch.int8, torch.complex64):
        z = torch.ones(3).to(dtype)
        assert torch.equal(z.cuda().cpu(), z)
        assert torch.equal(torch.ones(3).to('cuda', dtype).cpu(), z)


def test_modules_move_there_and_back(engine):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    x = torch.rand(2, 4)
    expected = model(x)
    weight = model[0].weight
    assert torch.equal(model.cuda()(x.cuda()).cpu(), expected)
    assert model[0].weight is weight and isinstance(weight, nn.Parameter) and weight.is_cuda
    assert all(v.is_cuda for v in model.state_dict().values())
    twin = copy.deepcopy(model)
    with torch.no_grad():
        model[0].bias.zero_()
    assert torch.equal(twin(x.cuda()).cpu(), expected)
    twin.load_state_dict(model.state_dict())
    assert twin[0].bias.abs().sum().item() == 0
    assert not model.cpu()[0].weight.is_cuda and type(model[0].weight) is nn.Parameter
    assert torch.equal(model.half().cuda()[0].weight.cpu(), model.cpu()[0].weight)


@pytest.mark.parametrize('around', [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_modules_move_with_their_gradients(engine, around):
    model = nn.Linear(2, 2)
    model(torch.tensor([[1.0, 2.0]])).sum().backward()
    gradient = model.weight.grad
    with around():
        model.cuda()
        assert model.weight.grad.is_cuda and model.weight.grad is gradient
        assert model.half().bias.grad.dtype is torch.float16
        assert copy.deepcopy(model).weight.grad is None
        model.weight.grad.data = model.weight.grad * 2
        model.cpu()
    assert model.weight.grad.tolist() == [[2, 4], [2, 4]] and model.bias.grad.tolist() == [1, 1]
    model.cuda().zero_grad(set_to_none=False)
    assert model.weight.grad.tolist() == [[0, 0], [0, 0]]


def test_saving_and_loading(engine):
    model = nn.Linear(3, 2)
    file = io.BytesIO()
    torch.save(model.cuda().state_dict(), file)
    for location, on_cuda in (('cuda', True), (torch.device('cuda:0'), True), ('cpu', False),
                              (lambda storage, place: storage, False), ({'cpu': 'cuda'}, True)):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert all(v.is_cuda is on_cuda for v in loaded.values())
        assert torch.equal(loaded['weight'].cpu(), model.weight.cpu())


def test_questions_about_the_device(engine):
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0 and torch.cuda.get_device_name() == 'CPU'
    properties = torch.cuda.get_device_properties(0)
    assert properties.name == 'CPU' and properties.total_memory > 0
    before = torch.cuda.memory_allocated()
    x = torch.zeros(1000).cuda()
    assert torch.cuda.memory_allocated() == before + 4000 and x is not None
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    stream, start, end = torch.cuda.Stream(), *(torch.cuda.Event(enable_timing=True) for _ in 'ab')
    with torch.cuda.stream(stream):
        start.record()
        end.record()
    assert start.elapsed_time(end) >= 0 and torch.cuda.current_stream() is not None
    with torch.cuda.device(0):
        assert torch.zeros(1).pin_memory().cuda(non_blocking=True).is_cuda


def test_the_memory_of_dropped_tensors_is_free_again(engine):
    cuda, size = torch.cuda, 1 << 20
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    x = torch.ones(size // 4, device='cuda')
    assert cuda.memory_allocated() - before == cuda.memory_stats()['active_bytes.all.current'] \
        - before == size
    y = x * 2
    del y
    assert cuda.memory_allocated() == before + size
    assert cuda.max_memory_allocated() == before + 2 * size <= cuda.max_memory_reserved()
    free, total = cuda.mem_get_info()
    assert total - free == cuda.device_memory_used() == before + size
    del x
    assert cuda.memory_allocated() == cuda.memory_reserved() == before
    assert cuda.mem_get_info() == (free + size, total)
    cuda.reset_peak_memory_stats('cuda')
    assert cuda.max_memory_allocated(0) == before
    stats = cuda.memory_stats_as_nested_dict()['allocated_bytes']['all']
    assert stats['allocated'] - stats['freed'] == stats['current'] == before
    with pytest.raises(RuntimeError, match='invalid device'):
        cuda.memory_allocated(1)


def test_questions_about_memory_leave_replay_alone(replay):
    layer = nn.Linear(8, 8).cuda()
    seen = []
    with torch.no_grad():
        for k in range(12):
            y = layer(torch.full((2, 8), float(k)).cuda())
            seen.append(torch.cuda.memory_allocated())     # within the pass
            y.cpu()
            del y
            seen.append(torch.cuda.memory_allocated())     # after it
    assert replay.inferences >= 5 and len(set(seen[9::2])) == 1


def test_the_allocator_answers_as_cudas(replay):
    cuda = torch.cuda
    cuda.reset_accumulated_memory_stats()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(1 << 50, device='cuda').cpu()
    stats = cuda.memory_stats()
    assert stats['num_ooms'] == 1 and all(type(value) is int for value in stats.values())
    assert 'allocated' in cuda.memory_summary().lower() and cuda.memory_summary(abbreviated=True)
    assert cuda.get_allocator_backend() == 'native'


def test_a_lack_of_memory_that_synchronize_reports_is_cudas_error(replay):
    row = torch.ones(1, device='cuda')
    for size in 8, 8, 1 << 50:      # the last is not waited for, as its shape is predicted
        big = row.expand(size) + 1
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.cuda.synchronize()
    del big
    assert row.item() == 1


@remote.since((2, 10), 'host_memory_stats')
def test_no_memory_of_the_robot_is_pinned(replay):
    assert not any(torch.cuda.host_memory_stats().values())


@remote.since((2, 8), 'get_per_process_memory_fraction')
def test_the_fraction_of_the_memory_is_the_one_that_was_set(replay):
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert torch.cuda.get_per_process_memory_fraction() == 0.5


# arguments of functions of torch.cuda; others are called without
GIVEN = {'can_device_access_peer': (0, 0), 'set_device': (0,), 'manual_seed': (1,), 'device': (0,),
         'manual_seed_all': (1,), 'set_per_process_memory_fraction': (1.0,), 'set_stream': (None,),
         'set_sync_debug_mode': (0,), 'caching_allocator_delete': (0,), 'ExternalStream': (0,),
         'get_stream_from_external': (0,), 'change_current_allocator': (None,),
         'use_mem_pool': (0,), 'CUDAPluggableAllocator': ('a', 'b', 'c'), 'check_error': (0,),
         'graph': (None,), 'export_dot': ('file',), 'export_graph_data': ('file',),
         'caching_allocator_alloc': (1,), 'device_of': (torch.ones(1),), 'set_rng_state_all': ([],),
         'caching_allocator_enable': (True,), 'DeferredCudaCallError': ('',),
         'StreamContext': (None,)}
OTHERS = {'CudaError', 'list_gpu_processes', 'set_rng_state', 'set_rng_state_all',
          'make_graphed_callables', *(n for n in torch.cuda.__all__ if n.endswith('Storage'))}


@pytest.mark.parametrize('name', [n for n in torch.cuda.__all__ if n not in OTHERS
                                  and callable(getattr(torch.cuda, n))])
def test_everything_in_torch_cuda_answers_or_says_why_not(replay, name):
    try:
        getattr(torch.cuda, name)(*GIVEN.get(name, ()))
    except RuntimeError as error:
        assert str(error).startswith('rrto: ')


@remote.since((2, 6), 'use_mem_pool')
def test_what_is_refused_can_be_unwrapped(replay):
    assert callable(torch.cuda.use_mem_pool.__wrapped__)    # torch._dynamo of 2.14 does


def test_seeds(engine):
    torch.manual_seed(3)
    on_cpu = torch.rand(5)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(5, device='cuda').cpu(), on_cpu)
    torch.cuda.manual_seed_all(3)
    assert torch.equal(torch.rand(5, device='cuda').cpu(), on_cpu)


def test_autocast(engine):
    x = torch.rand(2, 4)
    layer = nn.Linear(4, 3)
    with torch.no_grad(), torch.autocast('cpu', dtype=torch.float16):
        expected = layer(x)
    layer.cuda()
    with torch.no_grad(), torch.autocast('cuda'):
        result = layer(x.cuda())
    assert result.dtype is torch.float16 and torch.equal(result.cpu(), expected)


def test_inference_mode(engine):
    layer = nn.Linear(3, 3).cuda()
    with torch.inference_mode():
        y = layer.weight.expand(3, 3) + layer(torch.ones(3, device='cuda'))
        assert y.is_inference() and y.add_(1).shape == (3, 3)


def test_threads(engine):
    model = nn.Linear(8, 8).cuda()
    inputs = [torch.rand(2, 8) for _ in range(4)]
    results = [None] * 4

    def work(k):
        with torch.no_grad():
            for _ in range(6):
                results[k] = model(inputs[k].cuda()).cpu()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    model.cpu()
    with torch.no_grad():
        assert all(torch.equal(model(x), y) for x, y in zip(inputs, results, strict=True))


def test_data_loader_with_pinned_memory(engine):
    data = torch.utils.data.TensorDataset(torch.arange(6.0).view(3, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)
    assert [x.cuda().sum().item() for x, in loader] == [6.0, 9.0]


def test_scripted_and_traced_modules(engine):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval()
    x = torch.rand(2, 3)
    expected = model(x)
    scripted = torch.jit.trace(model, x).cuda()
    with torch.no_grad():
        for _ in range(5):
            assert torch.equal(scripted(x.cuda()).cpu(), expected)
    assert torch.compile(model) is model


def test_errors_are_those_of_pytorch(engine):
    x = torch.zeros(2, 3).cuda()
    with pytest.raises(RuntimeError, match='mat1 and mat2|must match|size'):
        (x @ x).cpu()
    with pytest.raises(IndexError):
        x[5].cpu()
    assert x.sum().item() == 0


@pytest.mark.parametrize('where', ['device', 'host', 'grad'])
def test_gradients_are_refused_with_the_reason(replay, where):
    layer = nn.Linear(2, 1).cuda()
    loss = layer(torch.ones(1, 2, device='cuda')).sum()
    with pytest.raises(RuntimeError, match='RRTO is for inference only'):
        if where == 'grad':
            torch.autograd.grad(loss, layer.weight)
        else:
            (loss if where == 'device' else loss.cpu()).backward()


def test_gradients_on_the_cpu_are_as_ever(replay):
    x = torch.ones(2, requires_grad=True)
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]
    with pytest.raises(RuntimeError, match='does not require grad'):
        torch.ones(1).sum().backward()


def test_recurrent_layers_and_attention_choose_the_servers_kernels(engine):
    torch.manual_seed(0)
    lstm, gru = nn.LSTM(3, 4, batch_first=True), nn.GRU(4, 2)
    attention = nn.MultiheadAttention(4, 2, batch_first=True).eval()

    def run(x):
        with torch.no_grad():
            y, (h, c) = lstm(x)
            return [t.cpu() for t in (y, h, c, gru(y)[0], attention(y, y, y)[0])]

    x = torch.rand(2, 5, 3)
    expected = run(x)
    for module in (lstm, gru, attention):
        module.cuda()
    assert all(map(torch.equal, run(x.cuda()), expected))


def test_an_operator_that_the_server_refuses_runs_here(engine, capsys):
    x = torch.arange(1.0, 4.0).cuda()
    for _ in range(2):
        assert torch.ops.rrto_test.twice(x).tolist() == [2, 4, 6]
    torch.ops.rrto_test.halve_(x)
    assert x.tolist() == [0.5, 1.0, 1.5] and x.is_cuda
    told = capsys.readouterr().err
    assert told.count('rrto_test.twice.default runs on this machine') == 1
    assert 'test_device.py:' in told


def _loop(x, out):
    last = 0
    for k in range(len(x)):
        last = last + x[k]
        out[k] = last
    return out


def test_a_kernel_for_the_cpu_is_preferred_to_a_loop_for_all_devices(engine):
    x, out = torch.ones(300).cuda(), torch.zeros(300).cuda()
    before = engine.machine.calls
    assert torch.ops.rrto_test.running(x, out) is out
    assert out.is_cuda and torch.equal(out.cpu(), torch.arange(1.0, 301))
    assert engine.machine.calls - before < 10


def test_dropped_tensors_are_freed_on_the_server(engine):
    x = torch.zeros(10).cuda()
    for _ in range(500):
        x = x + 1
    remote.device().lifetimes.collect()
    torch.cuda.synchronize()
    x.cpu()
    assert x[0].item() == 500 and len(engine.port.performer.context.tensors) < 150


@pytest.mark.parametrize('mode', ['async', 'replay'])
def test_shapes_that_vary_cost_no_round_trips_of_their_own(mode):
    """Two selections and one result, all of varying shape, cost only one round trip each."""
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 8, 3)

    def infer(x):
        y = torch.relu(layer(x)).flatten(1).view(-1, 4)
        y = y[y[:, 0] > 0.4]
        y = torch.cat((y, y.sort(dim=1).values), 1).clamp(0, 1)
        y = y[y[:, 2] > 0.5]
        return (y @ y.t()).triu(1) + torch.arange(y.shape[0], device=x.device)[:, None]

    images = [torch.randn(1, 3, 12, 12) for _ in range(30)]
    with torch.no_grad():
        expected = [infer(x) for x in images]
        engine = remote.start(mode)
        layer.cuda()
        for x, y in zip(images, expected, strict=True):
            before = engine.machine.round_trips
            assert torch.equal(infer(x.cuda()).cpu(), y)
    assert len({y.shape for y in expected}) >= 8
    assert engine.machine.round_trips - before == 3
    assert mode == 'async' or engine.inferences > 20


@pytest.mark.parametrize('mode', remote.MODES)
def test_an_out_argument_is_returned_with_its_new_shape(mode):
    """The `out` tensor may be an input of the operator, and its new shape may depend on values."""
    def infer(x):
        place = {'device': x.device}
        y, other, more = x * 2, torch.zeros(4, 4, **place), torch.zeros(4, 4, **place)
        found, positive = torch.zeros(0, dtype=torch.long, **place), torch.zeros(0, **place)
        outs = [found, positive, x, other, more]
        returned = [torch.nonzero(x > 0, out=found), torch.masked_select(y, y > 0, out=positive),
                    *(torch.ops.aten.add.out(x, y, out=out) for out in (x, other, more))]
        return [(a is b, b.shape, b.stride(), b.tolist())
                for a, b in zip(returned, outs, strict=True)]

    images = [torch.randn(4, 4, generator=torch.Generator().manual_seed(k)) for k in range(12)]
    expected = [infer(image.clone()) for image in images]
    remote.start(mode)
    assert [infer(image.cuda()) for image in images] == expected


def test_operators_that_return_nothing_are_not_waited_for(capsys):
    engine = remote.start('async')
    x = torch.zeros(3).cuda()
    for _ in range(3):
        before = engine.machine.round_trips
        torch._foreach_add_([x], 1)
        torch._assert_async((x > 0).all(), 'too small')
    assert engine.machine.round_trips == before
    assert x.tolist() == [3, 3, 3]
    torch._assert_async((x > 3).all(), 'too small')
    with pytest.raises(RuntimeError, match='too small'):
        x.cpu()
    assert x.tolist() == [3, 3, 3] and not capsys.readouterr().err


@pytest.mark.parametrize('mode', ['async', 'replay'])
def test_what_an_operator_of_the_robot_needs_is_fetched_together_and_let_go(mode):
    engine = remote.start(mode)
    x, order = torch.arange(9.0).cuda(), torch.tensor([2, 0, 1]).cuda()
    gc.collect()
    gc.disable()
    try:
        before = engine.machine.round_trips
        assert torch.ops.rrto_test.chosen(x, order).tolist() == [2, 0]
        assert engine.machine.round_trips - before == 2
        died = weakref.ref(x)
        del x
        assert died() is None
    finally:
        gc.enable()


def test_what_surrounds_an_operator_of_the_robot_is_replayed(replay):
    """The calls before and after an operator that runs on the robot are replayed.

    The shape of the operator's result varies, and so do all shapes that depend on it. The shapes
    before this operator do not vary.
    """
    torch.manual_seed(0)
    layer, other = nn.Linear(6, 6), nn.Linear(6, 6)

    def infer(x, device):
        y = layer(x.to(device))
        kept = y[y[0] > -100]          # this selection selects every element
        few = torch.ops.rrto_test.chosen(y[0] * 100 // 1, torch.arange(6, device=device))
        return (few * 2).cpu(), other(kept + (x * 2).to(device)).cpu(), kept.cpu()

    images = [torch.randn(6, 6) for _ in range(24)]
    with torch.no_grad():
        expected = [infer(x, 'cpu') for x in images]
        layer.cuda(), other.cuda()
        for x, y in zip(images, expected, strict=True):
            assert all(map(torch.equal, infer(x, 'cuda'), y))
    assert len({y.shape for y, *_ in expected}) >= 5 and replay.inferences >= 20


def test_an_error_of_a_call_before_a_replayed_pass_is_raised_in_it(replay):
    table, layer = torch.arange(8.0).view(4, 2).cuda(), nn.Linear(2, 2).cuda()
    with torch.no_grad():
        for k in range(20):
            index = torch.tensor([k % 4 if k != 15 else 9]).cuda()
            row = table.index_select(0, index)
            if k == 15:
                with pytest.raises(IndexError, match='out of range'):
                    layer(row).cpu()
            else:
                assert torch.equal(layer(row).cpu(), layer(table[k % 4:k % 4 + 1]).cpu())


def test_round_trips_of_a_replayed_inference(replay):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).cuda()
    with torch.no_grad():
        for _ in range(12):
            before = replay.machine.round_trips
            model(torch.rand(1, 4).cuda()).cpu()
    assert replay.machine.round_trips - before == 1
    assert replay.inferences >= 7 and replay.last == 1
    with torch.no_grad():
        for _ in range(12):
            before = replay.machine.round_trips
            y = model(torch.rand(1, 4).cuda())
            if y.max().item() > 100:
                break
            y.cpu()
    # The whole pass was sent in one message.
    assert replay.machine.round_trips - before == 1 and replay.last == 1


def test_tensors_that_are_conjugated_or_negated_in_name_only(engine):
    x = torch.randn(3, 4, dtype=torch.complex64)
    for lazy in (x.conj(), x.conj().imag, x.mT.conj()):
        assert lazy.is_conj() or lazy.is_neg()
        assert torch.equal(lazy.cuda().cpu(), lazy.clone())
    for _ in range(6):
        y = x.cuda().conj()
        assert torch.equal((y @ y.mT).cpu(), x.conj() @ x.conj().mT)
        assert torch.equal(torch.fft.hfftn(x.real.cuda()).cpu(), torch.fft.hfftn(x.real))
        assert torch.equal(torch.ops.rrto_test.twice(y).cpu(), x.conj() * 2)
    assert torch.zeros(3, 4, dtype=torch.complex64).cuda().copy_(x.conj()).cpu().equal(
        x.conj().clone())
