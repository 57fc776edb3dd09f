"""Programs and servers as processes that are killed, are missing, or start in an unusual way."""

import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from fleet_env.settings.fleet import ReachConfig
from fleet_link.key import new_key, write_key
from fleet_ros.dds_profiles import cyclone_profile
from fleet_testing import LIMIT, Lines
from lifecycle_driver import driving
from processes import Domain, children, kill_all
from rrto_bridge.server.parameters import ServerSettings

# In seconds. The lease is long, because on a busy machine a process may get no CPU time for five
# seconds.
LEASE = 10.0
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


# With this profile, a process that is killed stays in the ROS graph for longer than the tests wait.
FORGETS_NOBODY = (cyclone_profile(ReachConfig()) + ',<CycloneDDS><Domain><Discovery><LeaseDuration>'
                  '900s</LeaseDuration></Discovery></Domain></CycloneDDS>')


@pytest.fixture(scope='module')
def domain():
    made = Domain()
    yield made
    made.close()


@pytest.fixture(scope='module')
def server(domain):
    made = domain.server('s', lease=LEASE, memory=8)
    made.wait('serving as s')
    return made


def loop(domain, name, *options):
    """Start a program that runs for ever on a server; return when its inferences are replayed."""
    command = ('--', sys.executable, '-c', LOOP)
    program = Lines(domain.rrto('run', '--server', name, *options, *command))
    program.wait('running')
    return program


@pytest.mark.long
def test_a_killed_program_leaves_nothing_on_the_server(domain, server):
    loop(domain, 's').process.send_signal(signal.SIGKILL)
    server.wait('leaves: it was silent for too long')


@pytest.mark.long
def test_a_program_starts_beside_its_own_server():
    """A program that needs its server waits until this server has started.

    If the server does not start, the program gets an error.
    """
    alone = Domain()
    code = 'import torch; print(torch.ones(3).cuda().sum().item())'
    try:
        done, out, err = alone.run('--', sys.executable, '-c', code)
        assert (done, out) == (0, '3.0\n') and err.count('\n') == 1, err
        assert 'no server was found; starting local_' in err
        ends = "import os, signal; os.kill(int(os.environ['RRTO_STARTING']), signal.SIGKILL); "
        done, out, err = alone.run('--', sys.executable, '-c', ends + code)
        assert (done, out) == (1, '') and 'rrto: there is no server' in err, err
    finally:
        alone.close()


@pytest.mark.long
def test_a_program_takes_the_server_that_is_found_instead_of_its_own(domain, server, monkeypatch):
    """If `rrto run` starts a server and finds another one, the program uses the other one.

    `rrto run` then kills the server that it has started. In this test an ended process, whose id is
    in RRTO_STARTING, stands for this server.
    """
    ended = subprocess.Popen(['true'])
    ended.wait()
    monkeypatch.setitem(domain.env, 'RRTO_STARTING', str(ended.pid))
    code = 'import torch; print(torch.ones(3).cuda().sum().item())'
    assert domain.run('--server', 'local_1', '--', sys.executable, '-c', code) == (0, '3.0\n', '')


@pytest.mark.long
def test_a_program_that_stood_still_is_told_so(domain):
    # Start another server, because the server `s` may already have reported another program's
    # silence.
    server = domain.server('t', lease=LEASE)
    server.wait('serving as t')
    program = loop(domain, 't')
    os.kill(program.process.pid, signal.SIGSTOP)
    server.wait('leaves: it was silent for too long')
    os.kill(program.process.pid, signal.SIGCONT)
    program.wait('LinkError: this program was suspended for .* raise its parameter lease')
    assert program.process.wait() == 1


@pytest.mark.long
def test_threads_that_are_daemons_end_with_the_program_and_say_nothing(domain, server):
    code = """
import threading, torch
model, running = torch.nn.Linear(4, 4).cuda(), threading.Event()
def work():
    while True:
        model(torch.ones(1, 4).cuda()).cpu()
        running.set()
threading.Thread(target=work, daemon=True).start()
running.wait()
print('the end')
"""
    assert domain.run('--server', 's', '--', sys.executable, '-c', code) == (0, 'the end\n', '')


