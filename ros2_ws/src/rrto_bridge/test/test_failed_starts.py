"""A program whose process on the server cannot start, or fails, gets the reason at once."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fleet_msgs.msg import FrameAck
from fleet_ros import ending, qos
from fleet_ros.spinning import Spinning
from fleet_testing import LIMIT
from processes import Domain, children, forked
from rclpy.node import Node
from rrto_bridge.client.shell import Link, LinkOptions
from rrto_bridge.program.connection import Connection
from rrto_bridge.protocol.errors import ConfigError, LinkError
from rrto_bridge.protocol.messages import ENDED, PROTOCOL
from rrto_bridge.server import fork_server, shell
from rrto_bridge.server.parameters import ServerSettings
from rrto_bridge.server.shared_status import SharedStatus
from rrto_msgs import srv
from spun_nodes import SpunNodes

WHY = 'the server cannot start a process for the program: no process is left'
SUM = 'import torch; print(torch.ones(2).cuda().sum().item())'


class NoProcesses:
    """Stands in for the fork server: each start fails; with `hangs`, a start gets no answer."""

    hangs = False

    def __init__(self, server, folder, settings):
        pass

    def ready(self):
        return {'device': 'cpu'}

    def listen(self, ended, gone):
        self.ended = ended

    def begin(self, program, incarnation, keys):
        if not self.hangs:
            # in another thread, because the caller holds the lock that `ended` needs
            threading.Thread(target=self.ended, args=(program, 1, WHY)).start()

    def close(self, seconds):
        pass


@pytest.fixture
def nodes():
    with SpunNodes(int(os.environ['ROS_DOMAIN_ID'])) as made:
        yield made


@pytest.fixture
def server(nodes, monkeypatch):
    """A server without processes; it runs in a thread of the test."""
    monkeypatch.setattr(shell, 'ForkServerProcess', NoProcesses)
    node = Node('server', context=nodes.context)
    made = shell.Server(node, 'unable', ServerSettings(name='unable'))
    spinning = Spinning(node)
    yield made
    made.close()
    spinning.close()
    node.destroy_node()


def open_session(nodes, node, server, program):
    """Ask for a session until the server has answered; fail if it refuses."""
    client = node.create_client(srv.Open, f'/rrto/{server}/open')
    nodes.until(client.service_is_ready)
    answers = []

    def answered():
        # The server drops an answer if it has not discovered the client yet; so ask again.
        future = client.call_async(srv.Open.Request(
            protocol=PROTOCOL, program=program, incarnation=7))
        future.add_done_callback(lambda done: answers.append(done.result()))
        nodes.executor.spin_until_future_complete(future, 1.0)
        return answers

    nodes.until(answered)
    node.destroy_client(client)
    assert answers[0].accepted, answers[0].reason


def listen(node, server, program):
    """Return the list that receives the errors that the server sends to a program."""
    errors = []
    node.create_subscription(FrameAck, f'/rrto/{server}/{program}/up_ack',
                             lambda ack: errors.append((ack.incarnation, ack.error)), qos.STREAM)
    return errors


# -- the program and the supervisor ----------------------------------------------------------------

def test_a_program_whose_process_cannot_start_gets_the_reason(server):
    with pytest.raises(LinkError, match=f"server 'unable' is lost: {WHY}"):
        Link(LinkOptions('rpc', 'unable'))


def test_a_program_that_dds_finds_after_the_end_of_its_process_gets_the_reason(nodes, server):
    node = nodes.node('late')
    open_session(nodes, node, 'unable', 'late')
    nodes.until(lambda: not server.machine.programs)
    errors = listen(node, 'unable', 'late')
    nodes.until(lambda: errors)
    assert errors[0] == (7, WHY)


def test_a_server_that_ends_tells_programs_that_still_wait_for_a_process(
        nodes, server, monkeypatch):
    monkeypatch.setattr(NoProcesses, 'hangs', True)
    monkeypatch.setattr(shell, 'FAREWELL', LIMIT)
    node = nodes.node('waiting')
    names = [f'waiting_{k}' for k in range(5)]     # the fifth must wait for its turn
    errors = {name: listen(node, 'unable', name) for name in names}
    for name in names:
        open_session(nodes, node, 'unable', name)
    server.close()
    nodes.until(lambda: all(errors.values()))
    assert all(set(found) == {(7, ENDED)} for found in errors.values())


def test_a_server_without_room_for_a_program_refuses_it_and_serves_the_next(
        nodes, server, monkeypatch):
    def full(path):
        raise OSError(28, 'No space left on device', str(path))

    node = nodes.node('refused')
    with monkeypatch.context() as patch:
        patch.setattr(SharedStatus, 'make', full)
        with pytest.raises(AssertionError, match='No space left on device'):
            open_session(nodes, node, 'unable', 'refused')
    assert server.machine.programs == []
    errors = listen(node, 'unable', 'refused')
    open_session(nodes, node, 'unable', 'refused')
    nodes.until(lambda: errors)
    assert errors[0] == (7, WHY)


def test_a_first_connection_that_fails_is_not_repeated():
    tried = []

    def connect():
        tried.append(1)
        raise LinkError(WHY)

    with pytest.raises(LinkError, match=WHY):
        Connection(connect).synchronize()
    assert len(tried) == 1


# -- the fork server -------------------------------------------------------------------------------

# A fork server in which one function of `os` fails once, after the check of the device. The first
# argument of this script is the name of the function.
FORK_SERVER = '''
import errno, os, sys
from rrto_bridge.server import fork_server

def fails(*arguments):
    setattr(os, FAILS, works)
    raise OSError(errno.EAGAIN, 'no process is left')

def say(self, **fields):
    if 'ready' in fields:
        setattr(os, FAILS, fails)
    said(self, **fields)

FAILS = sys.argv[1]
works = getattr(os, FAILS)
said, fork_server.ForkServer.say = fork_server.ForkServer.say, say
fork_server.main(sys.argv[2:])
'''


# What goes wrong in the fork server, and what the server says.
UNREADY = {
    'import os; os._exit(3)':
        'PyTorch cannot be loaded: the process that loads it ended with exit code 3; see its',
    'import os, signal; signal.raise_signal(9)':
        'PyTorch cannot be loaded: the process that loads it was ended by SIGKILL, as when memory',
    "import os; os.fork = lambda: os.open('/no_process_is_left', 0)":
        "the server cannot start a process: .*no_process_is_left",
    "import os; os.pipe = lambda: os.open('/no_pipe_is_left', 0)":
        "the server cannot start a process: .*no_pipe_is_left",
    "fork_server.torch_device = lambda name: open('/no_driver')":
        "FileNotFoundError: .*'/no_driver'",
    'fork_server.torch_device = lambda name: os._exit(3)':
        "device 'auto' cannot be used: the process that tried it ended with exit code 3",
}


@pytest.mark.long
@pytest.mark.parametrize('wrong', UNREADY)
def test_a_server_that_cannot_start_gives_the_reason(wrong, tmp_path, monkeypatch):
    early = wrong.startswith('import')
    code = '\n'.join(['import os, sys', wrong * early,
                      'from rrto_bridge.server import fork_server', wrong * (not early),
                      'fork_server.main(sys.argv[1:])'])
    start = subprocess.Popen

    def popen(command, **options):
        return start([sys.executable, '-c', code, command[-1]], **options)

    monkeypatch.setattr(subprocess, 'Popen', popen)
    process = shell.ForkServerProcess('s', tmp_path, ServerSettings())
    try:
        with pytest.raises(ConfigError, match=UNREADY[wrong]):
            process.ready()
    finally:
        process.close(0.0)


def test_a_server_that_cannot_start_the_fork_server_says_so_and_deletes_its_folder(
        nodes, monkeypatch, tmp_path):
    def popen(*arguments, **options):
        raise BlockingIOError(11, 'no process is left')

    monkeypatch.setattr(shell, 'MEMORY', str(tmp_path))
    monkeypatch.setattr(subprocess, 'Popen', popen)
    with pytest.raises(ConfigError, match='cannot start a process: .*no process is left'):
        shell.Server(nodes.node('server'), 'poor', ServerSettings(name='poor'))
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_start_another_fork_server_refuses_programs(
        nodes, server, monkeypatch):
    def unable(*arguments):
        raise ConfigError('no process is left')

    monkeypatch.setattr(shell, 'ForkServerProcess', unable)
    server._on_gone()
    with pytest.raises(AssertionError, match='must be restarted: no process is left'):
        open_session(nodes, nodes.node('refused'), 'unable', 'refused')


@pytest.mark.long
@pytest.mark.parametrize('fails', ['fork', 'pidfd_open'])
def test_a_fork_server_that_cannot_start_a_process_says_so_and_continues(tmp_path, fails):
    folder = tmp_path / 'folder'
    folder.mkdir()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(LIMIT)

    def say(**fields):
        ours.send(json.dumps(fields).encode())

    def hear():
        return json.loads(ours.recv(1 << 16))

    with theirs, subprocess.Popen(
            [sys.executable, '-c', FORK_SERVER, fails, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, text=True) as process, ours:
        theirs.close()
        say(server='s', folder=str(folder), settings=ServerSettings().model_dump_json())
        assert hear()['ready']
        say(begin='a', incarnation=1, keys=[])
        event = hear()
        assert (event['ended'], event['status']) == ('a', 1)
        assert re.search('cannot start a process .*no process is left', event['reason'])
        assert children(process.pid) == []
        # This process starts. It ends at once, because it does not find its status file.
        say(begin='b', incarnation=1, keys=[])
        assert hear() == {'ended': 'b', 'status': 1}
        ours.close()
        process.communicate(timeout=LIMIT)


def test_a_server_waits_for_its_fork_server_until_that_has_ended_the_programs_processes():
    """A fork server that is killed leaves processes behind on the ROS graph."""
    assert fork_server.ORDERLY < shell.ENDS < ending.LEAVING - 2 * shell.FAREWELL


HANGS = """
import ctypes
from types import SimpleNamespace
from fleet_ros import ending
from rrto_bridge.server import worker

