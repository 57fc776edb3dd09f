"""A program that leaves a sequence, or loses its server, gets the results of plain PyTorch."""

import copy
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import remote
import torch
from fleet_testing import mostly_long
from rrto_bridge.client.inprocess import InProcess
from rrto_bridge.client.replaying import Replaying
from rrto_bridge.protocol.actions import Abandon, Define, Forget, Start
from rrto_bridge.protocol.errors import LinkError, UnknownOperator
from torch import nn

LAYERS = 5
# Number of tested moments at which the server is lost.
LOSSES = int(os.environ.get('RRTO_LOSSES', '8'))


class Model(nn.Module):
    """Changes a buffer in place, before and after the point at which a pass may branch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(LAYERS))
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer('count', torch.zeros(4))

    def forward(self, x, branch=None, error=None):
        self.count += 1
        x = self.norm(x)
        for k, layer in enumerate(self.layers):
            if k == error:
                raise KeyError('the program gives up')
            x = torch.relu(layer(x)) if k != branch else torch.sigmoid(layer(x)) * 2
            self.count[k % 4:].add_(x[0, 0])
        return x


def program(device, passes, before=lambda: None):
    """Return the results of passes.

    ``passes``: for each pass, a dict that lists its differences from a usual pass. ``before``:
    function that is called before each pass.
    """
    model = Model().to(device)
    torch.manual_seed(5)
    results = []
    kept = []
    with torch.no_grad():
        for k, special in enumerate(passes):
            before()
            x = torch.randn(special.get('batch', 3), 4)
            try:
                y = model(x.to(device), special.get('branch'), special.get('error'))
            except KeyError:
                results.append(model.count.cpu().clone())
                continue
            if 'keep' in special:
                kept.append(y[0] * 2)
            if 'stop' in special:
                continue
            results.append(y.cpu())
            if k % 4 == 3:
                results.append(model.norm.running_mean.cpu().clone())
        results += [t.cpu() for t in kept] + [model.count.cpu(), model.norm.running_var.cpu()]
    return results


def check(mode, passes):
    expected = program('cpu', passes)
    engine = remote.start(mode)
    got = program('cuda', passes)
    assert len(got) == len(expected)
    assert all(map(torch.equal, got, expected))
    return engine


PLAIN = [{}] * 8


@pytest.mark.parametrize('branch', range(LAYERS))
def test_a_branch_at_every_position(branch):
    engine = check('replay', [*PLAIN, {'branch': branch}, {}, {}, *[{'branch': branch}, {}] * 6])
    assert engine.replay.runs > engine.inferences > 3


@pytest.mark.parametrize('error', range(LAYERS))
def test_an_exception_of_the_program_at_every_position(error):
    check('replay', [*PLAIN, {'error': error}, {}, {}, {'error': error}, {'error': error}, {}])


@pytest.mark.parametrize('special', [
    {'stop': 1}, {'keep': 1}, {'keep': 1, 'stop': 1}, {'batch': 5}])
def test_passes_that_end_early_keep_something_or_change_size(special):
    check('replay', [*PLAIN, special, {}, special, special, *PLAIN, special, {}])


@pytest.mark.parametrize('mode', remote.MODES)
def test_every_mode_gives_the_same_results(mode):
    check(mode, [*PLAIN, {'branch': 2}, {'batch': 2}, {'keep': 1}, {'error': 1}, *PLAIN])


@pytest.mark.parametrize('mode', mostly_long(remote.MODES, 'replay'))
def test_a_program_goes_on_here_when_the_server_is_lost_at_any_moment(mode, capsys):
    passes = [*PLAIN, {'branch': 2}, {'keep': 1}, {}, {'error': 1}, {}]
    expected = program('cpu', passes)
    engine = remote.start(mode)
    program('cuda', passes)
    waits = engine.port.waits
    step = max(1, waits // LOSSES)
    for lives in range(0, waits, step):
        remote.start(mode, lives, journal=True)
        got = program('cuda', passes)
        assert all(map(torch.equal, got, expected)), lives
        assert 'continuing on this machine' in capsys.readouterr().err


def test_without_leave_to_go_on_the_loss_is_an_error():
    remote.start('replay', lives=30)
    with pytest.raises(RuntimeError, match='the server is lost'):
        program('cuda', PLAIN * 4)


def test_what_makes_old_values_is_fetched_before_it_is_too_long(monkeypatch):
    from rrto_bridge.client import journal
    monkeypatch.setattr(journal, 'DEPTH', 64)
    engine = remote.start('replay', journal=True)
    state = torch.zeros(3).cuda()
    with torch.no_grad():
        for k in range(200):
            state = state * 0.5 + torch.full((3,), float(k)).cuda()
            state.cpu()
    assert engine.journal.depth < 400


@pytest.mark.parametrize('lives', [0, 4, 9, 16, 25])
def test_the_server_that_is_back_may_be_lost_again(lives, capsys):
    special = [*PLAIN, {'keep': 1}, *PLAIN, {'branch': 2}, {}]
    expected = program('cpu', special)
    lost = remote.start('replay', lives=20, journal=True)
    remote.another('replay', lives)

    looked = []

    def look():
        if lost.port.back is not None and not looked:
            looked.append(lost.port.back())

    assert all(map(torch.equal, program('cuda', special, look), expected))
    told = capsys.readouterr().err
    taken, = looked     # not if it was lost while the tensors moved to it
    assert taken in ((lives > 4), (lives > 9)), 'a server that does not answer is not taken'
    assert told.count('this machine') == 1 + taken and ('is back' in told) == taken


@pytest.mark.parametrize('mode', remote.MODES)
@pytest.mark.parametrize('passes', [1, 5])
def test_a_program_returns_to_a_server_that_is_back(mode, passes, capsys):
    special = [*PLAIN, {'keep': 1}, {'branch': 2}, *PLAIN, *PLAIN, {'error': 1}, {'keep': 1}, {}]
    expected = program('cpu', special)
    lost = remote.start(mode, lives=20, journal=True)
    found = remote.another(mode)
    count = [0]

    def look():
        count[0] += lost.port.back is not None
        if count[0] == passes:
            assert lost.port.back()

    got = program('cuda', special, look)
    assert all(map(torch.equal, got, expected))
    told = capsys.readouterr().err
    assert told.index('continuing on this machine') < told.index('the server is back')
    assert remote.device().connection.engine is found and found.port.waits > 5
    assert found.inferences > 4 or mode != 'replay'


def test_a_program_goes_on_here_before_it_notices_the_loss(capsys):
    engine = remote.start('replay', journal=True)
    own, x = torch.nn.Linear(4, 4).cuda(), torch.rand(9, 2, 4)
    with torch.no_grad():
        got = [own(row.cuda()).cpu() for row in x]
        engine.port.lives = engine.port.waits       # the server ends now
        connection = remote.device().connection
        with connection.lock, ThreadPoolExecutor(1) as others:
            assert not others.submit(engine.port.on_lost).result(), 'the program uses the device'
        assert connection.engine is engine
        assert engine.port.on_lost() and connection.engine is not engine
        assert 'continuing on this machine' in capsys.readouterr().err
        here = connection.engine
        assert engine.port.on_lost() and connection.engine is here
        assert all(torch.equal(own(row.cuda()).cpu(), y) for row, y in zip(x, got, strict=True))


def test_what_the_program_has_dropped_is_not_computed_again_when_the_server_is_lost(monkeypatch):
    engine = remote.start('replay', journal=True)
    again, make = [], InProcess.make
    monkeypatch.setattr(
        InProcess, 'make', lambda self, item: again.append(item) or make(self, item))
    own, count, x = torch.nn.Linear(4, 4).cuda(), torch.zeros(4).cuda(), torch.rand(9, 2, 4)
    with torch.no_grad():
        for row in x:
            count.add_(1)
            own(torch.relu(row.cuda())).cpu()
        engine.port.lives = engine.port.waits       # the server ends now
        assert engine.port.on_lost()
        ops = {item[0] for item in again if str(item[0]).startswith('aten.')}
        assert ops == {'aten.add_.Tensor'}, 'only `count` is still needed'
        assert torch.equal(count.cpu(), torch.full((4,), 9.0))


def test_a_server_that_is_back_has_rehearsed(monkeypatch):
    from rrto_bridge.execution.replay_server import ReplayServer
    lost = remote.start('replay', 30, journal=True)
    found = remote.another('replay')
    begun, apply = [], ReplayServer.apply
    monkeypatch.setattr(ReplayServer, 'apply', lambda self, request: begun.append(request) or apply(
        self, request))
    count, own = torch.zeros(3).cuda(), torch.nn.Linear(3, 3).cuda()

    def infer(k):
        y = own(torch.full((3,), float(k)).cuda())
        count.add_(1)
        return float((y * 0 + count).sum())
    with torch.no_grad():
        assert [infer(k) for k in range(40)] == [3.0 * (k + 1) for k in range(40)]
        begun.clear()
        assert lost.port.back()
        kinds = [type(request) for request in begun]
        assert kinds[-4:] == [Define, Start, Abandon, Forget] and begun[-3].run == 0
        assert set(found.port.performer.context.tensors) <= set(remote.device().connection._there)
        assert [infer(k) for k in range(40, 50)] == [3.0 * (k + 1) for k in range(40, 50)]
    assert remote.device().connection.engine is found and found.inferences == 10


@pytest.mark.parametrize('error', [LinkError, ZeroDivisionError])
def test_a_rehearsal_that_fails_is_not_tried_again(error, monkeypatch):
    lost = remote.start('replay', 30, journal=True)
    found = remote.another('replay')
    rehearsed = []
    closed = []
    found.port.close = lambda: closed.append(1)

    def fails(*arguments):
        rehearsed.append(1)
        raise error('zeros')
    monkeypatch.setattr(Replaying, '_rehearse', fails)
    own = torch.nn.Linear(3, 3).cuda()
    with torch.no_grad():
        want = [own(torch.ones(3).cuda()).cpu() for _ in range(40)][0]
        assert not lost.port.back() and rehearsed == closed == [1]
        assert lost.port.back() and rehearsed == [1]
        for _ in range(3):
            torch.testing.assert_close(own(torch.ones(3).cuda()).cpu(), want)
    assert remote.device().connection.engine is found


def test_a_server_that_is_back_replays_the_first_inference():
    lost = remote.start('replay', 9, journal=True)
    found = remote.another('replay')
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    own, x = copy.deepcopy(plain).cuda(), torch.rand(30, 1, 8)
    with torch.inference_mode():
        for k in range(20):     # the server is lost in the 10th
            torch.testing.assert_close(own(x[k].cuda()).cpu(), plain(x[k]))
        assert lost.port.back()
        plain[0].bias.add_(1), own[0].bias.add_(1)      # meanwhile
        for k in range(20, 30):
            y = own(x[k].cuda())
            waits = found.port.waits
            torch.testing.assert_close(y.cpu(), plain(x[k]))
            assert found.port.waits == waits + 1 and found.inferences == k - 19


def test_the_next_server_may_lack_an_operator(monkeypatch):
    from rrto_bridge.execution import context, executor
    lost = remote.start('replay', 20, journal=True)
    found = remote.another('replay')
    own, x = torch.nn.Linear(4, 4).cuda(), torch.rand(3, 4)

    def infer(function):
        with torch.no_grad():
            return function(own(x.cuda())).cpu()
    plain = copy.deepcopy(own).cpu()
    for _ in range(30):
        torch.testing.assert_close(infer(torch.tanh), plain(x).tanh())
    resolve = context.resolve

    def lacking(op):
        if op == 'aten.tanh.default':
            raise UnknownOperator(f'PyTorch 0.1 has no operator {op}')
        return resolve(op)
    monkeypatch.setattr(context, 'resolve', lacking)
    monkeypatch.setattr(executor, 'resolve', lacking)
    assert lost.port.back()
    for function in (torch.tanh, torch.relu):
        for _ in range(8):
            torch.testing.assert_close(infer(function), function(plain(x)))
    assert remote.device().connection.engine is found and found.inferences


@pytest.mark.parametrize(('mode', 'lives'), [('async', 0), ('replay', 9), ('replay', 12)])
def test_a_server_that_is_back_gets_no_tensor_that_the_program_has_dropped(mode, lives,
                                                                           monkeypatch):
    from rrto_bridge.program import connection
    lost = remote.start(mode, lives, journal=True)
    remote.another(mode)
    migrate, moved = connection.migrate, []
    monkeypatch.setattr(connection, 'migrate', lambda context, *to: moved.append(
        len(context.tensors)) or migrate(context, *to))
    state = torch.ones(4).cuda()

    def infer():
        result = torch.ones(4).cuda()
        for _ in range(20):
            result = result + state
        return result.cpu()

    # The server is lost during these passes, so the last pass runs on this machine.
    for _ in range(1 + lives):
        assert torch.equal(infer(), torch.full((4,), 21.0))
    assert lost.port.back()
    assert torch.equal(infer(), torch.full((4,), 21.0))
    assert moved == [1], 'the state alone'