@pytest.mark.long
def test_a_thread_that_computes_after_the_link_has_closed_ends_and_says_nothing(domain, server):
    code = """
import atexit, threading
closed = threading.Event()
def at_last():
    closed.set()
    thread.join()
    print('the end')
atexit.register(at_last)       # runs last, as it is the first
import torch
model, x = torch.nn.Linear(4, 4).cuda(), torch.ones(1, 4).cuda()
def work():
    closed.wait()
    for _ in range(100000):    # sends, and waits for nothing
        model(x)
thread = threading.Thread(target=work, daemon=True)
thread.start()
"""
    assert domain.run('--server', 's', '--mode', 'async', '--', sys.executable, '-c', code) \
        == (0, 'the end\n', '')


@pytest.mark.long
def test_a_program_that_any_server_may_serve_goes_to_the_next_one_if_one_refuses():
    alone = Domain()
    try:
        alone.server('a', programs=1).wait('serving as a')
        alone.server('b').wait('serving as b')
        loop(alone, 'a')
        code = 'import torch; print(torch.ones(3).cuda().sum().item())'
        assert alone.run('--', sys.executable, '-c', code)[:2] == (0, '3.0\n')
        done, _, err = alone.run('--server', 'a', '--', sys.executable, '-c', code)
        assert done == 1 and 'refuses: the limit of 1 programs is reached' in err
    finally:
        alone.close()


@pytest.mark.long
def test_a_server_that_ends_says_so_and_programs_return_to_the_next_one(domain):
    ended = domain.server('e', lease=600.0)   # longer than the tests wait
    ended.wait('serving as e')
    ends, goes_on = loop(domain, 'e'), loop(domain, 'e', '--on-loss', 'local')
    ended.process.send_signal(signal.SIGINT)
    ends.wait("LinkError: server 'e' is lost: the server has ended")
    assert ends.process.wait() == 1
    goes_on.wait('the server has ended; continuing on this machine')
    assert ended.process.wait() == 0
    at = max(int(line) for line in goes_on.lines() if line.strip().isdigit())
    goes_on.wait(f'^{at + 1000}$')
    domain.server('e')
    goes_on.wait('the server is back; continuing there')
    at = max(int(line) for line in goes_on.lines() if line.strip().isdigit())
    goes_on.wait(f'^{at + 300}$')
    goes_on.process.kill()


def test_a_server_whose_machine_is_gone_ends_a_program_with_one_error(domain):
    lost = domain.server('k', lease=LEASE)
    lost.wait('serving as k')
    ends = loop(domain, 'k')
    kill_all(lost.process.pid)
    ends.wait(r"LinkError: server 'k' is lost: nothing was heard of it for \d+\.\d s")
    assert ends.process.wait() == 1


@pytest.mark.long
def test_a_program_that_can_go_on_waits_for_a_sign_of_life_and_not_for_the_lease(domain):
    stopped = domain.server('q', lease=600.0)   # longer than the tests wait
    stopped.wait('serving as q')
    goes_on = loop(domain, 'q', '--on-loss', 'local')
    goes_on.wait('^199$')
    group = [stopped.process.pid, *children(stopped.process.pid)]
    group += [grandchild for child in group[1:] for grandchild in children(child)]
    for pid in group:
        os.kill(pid, signal.SIGSTOP)
    goes_on.wait(r'nothing was heard of it for \d+\.\d s; continuing on this machine')
    at = max(int(line) for line in goes_on.lines() if line.strip().isdigit())
    goes_on.wait(f'^{at + 300}$')
    for pid in group:
        os.kill(pid, signal.SIGCONT)
    goes_on.wait('the server is back; continuing there')
    goes_on.process.kill()


