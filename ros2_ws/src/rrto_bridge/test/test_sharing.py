"""Programs that do the same share one computation, and get what they would get alone."""

import os
import signal
import socket
import sys
import threading
from pathlib import Path
from weakref import WeakValueDictionary

import pytest
import remote
import torch
from fleet_compute.batch import together
from fleet_compute.runner import Offer, Runner, Tenant
from fleet_compute.weights import Weights
from fleet_testing import LIMIT, Lines, eventually
from processes import Domain, children
from rrto_bridge.execution import sharing
from rrto_bridge.execution.perform import Performer
from rrto_bridge.execution.sharing import AFTER, Sharing, load
from rrto_bridge.server.shared import NAME
from torch import nn

CPU = torch.device('cpu')


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """An engine that replays; whatever it offers, a twin offers too, so it is shared at once.

    `shared.runs`: number of passes that the runner has computed. `shared.said`: its log.
    """
    engine = remote.start('replay')
    (tmp_path / 'weights').mkdir()
    weights, twins = Weights(1 << 28, tmp_path / 'weights'), []
    path = tmp_path / 'runner'
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()
    engine.said, loaded = [], WeakValueDictionary()
    runner = Runner(listener, CPU, lambda data: load(data, weights, CPU, loaded),
                    engine.said.append)
    threading.Thread(target=runner.serve, daemon=True).start()
    context = engine.port.performer.context
    engine.port.performer = Performer(context, weights, Sharing(context, weights, path, LIMIT))
    offer, run, engine.runs, engine.offers = Tenant.offer, Offer.run, 0, []

    def twice(tenant, *arguments):
        found = offer(tenant, *arguments)
        twins.append(Tenant(path, LIMIT))
        offer(twins[-1], *arguments)
        twins[-1]._socket.recv(1 << 12)     # the runner has decided
        engine.offers.append(found)
        return found

    def counted(one, inputs):
        results = run(one, inputs)
        engine.runs += results is not None
        return results
    monkeypatch.setattr(Tenant, 'offer', twice)
    monkeypatch.setattr(Offer, 'run', counted)
    yield engine
    for twin in twins:
        twin.close()
    listener.close()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.act, self.drop, self.head = nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(8, 70)

    def forward(self, x):
        y = self.act(self.norm(self.conv(x)))
        return self.head(self.drop(y.mean((2, 3))))


def image(k):
    return torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(k))


def both():
    """Return a model on the CPU and the same on the device."""
    return Net().eval(), Net().eval().cuda()


def alike(plain, own, count=3 * AFTER, begin=0, infer=None):
    """Compare inferences with plain PyTorch's."""
    infer = infer or (lambda model, x: model(x).cpu())
    with torch.inference_mode():
        for k in range(begin, begin + count):
            torch.testing.assert_close(infer(own, image(k).cuda()), infer(plain, image(k)))


def test_a_proved_sequence_is_shared(shared):
    alike(*both())
    assert shared.runs > AFTER and 'programs share a sequence of' in shared.said[0]


def test_a_changed_weight_is_seen_by_the_next_inference(shared):
    plain, own = both()
    alike(plain, own)
    for change in (lambda m: m.head.weight.mul_(2), lambda m: m.head.weight.view(-1)[5:9].zero_(),
                   lambda m: m.norm.running_mean.add_(1),
                   lambda m: torch.add(m.head.bias, 1, out=m.head.bias)):
        runs = shared.runs
        with torch.no_grad():
            change(plain), change(own)
        alike(plain, own, 2)
        assert shared.runs == runs      # what was offered is no longer true
        alike(plain, own, 4 * AFTER)
    other = {k: v + 1 for k, v in plain.state_dict().items()}
    plain.load_state_dict(other), own.load_state_dict(other)
    alike(plain, own)


def test_what_a_program_keeps_is_its_own(shared):
    plain, own = both()

    def infer(model, x):
        y = model(x)
        kept.append(y)
        return y.cpu()
    kept = []
    with torch.inference_mode():
        for k in range(4 * AFTER):
            want = plain(image(k))
            torch.testing.assert_close(infer(own, image(k).cuda()), want)
            kept[-1].add_(1)
            torch.testing.assert_close(kept[-1].cpu(), want + 1)
            if k > AFTER:
                torch.testing.assert_close(kept[0].cpu(), plain(image(0)) + 1)
    assert shared.runs


