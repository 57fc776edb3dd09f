"""An unsupported operation raises a one-line error; all other results equal those of a CPU."""

import errno
import fcntl
import importlib
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import remote
import torch
import torch.nn.functional as F
from rrto_bridge.protocol.errors import ConfigError
from rrto_bridge.server import shell
from rrto_bridge.server.shared_status import SharedStatus
from torch import nn

DENSE = 'rrto: a tensor on the device must be dense, got a .* one: keep it on the CPU'


NOT_DENSE = {
    'nested': lambda x: torch.nested.nested_tensor([x, x[:1]]),
    'nested there': lambda x: torch.nested.nested_tensor([x.cpu(), x[:1].cpu()],
                                                         device='cuda') * 2,
    'nested moved': lambda x: torch.nested.nested_tensor([x.cpu(), x[:1].cpu()]).cuda(),
    'as_nested': lambda x: torch.nested.as_nested_tensor([x, x[:1]]),
    'csr': lambda x: x.to_sparse_csr(),
    'csr moved': lambda x: torch.eye(3).to_sparse_csr().cuda() @ x,
    'csr made': lambda x: torch.sparse_csr_tensor(torch.tensor([0, 1]).cuda(), torch.tensor(
        [0]).cuda(), x[0, :1], size=(1, 1)),
    'csc': lambda x: x.to_sparse_csc(),
    'bsr': lambda x: x[:2, :2].to_sparse_bsr((2, 2)),
    'coo': lambda x: x.to_sparse(),
    'coo moved': lambda x: torch.eye(3).to_sparse().cuda(),
    'coo made': lambda x: torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1),
                                                  device='cuda'),
    'quantised': lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    'quantised moved': lambda x: torch.quantize_per_tensor(x.cpu(), 0.1, 0, torch.qint8).cuda(),
    'mkldnn': lambda x: x.to_mkldnn(),
}


@pytest.mark.parametrize('kind', NOT_DENSE)
@pytest.mark.filterwarnings('ignore')
def test_a_tensor_that_is_not_dense_is_refused_in_one_line(engine, kind, capsys):
    with pytest.raises(RuntimeError, match=DENSE) as found:
        NOT_DENSE[kind](torch.ones(3, 3).cuda())
    assert '\n' not in str(found.value) and not capsys.readouterr().err


def ragged(x):
    return torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged)


def flex(x):
    attention = importlib.import_module('torch.nn.attention.flex_attention').flex_attention
    q = torch.stack([x, x + 1])[None]
    return attention(q, q, q)


def loop(x):
    while_loop = importlib.import_module('torch._higher_order_ops').while_loop
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2),
                      (torch.tensor(0, device=x.device), x))[1]


AS_ON_A_CPU = {
    'jagged': lambda x: (ragged(x) * 2).values(),
    'jagged, linear': lambda x: F.linear(ragged(x), x).values(),
    'jagged, softmax': lambda x: F.softmax(ragged(x), -1).values(),
    'jagged, padded': lambda x: ragged(x).to_padded_tensor(0.0),
    'jagged, from offsets': lambda x: torch.nested.nested_tensor_from_jagged(
        x, torch.tensor([0, 1, 3], device=x.device)).sum(1),
    'cond': lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)),
    'while_loop': loop,
    'flex_attention': flex,
    'ctc_loss': lambda x: F.ctc_loss(F.log_softmax(torch.stack([x] * 5, 0), -1), torch.tensor(
        [[1, 2], [2, 1], [1, 1]]), torch.tensor([5, 5, 4]), torch.tensor([2, 2, 1])),
    'ctc_loss there': lambda x: F.ctc_loss(F.log_softmax(torch.stack([x] * 5, 0), -1), torch.tensor(
        [[1, 2], [2, 1], [1, 1]], device=x.device), torch.tensor([5, 5, 4], device=x.device),
        torch.tensor([2, 2, 1], device=x.device), reduction='none'),
}

RECENT = ('flex_attention', 'jagged, padded', 'jagged, from offsets')


@pytest.mark.parametrize('kind', [
    pytest.param(kind, marks=remote.since((2, 8), kind)) if kind in RECENT else kind
    for kind in AS_ON_A_CPU])
@pytest.mark.filterwarnings('ignore')
def test_it_is_what_a_cpu_gives(engine, kind):
    torch.manual_seed(0)
    x = torch.randn(3, 3)
    with torch.no_grad():
        expected = AS_ON_A_CPU[kind](x)
        for _ in range(4):
            assert torch.equal(AS_ON_A_CPU[kind](x.cuda()).cpu(), expected)


def test_an_optimizer_steps_without_a_backward(engine):
    layers = [nn.Linear(2, 2) for _ in 'ab']
    layers[1].load_state_dict(layers[0].state_dict())
    layers[1].cuda()
    for layer in layers:
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.5)
        optimizer.step()
        layer.weight.grad = torch.ones_like(layer.weight)
        optimizer.step()
    torch.testing.assert_close(layers[1].weight.cpu(), layers[0].weight)


