"""If a program is interrupted anywhere and then continues, it gets the results of plain PyTorch."""

import signal
import sys

import pytest
import remote
import torch
from fleet_testing import eventually, mostly_long
from torch import nn


class Stop(Exception):
    pass


def program(device, attempt):
    """Return the results of inferences.

    `attempt`: function that runs an inference, possibly several times, and returns its results.
    """
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(),
                          nn.Linear(8, 2)).to(device)
    state = torch.zeros(2, 8).to(device)
    results = []
    with torch.no_grad():
        for _ in range(25):
            x = torch.rand(2, 4)

            def infer(x=x):
                hidden = model[1](model[0](x.to(device)))
                parts = (hidden + state).chunk(2)
                return model(x.to(device)).cpu(), torch.cat(parts).sum().item()

            results += attempt(infer)
            state.add_(torch.ones(2, 8).to(device))
            results.append(state.sum().item())
    return results


def once(infer):
    return infer()


def equal(a, b):
    return all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
               for x, y in zip(a, b, strict=True))


@pytest.fixture(params=mostly_long(remote.MODES, 'async', 'replay'))
def mode(request):
    return request.param


def test_a_handler_that_raises_at_any_instruction(mode):
    expected = program('cpu', once)
    remote.start(mode)
    # Use no lock: if this thread held the lock, the signal handler, which runs in the same thread,
    # would wait for it forever.
    left, under_way = [0], []

    def stop(number, frame):
        under_way.clear()
        raise Stop

    def trace(frame, event, argument):   # Python calls this function before each line that runs
        left[0] -= 1
        if not left[0]:
            under_way.append(True)
            signal.raise_signal(signal.SIGUSR1)
        return trace

    lines = iter(range(40, 4000, 37))

    def attempt(infer):
        while True:
            under_way.clear()
            left[0] = next(lines, 0)
            sys.settrace(trace)
            try:
                result = infer()
                sys.settrace(None)
                # The signal handler runs only when the device has finished its work.
                eventually(lambda: not under_way)
                return result
            except Stop:
                continue
            finally:
                sys.settrace(None)
                left[0] = 0

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        got = program('cuda', attempt)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert equal(got, expected)


def test_stacks_that_are_full(mode):
    expected = program('cpu', once)
    remote.start(mode)
    depth = [0]

    def sink(infer, below):
        return infer() if not below else sink(infer, below - 1)

    def unless_full(infer, below):
        try:
            return sink(infer, below)
        except RecursionError:
            return None

    def attempt(infer):
        failed = 0
        room = sys.getrecursionlimit() - len(list(_frames()))
        for below in range(room - 4 - depth[0], 0, -9):
            result = unless_full(infer, below)
            if result is not None:
                depth[0] = (depth[0] + 1) % 9
                assert failed > 1
                return result
            failed += 1
        raise AssertionError('never')

    assert equal(program('cuda', attempt), expected)


def _frames():
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def test_errors_of_earlier_calls_do_not_spoil_later_ones(mode):
    expected = program('cpu', once)
    remote.start(mode)
    table = torch.arange(6.0).view(3, 2).cuda()

    def attempt(infer):
        with pytest.raises(IndexError):
            row = table.index_select(0, torch.tensor([7]).cuda())
            (row + 1).unbind(1)[0].cpu()
        return infer()

    assert equal(program('cuda', attempt), expected)


FAILURES = ('as the value is needed', 'after a value', 'before another call', 'in place')


@pytest.mark.parametrize('journal', [False, True])
@pytest.mark.parametrize('kind', FAILURES)
def test_an_error_of_a_call_undoes_no_other_call(mode, kind, journal):
    def run(place):
        torch.manual_seed(0)
        state, table = torch.zeros(2, device=place), torch.arange(4.0, device=place)
        for number in range(14):
            index = torch.tensor([number % 4, 9 if number in (8, 11) else 1]).to(place)
            state.add_(1)
            noise = torch.rand(2, device=place)
            sums = state * 2
            if kind == 'after a value':
                yield sums.sum().item()
            try:
                row = table[index]
                if kind == 'before another call' and number in (8, 11):
                    row = row + 3
                if kind == 'in place':
                    state.mul_(row)
                yield (row + sums).tolist()
            except IndexError:
                yield 'no row'
            yield sums.tolist(), noise.tolist()
        yield state.tolist()

    expected = list(run('cpu'))
    engine = remote.start(mode, journal=journal)
    assert list(run('cuda')) == expected
    if journal:   # lose the server; this process then computes its tensors again from the journal
        state = torch.zeros(2, device='cuda')
        with pytest.raises(RuntimeError, match='must match'):
            state.add_(torch.ones(3, device='cuda')).cpu()
        state.add_(1)
        engine.port.lives = 0
        assert state.tolist() == [1, 1]


def test_a_wait_that_is_interrupted(mode):
    """The program stops waiting before the reply comes.

    The results of the abandoned call are freed, and no call gets the reply to another call.
    """
    expected = program('cpu', once)
    engine = remote.start(mode)
    receive, left = engine.port.receive, [-1]

    def interrupted():
        left[0] -= 1
        if not left[0]:
            raise Stop
        return receive()

    engine.port.receive = interrupted
    waits = iter(range(1, 40))

    def attempt(infer):
        while True:
            left[0] = next(waits, -1)
            try:
                return infer()
            except Stop:
                continue
            finally:
                left[0] = -1

    assert equal(program('cuda', attempt), expected)
    remote.device().lifetimes.collect()
    torch.cuda.synchronize()
    assert len(engine.port.performer.context.tensors) < 100
