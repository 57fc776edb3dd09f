"""Parts of a plan that run as one, on a device that stands in for CUDA's graphs."""

import clients
import numpy as np
import pytest
import remote
import torch
from fake import Direct, Offload
from programs_fake import Pass, Program
from rrto_bridge.execution import blocks, graphs, perform
from rrto_bridge.execution.graphs import CudaGraphs, Part, same
from rrto_bridge.execution.replay_server import ReplayServer
from torch import nn

AFTER, CHECKS = 2, 2


@pytest.fixture(autouse=True)
def early(monkeypatch):
    monkeypatch.setattr(graphs, 'AFTER', AFTER)
    monkeypatch.setattr(graphs, 'CHECKS', CHECKS)
    monkeypatch.setattr(blocks, 'SHORTEST', 2)


class Fixed:
    """Like a CUDA graph: it reads and writes the memory that it was captured with, whatever comes.

    `wrong`: the replay, counted over all, that gives something else. `refuses`: raised by captures.
    """

    def __init__(self, wrong=None, refuses=None, size=100):
        self.wrong, self.refuses, self.size = wrong, refuses, size
        self.captures = self.replays = 0

    def capture(self, compute, inputs):
        if self.refuses is not None:
            raise self.refuses
        self.captures += 1
        return FixedGraph(self, compute, [a.copy(order='K') for a in inputs])

    def same(self, one, other):
        return one.shape == other.shape and one.strides == other.strides \
            and one.tobytes() == other.tobytes()


class FixedGraph:
    def __init__(self, owner, compute, inputs):
        self.owner, self.compute, self.inputs = owner, compute, inputs
        self.size = owner.size
        self.outputs = [a.copy(order='K') for a in compute(inputs)]

    def replay(self, inputs):
        for own, given in zip(self.inputs, inputs, strict=True):
            own[...] = given
        for own, made in zip(self.outputs, self.compute(self.inputs), strict=True):
            own[...] = made
        self.owner.replays += 1
        if self.owner.replays == self.owner.wrong:
            self.outputs[0][...] += 1
        return [a.copy(order='K') for a in self.outputs]


def run(program, schedule, capturer, seed=0):
    device = Offload(seed, capturer=capturer)
    return program.run(device, schedule), device


@pytest.mark.parametrize('seed', range(60))
def test_programs_give_what_they_give_without(seed):
    program, capturer = Program(seed, 1 + seed % 2, 12), Fixed()
    schedule = [Pass(k % 2 if seed % 2 else 0, keep=5 if k == 20 else None,
                     extra=4 if k == 24 else None, stop=7 if k == 28 else None)
                for k in range(36)]
    printed, device = run(program, schedule, capturer, seed)
    assert printed == program.run(Direct(), schedule)
    device.machine.leave()
    kept = sum(b.part._size for p in device.server._plans.values() for b in p.blocks.values())
    assert kept == 100 * capturer.captures or len(device.server._plans) < device.machine._tree.added
    _, without = run(program, schedule, None, seed)
    assert device.executor.used - kept == without.executor.used


def plain(device, passes):
    """Passes that only compute; what is printed."""
    weights = [device.put(np.full((1, 4), k + 2)) for k in range(3)]
    printed = []
    for number in range(passes):
        x = device.put(np.arange(8).reshape(2, 4) + number)
        for weight in weights:
            x = device.add(device.mul(x, weight), device.sum(x))
        printed.append(device.get(x).tolist())
    return printed


def test_a_part_is_captured_checked_and_then_run_as_one():
    capturer = Fixed()
    device = Offload(capturer=capturer)
    assert plain(device, 20) == plain(Direct(), 20)
    runs = device.machine.finished
    assert capturer.captures == 1 and capturer.replays == runs - AFTER
    plan, = device.server._plans.values()
    block, = plan.blocks.values()
    assert len(block.inputs) == 1 and len(block.constants) == 3 and len(block.outputs) == 1


@pytest.mark.parametrize(('capturer', 'reason'), [
    (Fixed(wrong=1), 'its results differ'), (Fixed(wrong=CHECKS), 'its results differ'),
    (Fixed(refuses=RuntimeError('operation not permitted when stream is capturing\nand more')),
     'RuntimeError: operation not permitted when stream is capturing'),
    (Fixed(size=1 << 61), 'OutOfMemory: full')])
