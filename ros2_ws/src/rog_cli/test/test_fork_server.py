"""Tests that a process forked from a process with loaded libraries behaves like a new process."""

import json
import os
import select
import signal
import socket
from pathlib import Path

import pytest
from fleet_testing import environment, eventually, mostly_long
from rog_cli.launching.fork_server import LIMIT, ForkServer, _adopt

MODULE = '''
import json, os, signal, sys

def main():
    print(json.dumps([os.getppid(), os.getsid(0) == os.getpid(), 'torch' in sys.modules,
                      sys.argv[1:], dict(os.environ)]), flush=True)
    if sys.argv[1] == 'stay':
        signal.pause()
    sys.exit(int(sys.argv[1]))
'''


@pytest.fixture(scope='module')
def fork_server():
    with ForkServer(os.environ) as made:
        yield made


@pytest.fixture
def start(fork_server, tmp_path):
    (tmp_path / 'says_what_it_is.py').write_text(MODULE)
    started = []

    def start(argument, **more):
        """Start the module; return its process, and what this process reports of itself."""
        path = tmp_path / f'log{len(started)}'
        with path.open('wb') as log:
            started.append(fork_server.start(['says_what_it_is', argument], log,
                                         environment(7, tmp_path, **more)))
        eventually(lambda: path.read_text().endswith('\n'), path.read_text)
        return started[-1], json.loads(path.read_text())

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_they_are_children_of_the_launcher_with_their_own_session_and_variables(start, monkeypatch):
    monkeypatch.setenv('GONE', '1')
    process, (parent, alone, loaded, arguments, env) = start('3', ONLY_HERE='yes')
    assert (parent, alone, loaded, arguments) == (os.getpid(), True, True, ['3'])
    assert env['ONLY_HERE'] == 'yes' and env['ROS_DOMAIN_ID'] == '7'
    assert process.wait() == 3 and process.poll() == 3
    monkeypatch.delenv('GONE')
    assert 'GONE' not in start('0')[1][-1]


def test_they_end_by_signals_and_their_launcher_learns_by_which(start):
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
        process, _ = start('stay')
        assert process.poll() is None
        shown = Path(f'/proc/{process.pid}/cmdline').read_text().strip('\0').split('\0')
        assert shown == ['python', '-m', 'says_what_it_is', 'stay']
        process.send_signal(number)
        assert process.wait(LIMIT) == -number
        process.send_signal(number)  # the process has ended, so the signal has no effect


def test_they_go_on_without_the_fork_server_and_it_starts_no_more(tmp_path):
    (tmp_path / 'says_what_it_is.py').write_text(MODULE)
    with (tmp_path / 'log').open('wb') as log, ForkServer(os.environ, ()) as fork_server:
        process = fork_server.start(['says_what_it_is', 'stay'], log, environment(7, tmp_path))
        try:
            fork_server._process.kill()
            with pytest.raises(ChildProcessError, match='has ended'):
                fork_server.start(['says_what_it_is', 'stay'], log, environment(7, tmp_path))
            assert process.poll() is None
        finally:
            process.kill()
    assert process.wait() == -signal.SIGKILL


def test_it_says_nothing_of_the_threads_of_libraries(tmp_path, capfd):
    (tmp_path / 'starts_a_thread.py').write_text(
        'import threading\n'
        'threading.Thread(target=threading.Event().wait, daemon=True).start()\n')
    (tmp_path / 'says_what_it_is.py').write_text(MODULE)
    env = environment(7, tmp_path)
    with (tmp_path / 'log').open('wb') as log, ForkServer(env, ['starts_a_thread']) as fork_server:
        process = fork_server.start(['says_what_it_is', '0'], log, env)
        assert process.wait() == 0
    assert capfd.readouterr().err == ''


@pytest.mark.parametrize('answered', mostly_long([False, True], True))
def test_it_says_nothing_of_a_launcher_that_has_gone(tmp_path, capfd, answered):
    """The fork server prints no error if the launcher ends before it has read the answer.

    ``answered``: whether the fork server has sent the answer when the launcher ends.
    """
    (tmp_path / 'says_what_it_is.py').write_text(MODULE)
    fork_server = ForkServer(os.environ, ())
    read, write = os.pipe()
    if not answered:
        fork_server._process.send_signal(signal.SIGSTOP)
    _adopt(answered)
    asked = json.dumps([['says_what_it_is', '0'], environment(7, tmp_path)]).encode()
    socket.send_fds(fork_server._link, [asked], [write])
    os.close(write)
    if answered:
        assert select.select([fork_server._link], [], [], LIMIT)[0]
        _adopt(False)
    fork_server._link.close()
    fork_server._process.send_signal(signal.SIGCONT)
    assert fork_server._process.wait(LIMIT) == 0
    with open(read) as log:  # reading ends when all processes have ended
        assert bool(log.read()) == answered
    assert capfd.readouterr().err == ''


def test_a_process_whose_launcher_was_interrupted_does_not_run(tmp_path):
    """Otherwise it would be nobody's child, and nobody could end it."""
    (tmp_path / 'says_what_it_is.py').write_text(MODULE)
    asked = json.dumps([['says_what_it_is', '0'], environment(7, tmp_path)]).encode()
    read, write = os.pipe()
    with ForkServer(os.environ, ()) as fork_server:
        socket.send_fds(fork_server._link, [asked], [write])  # as `start` does after `_adopt`
        os.close(write)
        with open(read) as log:  # reading ends when the process has ended
            assert log.read() == ''
