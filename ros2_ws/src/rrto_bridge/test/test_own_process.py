"""A program whose server is lost goes on in a process of this machine, as it would on its GPU.

Here this process computes on the CPU.
"""

import os
import signal
import sys
from pathlib import Path

import pytest
import remote
import torch
from fleet_ros.own_gpu import OWN_DEVICE, OWN_VISIBLE, VISIBLE, own_gpu
from fleet_testing import Lines, eventually, forked_on_link, mostly_long
from processes import LOADED, Domain, children
from rrto_bridge.cli.run import for_program
from rrto_bridge.client import ownprocess
from rrto_bridge.client.machine import ClientMachine
from rrto_bridge.client.migration import carried, restored
from rrto_bridge.client.ownprocess import Here, OwnGpu, OwnProcess
from rrto_bridge.client.percall import PerCall
from rrto_bridge.client.settings import Settings
from rrto_bridge.execution.context import Context
from rrto_bridge.protocol.errors import LinkError, RrtoError
from rrto_bridge.protocol.record import Meta
from rrto_bridge.protocol.wire import decode, encode
from test_modes import PLAIN, program

PASSES = [*PLAIN, {'branch': 2}, {'keep': 1}, {'error': 1}, *PLAIN]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Fork the processes for the GPU; those of whole programs are started as always."""
    monkeypatch.setattr(ownprocess, 'start_process',
                        forked_on_link(*LOADED))


@pytest.fixture
def here():
    made = Here('cpu')
    yield made
    for place in made.places(ClientMachine('async')):
        place.close()
    port = vars(remote.device().connection).get('engine') and remote.device().connection.engine.port
    if isinstance(port, OwnGpu):
        port.close()


def close(got, expected):
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)


def port_now():
    return remote.device().connection.engine.port


@pytest.mark.parametrize('mode, lives', mostly_long(
    [('replay', 0), ('replay', 12), ('replay', 40), ('rpc', 30), ('cached', 30), ('async', 30)],
    ('replay', 12)))
def test_a_program_goes_on_in_the_process_when_the_server_is_lost(mode, lives, here, capsys):
    expected = program('cpu', PASSES)
    remote.start(mode, lives, journal=True, local=here)
    close(program('cuda', PASSES), expected)
    assert isinstance(port_now(), OwnGpu)
    assert 'the server is lost; continuing on this machine, on its CPU' in capsys.readouterr().err


@pytest.mark.parametrize('at', [9, 14])
def test_a_process_that_is_killed_is_replaced_by_this_one(at, here, capsys):
    expected = program('cpu', PASSES)
    remote.start('replay', 12, journal=True, local=here)
    passes, killed = iter(range(1000)), []

    def kill():
        port = port_now()
        if next(passes) >= at and isinstance(port, OwnGpu) and not killed:
            killed.append(port._process._process.pid)
            os.kill(killed[0], signal.SIGKILL)

    close(program('cuda', PASSES, kill), expected)
    assert killed and not isinstance(port_now(), OwnGpu)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and told[1].startswith("rrto: the process for this machine's GPU ") \
        and 'SIGKILL' in told[1] and told[1].endswith('; continuing on this machine')


def test_a_program_returns_from_the_process_to_a_server_that_is_back(here, capsys):
    expected = program('cpu', PASSES)
    lost = remote.start('replay', 12, journal=True, local=here)
    found = remote.another('replay')
    passes, pids = iter(range(1000)), []

    def look():
        if next(passes) == 10:
            pids.append(port_now()._process._process)
            assert lost.port.back()

    close(program('cuda', PASSES, look), expected)
    assert remote.device().connection.engine is found and 'is back' in capsys.readouterr().err
    assert pids[0].poll() == -signal.SIGKILL, 'the process is not needed any more'
    assert here._process is not None, 'another one is ready for the next loss'


def test_a_process_that_ends_while_the_server_returns_costs_nothing(here, capsys):
    expected = program('cpu', PASSES)
    lost = remote.start('replay', 12, journal=True, local=here)
    found = remote.another('replay')
    passes = iter(range(1000))

    def look():
        if next(passes) == 10:
            os.kill(port_now()._process._process.pid, signal.SIGKILL)
            assert lost.port.back()

    close(program('cuda', PASSES, look), expected)
    assert remote.device().connection.engine is found
    assert 'is back' in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_without_a_usable_gpu_the_program_goes_on_on_the_cpu(capsys):
    expected = program('cpu', PASSES)
    remote.start('replay', 12, journal=True, local=Here('cuda'))
    close(program('cuda', PASSES), expected)
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("rrto: this machine's GPU cannot be used: ") and len(told) == 2
    assert told[1] == 'rrto: the server is lost; continuing on this machine'


def test_a_device_without_memory_for_the_tensors_is_not_used(here, capsys, monkeypatch):
    class Full(OwnGpu):
        def receive(self):
            reply = super().receive()
            return encode((decode(reply)[0], 'OutOfMemory', 'full'))
    monkeypatch.setattr(ownprocess, 'OwnGpu', Full)
    expected = program('cpu', PASSES)
    remote.start('replay', 12, journal=True, local=here)
    close(program('cuda', PASSES), expected)
    told = capsys.readouterr().err.splitlines()
    assert told == ['rrto: CPU: full', 'rrto: the server is lost; continuing on this machine']


def test_large_messages_in_both_directions_at_once():
    port = OwnGpu(ClientMachine('async'), OwnProcess('cpu'))
    engine, size = PerCall(port), 4 << 20
    data = memoryview(bytes(range(256)) * (size // 256))
    try:
        handles = [engine.upload(Meta((size,), (1,), 'uint8'), data, False) for _ in range(3)]
        # Replies that nobody takes are on their way while the next uploads are sent.
        asked = [engine.machine.download(handle) for handle in handles]
        port.transmit()
        for _ in range(3):
            engine.upload(Meta((size,), (1,), 'uint8'), data, False)
            engine.machine.flush()
            port.transmit()
        assert all(engine.settle(ticket)[1] == data for ticket in asked)
        os.kill(port._process._process.pid, signal.SIGKILL)
        with pytest.raises(LinkError, match='SIGKILL'):
            engine.synchronize()
    finally:
        port.close()


def test_tensors_that_are_carried_share_memory_as_before():
    base = torch.arange(24.0).view(4, 6)
    there = Context(torch.device('cpu'), 1 << 30)
    tensors = {3: base, 5: base[1], 9: base.t()[::2], 11: torch.zeros(0, 3), 12: torch.tensor(True)}
    for handle, tensor in tensors.items():
        there.add(handle, tensor)
    there.seed(7)
    found = restored(carried(there))
    assert found.tensors.keys() == tensors.keys() and found.used == there.used
    for handle, tensor in tensors.items():
        assert torch.equal(found.tensors[handle], tensor)
        assert found.tensors[handle].stride() == tensor.stride()
    found.tensors[3].fill_(1.0)
    assert found.tensors[5].sum() == 6
    assert not torch.equal(found.generator.get_state(), torch.Generator().get_state())
    there.add(20, base.view(torch.int32))
    with pytest.raises(RrtoError, match='share memory'):
        restored(carried(there))


def test_a_process_that_cannot_start_leaves_the_cpu(capsys, monkeypatch):
    def start(device):
        raise BlockingIOError('no process is left')
    monkeypatch.setattr(ownprocess, 'OwnProcess', start)
    expected = program('cpu', PASSES)
    remote.start('replay', 12, journal=True, local=Here('cpu'))
    close(program('cuda', PASSES), expected)
    assert capsys.readouterr().err.splitlines() == [
        "rrto: no process for this machine's GPU: no process is left",
        'rrto: the server is lost; continuing on this machine']


@pytest.mark.parametrize('outside', [None, '', '1'])
def test_rrto_run_hides_the_gpu_and_keeps_what_the_user_has_hidden(outside, monkeypatch, capsys):
    monkeypatch.delenv(OWN_VISIBLE, raising=False)
    monkeypatch.delenv(VISIBLE, raising=False)
    if outside is not None:
        monkeypatch.setenv(VISIBLE, outside)
    for _ in range(2):   # the second time, within the first `rrto run`
        _, found = for_program(['python', 'app.py'], Settings())
        assert found[VISIBLE] == 'rrto' and found.get(OWN_VISIBLE) == outside
        monkeypatch.setattr(os, 'environ', found)
    assert ('does not hide' in capsys.readouterr().err) == (outside == '')


# -- whole programs --------------------------------------------------------------------------------

PROGRAM = '''
import sys, time, torch
torch.manual_seed(1)
here = torch.nn.Linear(4, 4)
there = torch.nn.Linear(4, 4).cuda()
there.load_state_dict(here.state_dict())
count = torch.zeros(1).cuda()
with torch.no_grad():
    for k in range(1 << 40):
        x = torch.randn(3, 4)
        count += 1
        torch.testing.assert_close(there(x.cuda()).cpu(), here(x))
        assert count.item() == k + 1
        if k % 50 == 49:
            print(k, flush=True)
        time.sleep(0.005)   # leave the processor to what the test waits for
'''


@pytest.fixture
def domain():
    made = Domain(forked=True)
    made.env[OWN_DEVICE] = 'cpu'
    yield made
    made.close()


def started(domain, server):
    """Start the program; return when it has made 100 inferences."""
    one = Lines(domain.rrto('run', '--server', server, '--on-loss', 'local', '--', sys.executable,
                            '-c', PROGRAM))
    one.wait('^99$')
    return one


def own_processes(program):
    """Return the ids of the processes in which a program goes on without its server."""
    return [pid for pid in children(program.process.pid)
            if b'local_server' in Path(f'/proc/{pid}/cmdline').read_bytes()]


def is_alive(pid):
    try:
        return 'Z' not in Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2]
    except OSError:
        return False


def goes_on(program):
    at = max(int(line) for line in program.lines() if line.strip().isdigit())
    program.wait(f'^{at + 100}$')


@pytest.mark.parametrize('device', ['cpu', pytest.param('cuda', marks=[
    pytest.mark.gpu, pytest.mark.skipif(not own_gpu(), reason='no GPU')])])
def test_a_program_goes_on_in_its_process_and_takes_it_along_at_its_end(domain, device):
    domain.env[OWN_DEVICE] = device
    server = domain.server('o', lease=600.0)   # longer than the test waits
    server.wait('serving as o')
    programs = started(domain, 'o'), started(domain, 'o')
    server.process.kill()
    for one in programs:
        one.wait('continuing on this machine, on its '
                 + ('CPU$' if device == 'cpu' else '(?!CPU)'))
        goes_on(one)
    owned = [pid for one in programs for pid in own_processes(one)]
    assert len(owned) == 2
    programs[0].process.send_signal(signal.SIGINT)
    programs[1].process.kill()
    code, said = programs[0].ended()
    assert code in (1, -signal.SIGINT) and said.count('KeyboardInterrupt') == 1, said
    eventually(lambda: not any(map(is_alive, owned)))


def test_the_process_of_a_program_that_still_computes_with_the_server_may_be_killed(domain):
    server = domain.server('p', lease=600.0)
    server.wait('serving as p')
    one = started(domain, 'p')
    pid, = own_processes(one)
    os.kill(pid, signal.SIGKILL)
    goes_on(one)
    server.process.kill()
    one.wait("^rrto:.* the process for this machine's GPU was ended by SIGKILL")
    one.wait('continuing on this machine$')
    goes_on(one)