@pytest.mark.long
def test_a_killed_server_ends_a_program_at_once(domain):
    killed = domain.server('a', lease=600.0)   # longer than the tests wait
    killed.wait('serving as a')
    ends = loop(domain, 'a')
    killed.process.kill()
    ends.wait("LinkError: server 'a' is lost: the server has ended")
    assert ends.process.wait() == 1


@pytest.mark.long
def test_a_killed_server_tells_a_program_with_which_it_always_has_to_do(domain):
    killed = domain.server('w', lease=600.0, **{'link.latency': 0.1})
    killed.wait('serving as w')
    ends = loop(domain, 'w', '--link-latency', '0.1')
    killed.process.kill()
    ends.wait("LinkError: server 'w' is lost: the server has ended")
    assert ends.process.wait() == 1


@pytest.mark.long
def test_a_server_that_loses_the_process_that_starts_the_others_starts_another_one(domain):
    hurt = domain.server('z')
    hurt.wait('serving as z')
    ends, goes_on = loop(domain, 'z'), loop(domain, 'z', '--on-loss', 'local')
    os.kill(*children(hurt.process.pid), signal.SIGKILL)
    ends.wait("LinkError: server 'z' is lost: the processes of the server have ended")
    goes_on.wait('the processes of the server have ended; continuing on this machine')
    goes_on.wait('the server is back; continuing there')
    goes_on.process.kill()
    os.kill(*children(hurt.process.pid), signal.SIGKILL)
    assert domain.run('--server', 'z', '--', sys.executable, '-c',
                      'import torch; print(torch.ones(2).cuda().sum().item())') == (0, '2.0\n', '')


@pytest.mark.long
def test_a_server_that_is_killed_at_its_start_leaves_no_folder(tmp_path):
    """A fork server deletes the server's folder if the server is killed while it starts.

    `rrto run` kills the server that it has started, if it finds another server.
    """
    folder = tmp_path / 'folder'
    folder.mkdir()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, subprocess.Popen(
            [sys.executable, '-m', 'rrto_bridge.server.fork_server', str(theirs.fileno())],
            pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, text=True) as process, ours:
        ours.send(json.dumps({'server': 's', 'folder': str(folder),
                              'settings': ServerSettings().model_dump_json()}).encode())
        ours.close()
        theirs.close()
        assert process.communicate(timeout=LIMIT)[1] == '' and not folder.exists()