def test_a_program_that_leaves_the_sequence_gets_what_it_computes(shared):
    plain, own = both()

    def infer(model, x):
        y = model(x)
        return (y * 3).sum().cpu() if odd else y.cpu()
    odd = False
    alike(plain, own, infer=infer)
    for k in range(12):
        odd = k % 3 == 2
        alike(plain, own, 1, k, infer)
    assert shared.runs


def test_weights_that_the_runner_has_leave_the_memory_of_the_device(shared, monkeypatch):
    monkeypatch.setattr(sharing, 'SHELVING', ('cpu',))
    monkeypatch.setattr(sharing, 'KEPT', 1024)
    context = shared.port.performer.context

    def held():
        return any(tensor.shape == (70, 8) for tensor in context.tensors.values())
    plain, own = both()
    alike(plain, own, AFTER)
    assert held()
    alike(plain, own)
    assert shared.runs and not held()
    assert torch.equal(own.head.weight.cpu(), plain.head.weight) and held()
    alike(plain, own)
    tied, other = own.head.weight.t(), plain.head.weight.t()     # a view of what was away
    with torch.no_grad():
        tied.mul_(2), other.mul_(2)
    alike(plain, own)


def test_two_results_and_two_inputs(shared):
    plain, own = both()

    def infer(model, x):
        y = model(x)
        other = (torch.arange(70.).to(x.device) * y).relu_()
        return torch.cat([y.cpu(), other.cpu()])
    alike(plain, own, infer=infer)
    assert shared.runs


def test_a_result_that_was_enlarged_is_a_weight_like_any_other(shared):
    rows = torch.rand(70, 8)
    plain, own = torch.empty(0), torch.empty(0, device='cuda')
    for made in (plain, own):
        places = torch.empty(0, dtype=torch.int64, device=made.device)
        torch.max(rows.to(made.device), 1, out=(made, places))

    def infer(weight, k):
        return (torch.full((70,), float(k)).to(weight.device) + weight).cpu()
    for turn in range(2):
        runs = shared.runs
        for k in range(4 * AFTER):
            torch.testing.assert_close(infer(own, k), infer(plain, k))
        assert shared.runs > runs
        plain.add_(1), own.add_(1)
    for made in (plain, own):       # once more
        torch.max(torch.eye(99).to(made.device), 1, out=(made, torch.empty_like(
            made, dtype=torch.int64)))
    torch.testing.assert_close(own.cpu(), plain)


class Attention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        torch.manual_seed(0)
        self.dropout, self.gru = dropout, nn.GRU(16, 8, 2, dropout=dropout, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        y = nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=self.dropout)
        return self.head(self.gru(y.flatten(1, 2))[0])


def test_attention_and_recurrent_layers_are_shared_unless_they_draw(shared):
    alike(Attention(0.0).train(), Attention(0.0).train().cuda())
    assert shared.runs
    runs, own = shared.runs, Attention(0.5).train().cuda()
    results = [own(image(0).cuda()).cpu() for _ in range(3 * AFTER)]
    assert shared.runs == runs and not torch.equal(results[-1], results[-2])


def test_an_operator_that_gives_another_type_in_a_batch_is_not_batched(shared, monkeypatch):
    definitions, offer = [], Tenant.offer
    monkeypatch.setattr(Tenant, 'offer', lambda tenant, *rest: definitions.append(rest[1]) or offer(
        tenant, *rest))
    x, pairs = torch.full((2, 2), 9, dtype=torch.uint8), torch.full((3, 2, 2), 9, dtype=torch.uint8)

    def infer(x, pairs):
        return torch.addbmm(x, pairs, pairs).float().cpu()     # overflows as uint8 only
    for _ in range(2 * AFTER):
        torch.testing.assert_close(infer(x.cuda(), pairs.cuda()), infer(x, pairs))
    computation = load(definitions[0], shared.port.performer.weights, CPU, {})
    with torch.inference_mode():
        torch.testing.assert_close(computation(x, pairs)[0], infer(x, pairs))
        with pytest.raises(TypeError, match='a step gives'):
            together(computation, [[x, pairs], [x, pairs]])


def test_a_program_that_is_alone_computes_no_digests(shared, monkeypatch):
    monkeypatch.setattr(shared.port.performer.replay.sharing, '_path', Path('nobody'))
    values = []
    monkeypatch.setattr(Sharing, '_value', lambda *arguments: values.append(arguments))
    alike(*both())
    assert not values