def test_whatever_goes_wrong_drops_the_graph_for_good_with_one_line(capturer, reason, capsys):
    device = Offload(capturer=capturer)
    assert plain(device, 20) == plain(Direct(), 20)
    told = capsys.readouterr().err
    assert told.count('\n') == 1 and told.endswith(f'does not run as a CUDA graph: {reason}\n')
    assert capturer.captures <= 1 and capturer.replays <= CHECKS
    without = Offload()
    plain(without, 20)
    assert device.executor.used == without.executor.used


def test_what_a_graph_keeps_counts_as_the_programs_memory_until_it_goes():
    used = []
    capturer = Fixed()
    part = Part(capturer, 'a part', lambda size: used.append(size) or size,
                lambda size: used.append(-size))
    given = [np.arange(3)]

    def compute(inputs):
        return [inputs[0] * 2]

    for _ in range(AFTER):
        assert not part.wanted('key')
    for _ in range(CHECKS + 2):
        assert part.wanted('key') and part.run('key', compute, given)[0].tolist() == [0, 2, 4]
    assert not part.wanted('other shapes, or another place of a weight') and part.wanted('key')
    assert used == [100]
    part.close()
    assert used == [100, -100] and part.dropped


@pytest.mark.parametrize('name', ['packed_lstm', 'vision'])
def test_models_of_pytorch_give_the_same_as_one_part(name, monkeypatch):
    """In-place activations, views, and weights in the places where the capture found them."""
    capturer = Aside()
    monkeypatch.setattr(perform, 'ReplayServer', lambda executor, _: ReplayServer(
        executor, capturer))
    monkeypatch.setitem(clients.CLIENTS, 'vision', vision)
    expected = list(clients.run(name, 'cpu', 12))
    engine = remote.start('replay')
    for mine, theirs in zip(clients.run(name, 'cuda', 12), expected, strict=True):
        assert all(map(torch.equal, mine, theirs))
    plan, = engine.port.performer.replay._plans.values()
    block, = plan.blocks.values()
    assert not block.part.dropped and capturer.replays == 12 - 3 - AFTER
    if name == 'vision':
        assert block.end - block.start == len(plan.instructions) - 2   # all but input and output


def vision(device):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, 2),
        nn.Hardswish(inplace=True), nn.Flatten(2), nn.Unflatten(2, (7, 7)), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(72, 5), nn.Softmax(1))
    return clients.forward(model, lambda k: clients.image(k, 18), device)


class Aside(Fixed):
    """`Fixed` for tensors."""

    def capture(self, compute, inputs):
        return AsideGraph(self, compute, [t.clone() for t in inputs])

    def same(self, one, other):
        return same(one, other)


class AsideGraph(FixedGraph):
    def __init__(self, owner, compute, inputs):
        self.owner, self.compute, self.inputs, self.size = owner, compute, inputs, owner.size
        self.outputs = compute(inputs)

    def replay(self, inputs):
        self.owner.replays += 1
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        for own, made in zip(self.outputs, self.compute(self.inputs), strict=True):
            own.copy_(made)
        return [t.clone() for t in self.outputs]


def test_the_same_bits():
    nan, x = torch.tensor([float('nan'), -0.0]), torch.rand(2, 3)
    assert same(nan, nan.clone()) and not same(nan, torch.tensor([float('nan'), 0.0]))
    assert not same(x, x.t().contiguous().t()) and not same(x, x.double())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')
def test_a_cuda_graph_gives_the_same_bits():
    layer = torch.nn.Conv2d(3, 8, 3).cuda().eval()

    def compute(inputs):
        return [torch.relu_(layer(inputs[0])), inputs[0].sum()]

    with torch.inference_mode():
        graph = CudaGraphs(torch.device('cuda:0')).capture(
            compute, [torch.rand(1, 3, 16, 16, device='cuda')])
        kept = []
        for _ in range(3):
            x = torch.rand(1, 3, 16, 16, device='cuda')
            kept.append((graph.replay([x]), compute([x])))
        assert all(same(a, b) for found, expected in kept
                   for a, b in zip(found, expected, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')
def test_what_can_not_be_captured_is_run_as_before(capsys):
    part = Part(CudaGraphs(torch.device('cuda:0')), 'a part', lambda size: size, lambda size: None)
    x = torch.rand(5, device='cuda')

    def compute(inputs):
        return [inputs[0] * inputs[0].max().item()]

    for _ in range(AFTER + 3):
        if part.wanted(0):
            assert same(part.run(0, compute, [x])[0], x * x.max())
    assert part.dropped and 'does not run as a CUDA graph' in capsys.readouterr().err
    assert torch.equal((x + 1).cpu(), x.cpu() + 1)
