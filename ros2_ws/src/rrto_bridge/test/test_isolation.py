"""Whatever a program does to its process on the server affects only this program.

bench/bench_isolation.py measures how much such a program slows another program down.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fleet_testing import LIMIT, Lines, eventually
from processes import Domain, children

# The program compares each inference on the device with the same inference on the CPU.
VICTIM = '''
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                            torch.nn.LazyLinear(10))
images = torch.rand(8, 1, 3, 16, 16)
with torch.no_grad():
    expected = [model(image) for image in images]
    model.cuda()
    for k in range(1 << 40):
        assert torch.equal(model(images[k % 8].cuda()).cpu(), expected[k % 8]), 'wrong'
        if k % 20 == 19:
            print('right', k, flush=True)
'''

CRASH = '''
import torch
smallest = torch.tensor([-1 << 63]).cuda()
print(torch.div(smallest, torch.tensor([-1]).cuda(), rounding_mode='trunc').item())
'''

ENDLESS = '''
import torch
x = torch.rand(1000).cuda()
print(torch.special.legendre_polynomial_p(x, 1 << 40).sum().item())
'''

GREEDY = '''
import torch
def attempt(work):
    try:
        return work() is None
    except torch.cuda.OutOfMemoryError as error:
        return 'refused'
x = torch.ones(1 << 20).cuda()
print(attempt(lambda: torch.ones(240 << 18, device='cuda').sum().item()),
      attempt(lambda: torch.ones(1 << 31, device='cuda').sum().item()),
      attempt(lambda: (x[:, None] * x).sum().item()), x.sum().item())
'''


@pytest.fixture(scope='module')
def domain():
    made = Domain()
    yield made
    made.close()


@pytest.fixture(scope='module')
def server(domain):
    # On a busy machine, an operator of a program that does no harm may take seconds.
    made = domain.server('9s', threads=1, lease=120.0, memory=64, operator=6.0,
                         programs=4)
    made.wait('serving as n9s')
    return made


@pytest.fixture
def victim(domain, server):
    """A program that must not be disturbed."""
    made = Lines(domain.rrto('run', '--server', '9s', '--', sys.executable, '-c', VICTIM))
    made.wait('right')
    yield made
    assert made.process.poll() is None, made.lines()
    made.process.terminate()
    made.process.wait()


def goes_on(victim):
    before = len(victim.lines())
    eventually(lambda: len(victim.lines()) > before + 2 or victim.process.poll() is not None)
    assert victim.process.poll() is None and not any('wrong' in line for line in victim.lines())


@pytest.mark.long
def test_a_crash_an_endless_operator_and_greed_cost_their_program_alone(domain, server, victim):
    code, out, err = domain.run('--server', '9s', '--', sys.executable, '-c', CRASH)
    assert code == 1 and out == ''
    assert 'was ended by SIGFPE in aten.div.Tensor_mode' in err
    goes_on(victim)
    code, _, err = domain.run('--server', '9s', '--', sys.executable, '-c', ENDLESS)
    assert code == 1
    assert 'aten.special_legendre_polynomial_p.n_scalar took longer than 6 s' in err
    goes_on(victim)
    assert domain.run('--server', '9s', '--', sys.executable, '-c', GREEDY) == (
        0, 'refused refused refused 1048576.0\n', '')
    goes_on(victim)


LIMITED = '''
import os, torch
from rrto_bridge.protocol.errors import described
from fleet_ros.device import limit_memory, warm_up
from rrto_bridge.server.worker import room
torch.set_num_threads(1)
warm_up(torch.device('cpu'))
limit_memory(torch.device('cpu'), (64 << 20) + room(64 << 20))
kept = [torch.ones(4 << 20, dtype=torch.uint8) for _ in range(16)]
for make in (lambda: torch.ones(240 << 20, dtype=torch.uint8), lambda: bytearray(240 << 20)):
    try:
        make()
    except (RuntimeError, MemoryError) as error:
        print(described(error)[0], room(64 << 20) >> 20)
'''


def test_a_process_is_given_no_more_memory_than_its_program_may_use_and_some_room():
    done = subprocess.run([sys.executable, '-c', LIMITED], text=True, capture_output=True,
                          check=True, timeout=LIMIT)
    assert done.stdout == 'OutOfMemory 64\n' * 2


@pytest.mark.long
def test_a_killed_server_leaves_no_process_and_no_memory_behind(domain):
    killed = domain.server('k', lease=30.0)
    killed.wait('serving as k')
    program = Lines(domain.rrto('run', '--server', 'k', '--', sys.executable, '-c', VICTIM))
    program.wait('right')
    fork_server, = children(killed.process.pid)
    worker, = children(fork_server)
    files = Path(f'/proc/{worker}/maps').read_text().split()
    folder = next(Path(f).parent for f in files
                  if '/rrto_' in f and not f.endswith('.so') and 'weights' not in f)
    assert folder.exists()
    os.kill(killed.process.pid, signal.SIGKILL)
    eventually(lambda: not any(Path(f'/proc/{pid}').exists() for pid in (fork_server, worker)))
    assert not folder.exists()
    program.process.kill()


@pytest.mark.parametrize('calls', [
    pytest.param(2000, marks=pytest.mark.long),
    pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.skipif(
        not os.environ.get('ROG_SLOW'), reason='takes minutes; set ROG_SLOW=1')])])
def test_a_hostile_peer_changes_nothing_for_another_program(domain, server, victim, calls):
    """The operators and messages of the hostile peer end only its own sessions."""
    hostile = domain.start_file(Path(__file__).with_name('hostile.py'), 'n9s', '5', str(calls))
    out, err = hostile.communicate(timeout=LIMIT + calls / 10)
    assert hostile.returncode == 0, err
    sent = json.loads(out)
    assert sent['calls'] >= calls and sent['sessions'] > 1
    goes_on(victim)
    assert server.process.poll() is None