ending.LEAVING = 0.1
made = worker._Worker.__new__(worker._Worker)
made._spinning = SimpleNamespace(close=ctypes.PyDLL(None).pause)   # holds the GIL
made._close()
"""


def test_a_process_that_hangs_at_its_end_with_the_lock_of_python_is_ended():
    code, _, err = forked('-c', HANGS)
    assert code == -signal.SIGALRM, err


EXITS = """
import atexit, ctypes, signal, sys
from contextlib import ExitStack
from types import SimpleNamespace
import threading
from fleet_ros import ending
from rrto_bridge.client import shell

ending.LEAVING = 0.5
atexit.register(lambda: print('mine', signal.getitimer(signal.ITIMER_REAL)[0], flush=True))
link = shell.Link.__new__(shell.Link)
link._context, link._changed = SimpleNamespace(ok=lambda: True), threading.Condition()
link.lost, link._fail = 'it is lost', lambda reason: None
link._made = SimpleNamespace(close=ctypes.PyDLL(None).pause if sys.argv[1:] else print)
shell._links.append(link)
atexit.register(shell._close_links)
raise SystemExit(3)
"""


@pytest.mark.parametrize('hangs', [False, True])
def test_a_program_does_not_hang_at_its_exit_and_keeps_its_own_end(hangs):
    """Fast DDS can wait for ever when a program leaves the ROS graph, with the lock of Python."""
    code, out, err = forked('-c', EXITS, *['hangs'] * hangs)
    assert (code, out) == ((-signal.SIGALRM, '') if hangs else (3, '\nmine 0.0\n')), err


# -- real processes --------------------------------------------------------------------------------

@pytest.fixture(scope='module')
def domain():
    made = Domain()
    yield made
    made.close()


def fails_with(domain, server, reason):
    code, out, err = domain.run('--server', server, '--', sys.executable, '-c', SUM)
    assert (code, out) == (1, '')
    assert re.search(f"LinkError: server '{server}' is lost: {reason}", err.splitlines()[-1]), err


@pytest.mark.long
def test_a_server_without_file_descriptors_says_so_and_serves_programs_again_later(domain):
    server = domain.server('few')
    server.wait('serving as few')
    fork_server, = children(server.process.pid)
    used = {int(fd.name) for fd in Path(f'/proc/{fork_server}/fd').iterdir()}
    limits = resource.prlimit(fork_server, resource.RLIMIT_NOFILE)
    lowest = min(set(range(len(used) + 1)) - used)
    resource.prlimit(fork_server, resource.RLIMIT_NOFILE, (lowest, limits[1]))
    fails_with(domain, 'few', 'the server cannot start a process for the program: .*Errno 24')
    resource.prlimit(fork_server, resource.RLIMIT_NOFILE, limits)
    assert domain.run('--server', 'few', '--', sys.executable, '-c', SUM) == (0, '2.0\n', '')


@pytest.mark.long
def test_the_fork_server_leaves_the_end_to_the_supervisor_when_all_get_sigterm(domain):
    server = domain.server('held')
    server.wait('serving as held')
    fork_server, = children(server.process.pid)
    os.kill(fork_server, signal.SIGTERM)
    assert domain.run('--server', 'held', '--', sys.executable, '-c', SUM) == (0, '2.0\n', '')
    assert children(server.process.pid) == [fork_server]


@pytest.mark.long
def test_a_program_whose_process_fails_in_its_start_gets_the_error(domain, tmp_path):
    trace = tmp_path / 'trace.txt'
    trace.write_text('0 100\n')
    server = domain.server('hurt', **{'link.trace': trace})
    server.wait('serving as hurt')
    trace.unlink()     # the program's process fails, because it also reads the trace
    fails_with(domain, 'hurt', 'its process on the server has failed: TraceError: ')


@pytest.mark.long
def test_a_program_whose_topics_are_not_found_gets_the_reason_once_it_listens(domain):
    server = domain.server('deaf')
    server.wait('serving as deaf')
    with SpunNodes(int(domain.env['ROS_DOMAIN_ID'])) as nodes:
        node = nodes.node('silent')
        open_session(nodes, node, 'deaf', 'silent')
        server.wait("silent leaves: the program's topics were not found")
        errors = listen(node, 'deaf', 'silent')
        nodes.until(lambda: errors)
        assert 'topics were not found' in errors[0][1]
