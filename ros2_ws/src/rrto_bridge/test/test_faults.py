"""What happens when a process is killed, there is no server, or a program is run in another way."""

import signal
import sys

import pytest
from processes import Domain, Lines

LOOP = '''
import sys, torch
model = torch.nn.Linear(4, 4).cuda()
x = torch.ones(1, 4)
with torch.no_grad():
    for k in range(1 << 40):
        y = model(x.cuda()).cpu()
        if k == 10:
            print('running', flush=True)
        if k % 100 == 99:
            print(k, flush=True)
'''


@pytest.fixture(scope='module')
def domain():
    made = Domain()
    yield made
    made.close()


@pytest.fixture(scope='module')
def server(domain):
    made = domain.server('s', lease=3.0, memory=8)
    made.wait('serving as s')
    return made


def loop(domain, name, *options):
    """A program that runs for ever on a server, once it is in its steady state."""
    command = ('--', sys.executable, '-c', LOOP)
    program = Lines(domain.rrto('run', '--server', name, *options, *command))
    program.wait('running')
    return program


def test_a_killed_program_leaves_nothing_on_the_server(domain, server):
    loop(domain, 's').process.send_signal(signal.SIGKILL)
    server.wait('leaves: it was silent for too long')


def test_a_killed_server_ends_a_program_with_one_error_or_lets_it_go_on(domain):
    killed = domain.server('k', lease=3.0)
    killed.wait('serving as k')
    ends, goes_on = loop(domain, 'k'), loop(domain, 'k', '--on-loss', 'local')
    killed.process.kill()
    ends.wait(r"LinkError: server 'k' is lost: nothing was heard of it for \d\.\d s")
    assert ends.process.wait() == 1
    goes_on.wait('going on on this machine')
    at = max(int(line) for line in goes_on.lines() if line.strip().isdigit())
    goes_on.wait(f'^{at + 1000}$')
    goes_on.process.kill()


def test_without_a_server_one_is_started_and_the_exit_code_is_the_programs():
    domain = Domain(1)
    code, out, err = domain.run('--', sys.executable, '-c',
                                'import torch, sys; print(torch.ones(2).cuda().sum().item()); '
                                'sys.exit(7)')
    assert (code, out) == (7, '2.0\n')
    assert 'no server was found' in err and len(err.splitlines()) == 1


def test_a_server_that_is_named_has_to_be_there(domain):
    code, out, err = domain.run('--server', 'nobody', '--', sys.executable, '-c',
                                'import torch; torch.ones(2).cuda()')
    assert code == 1 and out == ''
    assert err.startswith("rrto: there is no server 'nobody'") and len(err.splitlines()) == 1


def test_modules_child_processes_and_programs_without_torch(domain, server, tmp_path, monkeypatch):
    (tmp_path / 'app.py').write_text(
        'import subprocess, sys, torch\n'
        'print(torch.ones(2).cuda().sum().item(), flush=True)\n'
        'if len(sys.argv) < 2:\n'
        '    subprocess.run([sys.executable, "-m", "app", "child"], check=True)\n')
    monkeypatch.setitem(domain.env, 'PYTHONPATH', str(tmp_path))
    assert domain.run('--server', 's', '--', sys.executable, '-m', 'app') == (0, '2.0\n2.0\n', '')
    assert domain.run('--server', 's', '--', 'echo', 'hello') == (0, 'hello\n', '')
    code, _, err = domain.run('--server', 's', '--', str(tmp_path / 'missing'))
    assert code == 127 and 'missing' in err


def test_two_servers_of_one_name_are_refused(domain, server):
    domain.server('s').wait("there is a server 's' in this DDS domain; choose another name")


def test_memory_that_the_server_does_not_have_is_an_error_of_cuda(domain, server):
    code, out, err = domain.run('--server', 's', '--', sys.executable, '-c', '''
import torch
try:
    torch.zeros(1 << 22, device='cuda') + 1
except torch.cuda.OutOfMemoryError as error:
    print('caught')
print(torch.ones(3).cuda().sum().item())
''')
    assert (code, out, err) == (0, 'caught\n3.0\n', '')