@pytest.mark.long
def test_a_server_that_ends_leaves_the_graph_with_all_its_processes(domain, monkeypatch, tmp_path):
    """When a server ends, the processes of its programs leave the ROS graph.

    Otherwise a program that ends would wait for processes that no longer answer.
    """
    monkeypatch.setitem(domain.env, 'CYCLONEDDS_URI', FORGETS_NOBODY)
    monkeypatch.setitem(domain.env, 'ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    # With this configuration Fast DDS can be reached from elsewhere, which needs a key.
    write_key(tmp_path / 'fleet.key', new_key())
    monkeypatch.setitem(domain.env, 'FLEET_KEY', str(tmp_path / 'fleet.key'))
    ended = domain.server('g')
    ended.wait('serving as g')
    program = loop(domain, 'g')
    with driving(int(domain.env['ROS_DOMAIN_ID'])) as driver:
        # Do not search by node names, because rmw_fastrtps may keep the name of an ended node.
        def of_program():
            return [topic for topic, _ in driver.node.get_topic_names_and_types()
                    if re.fullmatch(r'/rrto/g/\w+/down', topic)
                    and driver.node.count_publishers(topic)]
        driver.until(of_program, 'the process of the program is seen')
        ended.process.send_signal(signal.SIGINT)
        assert ended.process.wait() == 0
        driver.until(lambda: not of_program(), 'it is gone')
    program.process.kill()


def test_without_a_server_one_is_started_and_the_exit_code_is_the_programs():
    domain = Domain()
    code, out, err = domain.run('--', sys.executable, '-c',
                                'import gc, torch, sys; print(torch.ones(2).cuda().sum().item(), '
                                'gc.get_freeze_count() > 10000); sys.exit(7)')
    assert (code, out) == (7, '2.0 True\n')
    assert 'no server was found' in err and len(err.splitlines()) == 1


@pytest.mark.long
def test_a_server_that_is_named_has_to_be_there(domain):
    code, out, err = domain.run('--server', 'nobody', '--', sys.executable, '-c',
                                'import torch; torch.ones(2).cuda()')
    assert code == 1 and out == ''
    assert [line[:31] for line in err.splitlines()] == [
        "rrto: waiting for the server 'n", "rrto: there is no server 'nobod"]


@pytest.mark.long
def test_modules_child_processes_and_programs_without_torch(domain, server, tmp_path, monkeypatch):
    (tmp_path / 'app.py').write_text(
        'import subprocess, sys, torch\n'
        'print(torch.ones(2).cuda().sum().item(), flush=True)\n'
        'if len(sys.argv) < 2:\n'
        '    subprocess.run([sys.executable, "-m", "app", "child"], check=True)\n')
    monkeypatch.setitem(domain.env, 'PYTHONPATH', str(tmp_path))
    assert domain.run('--server', 's', '--', sys.executable, '-m', 'app') == (0, '2.0\n2.0\n', '')
    assert domain.run('--server', 's', '--', 'echo', 'hello') == (0, 'hello\n', '')


FORKS = '''
import os, sys, torch
x = torch.ones(3, device='cuda')
print((x * 2).sum().item(), flush=True)
child = os.fork()
if child == 0:
    try:
        (x + 1).sum().item()
    except RuntimeError as error:
        print("use the 'spawn' start method" in str(error), flush=True)
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), (x * 3).sum().item())
'''


@pytest.mark.long
def test_a_forked_child_is_refused_the_device_and_its_end_leaves_it_to_the_parent(domain, server):
    assert domain.run('--server', 's', '--', sys.executable, '-c', FORKS) == (
        0, '6.0\nTrue\n3 9.0\n', '')


@pytest.mark.long
def test_two_servers_of_one_name_are_refused(domain, server):
    domain.server('s').wait("a server 's' exists in this DDS domain: choose another name")


@pytest.mark.long
def test_memory_that_the_server_does_not_have_is_an_error_of_cuda(domain, server):
    """If the server lacks memory, the program gets CUDA's error.

    The program gets this error for a single call and for a replayed run. Other programs get no
    error.
    """
    other = loop(domain, 's')
    code, out, err = domain.run('--server', 's', '--', sys.executable, '-c', '''
import torch
def infer(k):
    x = torch.full((1 << 18,), float(k)).cuda()
    return torch.cat((x, x, x)).sum().item() / (3 << 18)
def attempt(work):
    try:
        return work()
    except torch.cuda.OutOfMemoryError as error:
        return 'caught'
print(attempt(lambda: torch.zeros(1 << 22, device='cuda') + 1))
print([infer(k) for k in range(8)] == list(range(8)))
held = torch.ones(5 << 18, device='cuda')
print(attempt(lambda: infer(9)))
del held
print(attempt(lambda: infer(10)))
''')
    assert (code, out, err) == (0, 'caught\nTrue\ncaught\n10.0\n', '')
    at = max([int(line) for line in other.lines() if line.strip().isdigit()], default=-1)
    other.wait(f'^{at + 100}$')
    other.process.kill()


@pytest.mark.long
def test_an_error_in_the_links_thread_ends_the_wait(domain, server):
    """After an error in the link's thread, the program gets an error at once and does not wait."""
    program = ('import torch; from rrto_bridge.program.remote import Hook; '
               'x = torch.ones(2).cuda(); x.cpu(); '
               'Hook.dispatch.__self__.connection.engine.port.stream.take = None; (x + 1).cpu()')
    code, _, err = domain.run('--server', 's', '--', sys.executable, '-c', program)
    assert code == 1 and 'LinkError' in err and "an error in this program's node" in err