def test_a_random_sequence_is_not_shared(shared):
    own = Net().cuda()
    for k in range(3 * AFTER):
        own(image(k).cuda()).cpu()
    assert not shared.runs and not shared.offers


def test_a_sequence_that_changes_what_stays_is_not_shared(shared):
    count = torch.zeros(1).cuda()
    plain, own = both()
    with torch.inference_mode():
        for k in range(3 * AFTER):
            y = own(image(k).cuda())
            count += 1
            torch.testing.assert_close(y.cpu(), plain(image(k)))
    assert count.item() == 3 * AFTER and not shared.runs


@pytest.mark.parametrize('name', ['cudnn_batch_norm', 'batch_norm_update_stats'])
def test_statistics_change_also_where_no_schema_says_so(shared, name):
    """PyTorch with CUDA calls the one in training; `SyncBatchNorm` the other."""
    states = [[torch.zeros(3, device=device), torch.ones(3, device=device)]
              for device in ('cpu', 'cuda')]

    def infer(state, x):
        if name == 'batch_norm_update_stats':
            return torch.batch_norm_update_stats(x, *state, 0.1)[0].cpu()
        function = torch.native_batch_norm if x.device.type == 'cpu' else torch.cudnn_batch_norm
        one = torch.ones(3).to(x.device)
        return function(x, one, one, *state, True, 0.1, 1e-5)[0].cpu()
    for k in range(3 * AFTER):
        expected, found = (infer(state, image(k).to(state[0].device)) for state in states)
        torch.testing.assert_close(found, expected)
    for expected, found in zip(*states, strict=True):
        torch.testing.assert_close(found.cpu(), expected)
    assert not shared.runs


def test_an_input_that_fails_raises_what_it_raises_alone(shared):
    table = torch.rand(9, 70)
    own = table.cuda()

    def infer(rows, k):
        return rows[torch.tensor([k]).to(rows.device)].cpu()
    for k in range(3 * AFTER):
        torch.testing.assert_close(infer(own, k % 9), infer(table, k % 9))
    with pytest.raises(IndexError):
        infer(own, 9)
    torch.testing.assert_close(infer(own, 3), infer(table, 3))


# -- processes -------------------------------------------------------------------------------------

# The programs rest between inferences, so that those which still start get a processor.
PROGRAM = '''
import sys, time, torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                            torch.nn.Linear(1568, 90)).eval()
images = torch.rand(8, 1, 3, 16, 16)
with torch.no_grad():
    expected = [model(image) for image in images]
    model.cuda()
    for k in range(1 << 40):
        torch.testing.assert_close(model(images[k % 8].cuda()).cpu(), expected[k % 8])
        if k % 5 == 4:
            print('right', k, flush=True)
        time.sleep(0.05)
'''


@pytest.fixture
def domain():
    made = Domain(forked=True)
    yield made
    made.close()


def begin(domain, count):
    lines = [Lines(domain.rrto('run', '--server', 'shared', '--', sys.executable, '-c', PROGRAM))
             for _ in range(count)]
    for line in lines:
        line.wait('right')
    return lines


def further(programs):
    """Wait until each of the programs has got 5 to 10 further results, which were right."""
    for program in programs:
        last = [line for line in program.lines() if line.startswith('right')][-1]
        program.wait(f'^right {int(last.split()[1]) + 10}$')


def runner_of(server):
    """Return the process of the runner, a child of the fork server."""
    found = [p for parent in children(server.process.pid) for p in children(parent)
             if Path(f'/proc/{p}/comm').read_text().strip() == NAME]
    assert len(found) == 1, found
    return found[0]


def test_programs_that_share_survive_each_other_and_the_runner(domain):
    server = domain.server('shared', threads=1, operator=2.0, lease=2.0, share='always')
    server.wait('serving')
    programs = begin(domain, 4)
    server.wait('programs share a sequence')
    further(programs)
    for number in (signal.SIGKILL, signal.SIGSTOP):
        programs.pop().process.send_signal(number)
        further(programs)
    runner = runner_of(server)
    os.kill(runner, signal.SIGSTOP)     # they wait for a second, and then compute alone
    further(programs)
    os.kill(runner, signal.SIGKILL)
    further(programs)
    more = begin(domain, 1)     # a new runner, for those who come
    eventually(lambda: runner_of(server) != runner)
    further([*programs, *more])