def test_a_profile_is_made_without_the_devices_kernels(capfd):
    remote.start('replay')
    x = torch.ones(3).cuda()
    kinds = torch.profiler.ProfilerActivity
    for activities in ([kinds.CPU, kinds.CUDA], [kinds.CUDA]):
        with torch.profiler.profile(activities=activities) as profile:
            (x * 2).cpu()
        assert 'aten::mul' in profile.key_averages().table()
    # Ignore errors that PyTorch itself prints; its CUDA build prints one because the driver is
    # missing.
    told = [line for line in capfd.readouterr().err.splitlines()
            if 'USDT' not in line and 'DeviceCount failed with code' not in line]
    assert len(told) == 2 and 'no device kernels' in told[0]


def test_pinned_memory_is_a_copy_that_says_so(engine):
    x = torch.ones(3)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned[1:].is_pinned() and not x.is_pinned()
    assert pinned.pin_memory() is pinned and torch.empty(2, pin_memory=True).is_pinned()
    pinned.zero_()
    assert x.tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match='only dense CPU tensors can be pinned'):
        x.cuda().pin_memory()
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    loader = torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)
    assert all(batch.is_pinned() for batch, in loader)


OTHER_DEVICES = [
    lambda: torch.cuda.set_device(1), lambda: torch.cuda.device(1),
    lambda: torch.cuda.set_device('cuda:1'), lambda: torch.ones(1, device='cuda:1'),
    lambda: torch.ones(1).cuda(1), lambda: torch.cuda.memory_allocated(1),
    lambda: torch.cuda.mem_get_info(1), lambda: torch.cuda.get_device_name(1),
    lambda: torch.cuda.get_device_capability(1), lambda: torch.cuda.synchronize(1),
    lambda: torch.cuda.current_stream(1), lambda: torch.cuda.Stream(1),
    lambda: torch.cuda.memory_stats(torch.device('cuda', 1)), lambda: torch.Generator('cuda:1'),
    lambda: torch.cuda.get_device_properties(1)]
if hasattr(torch, 'accelerator'):   # not before PyTorch 2.6
    OTHER_DEVICES.append(lambda: torch.accelerator.set_device_index(1))


def test_there_is_one_device():
    remote.start('replay')
    for use in OTHER_DEVICES:
        with pytest.raises(RuntimeError, match='invalid device ordinal 1: use cuda:0'):
            use()
    for place in (0, 'cuda', 'cuda:0', torch.device('cuda'), None, -1):
        torch.cuda.set_device(place)
    assert torch.cuda.memory_allocated(torch.device('cuda')) == torch.cuda.memory_allocated()


def test_a_server_without_space_in_memory_uses_the_temporary_folder(monkeypatch, tmp_path):
    made = tempfile.mkdtemp

    def full(prefix, dir):
        if dir not in places:
            raise OSError(errno.ENOSPC, 'No space left on device')
        return made(prefix=prefix, dir=tmp_path)

    monkeypatch.setattr(tempfile, 'mkdtemp', full)
    places = [tempfile.gettempdir()]
    assert shell._folder()[0].parent == tmp_path
    places.clear()
    with pytest.raises(ConfigError, match=r'none in /dev/shm \(No space left on device\) or '
                                          r'\S+ \(No space left on device\); TMPDIR'):
        shell._folder()


def test_a_server_without_any_temporary_folder_says_so(monkeypatch):
    monkeypatch.setattr(shell, 'MEMORY', '/nowhere')
    monkeypatch.setattr(tempfile, 'tempdir', None)
    monkeypatch.setattr(tempfile, '_candidate_tempdir_list', lambda: ['/nowhere'])
    with pytest.raises(ConfigError, match='none in /nowhere .*No usable temporary directory'):
        shell._folder()


def test_a_folder_that_cannot_be_completed_is_deleted(monkeypatch, tmp_path):
    def full(*arguments):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(shell, 'MEMORY', str(tmp_path))
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    monkeypatch.setattr(fcntl, 'flock', full)
    with pytest.raises(ConfigError, match='No space left on device'):
        shell._folder()
    assert list(tmp_path.iterdir()) == []


def test_a_server_deletes_the_folders_of_servers_that_were_killed(monkeypatch, tmp_path):
    monkeypatch.setattr(shell, 'MEMORY', str(tmp_path))
    (tmp_path / 'rrto_of_the_user').mkdir()
    running, lock = shell._folder()
    assert (running / shell.PROVED).is_dir()
    code = "from rrto_bridge.server import shell; shell.MEMORY = {!r}; print(shell._folder()[0])"
    killed = Path(subprocess.run([sys.executable, '-c', code.format(str(tmp_path))], check=True,
                                 capture_output=True, text=True).stdout.strip())
    assert killed.parent == tmp_path and killed.exists()
    third, also = shell._folder()
    assert {*tmp_path.iterdir()} == {running, third, tmp_path / 'rrto_of_the_user'}
    lock.close()
    also.close()


def test_a_file_that_can_not_be_written_is_named(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match=str(tmp_path / 'page')):
            SharedStatus.make(tmp_path / 'page')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not (tmp_path / 'page').exists()
