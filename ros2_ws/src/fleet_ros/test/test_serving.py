"""Servers that share a process: an orderly end of all, also if one of them fails."""

import signal
import subprocess
import sys

import pytest
from fleet_testing import Lines, environment, free_domain

PROGRAM = """
import sys
from fleet_ros.managed import ManagedSettings
from fleet_ros.serving import Kind, ServerNode, serve

class Server:
    busy, error = False, ''

    def __init__(self, node):
        self.node, self.name = node, node.get_name()
        print(self.name, 'is there', flush=True)

    def pause(self, paused):
        print(self.name, 'is paused' if paused else 'serves', flush=True)

    def leave(self):
        print(self.name, 'leaves', flush=True)
        self.busy = True
        self.node.create_timer(0.01, self.finish)

    def finish(self):
        self.busy = False

    def close(self):
        print(self.name, 'closes', 'early' if self.busy else 'at last', flush=True)

class Node(ServerNode):
    packages = ('fleet_env',)
    asked = False

    def __init__(self, name, what, cli_args):
        self.what = what
        super().__init__(name, ManagedSettings, cli_args=cli_args)

    def configure(self):
        if self.what == 'cannot start':
            from fleet_env.errors import SettingError
            raise SettingError('there is no such device')
        self.keep(Server(self))

    def activate(self):
        super().activate()
        if self.what == 'fails':
            self.timer = self.create_timer(0.01, self.fail)

    @property
    def drained(self):
        if not self.asked:
            self.asked = True
            print(self.server.name, 'is asked', flush=True)
        return super().drained

    def fail(self):
        self.server.error = 'no memory is left'

def kind(name, what=''):
    return Kind(name, Node.packages, lambda cli_args: Node(name, what, cli_args), '')

# open, since over Zenoh nothing keeps a node to this machine
serve([kind('one'), kind('two', sys.argv[1])],
      ['fleet', '--ros-args', '-p', 'security.open:=true'])
"""


@pytest.fixture
def started():
    processes = []

    def start(what):
        processes.append(subprocess.Popen(
            [sys.executable, '-c', PROGRAM, what], env=environment(free_domain()), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return Lines(processes[-1])
    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_servers_once_robots_need_them_no_more(started, number):
    lines = started('serves')
    lines.wait('one is asked')    # whether it may end
    lines.process.send_signal(number)
    code, text = lines.ended()
    assert code == 0 and text.splitlines() == [
        'one is there', 'one is paused', 'one serves', 'two is there', 'two is paused',
        'two serves', 'one is asked', 'one leaves', 'two leaves', 'two is asked',
        'one closes at last', 'two closes at last']


def test_a_server_that_fails_is_named_and_the_others_end_with_it(started):
    code, text = started('fails').ended()
    assert code == 1 and 'error: two: no memory is left' in text
    assert 'one leaves' in text and 'one closes at last' in text and 'Traceback' not in text


def test_a_server_that_cannot_start_is_named_and_the_others_end(started):
    code, text = started('cannot start').ended()
    assert code == 1 and 'error: there is no such device' in text
    assert 'one closes' in text and 'Traceback' not in text
