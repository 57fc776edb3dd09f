"""Tests of the signals that a program receives while its device is on the server."""

import re
import signal
import subprocess
import sys

import pytest
from fleet_ros import qos
from fleet_testing import LIMIT, Lines
from processes import Domain
from rclpy.node import Node
from rrto_bridge.client import shell
from rrto_bridge.client.shell import Link, LinkOptions
from rrto_bridge.program.connection import Connection
from rrto_msgs import msg, srv
from spun_nodes import SpunNodes

PROGRAM = """
import signal, time
from rrto_bridge.program import signals

def released():
    signal.raise_signal(signal.SIGINT)
    print('released')

class Tensor:
    def __del__(self):
        released()

signals.install(lambda: False, Tensor.__del__.__code__)
try:
    tensor = Tensor()
    del tensor
    time.sleep(60)
except KeyboardInterrupt:
    print('interrupted')
"""


def test_ctrl_c_while_a_tensor_is_released_is_not_lost():
    ended = subprocess.run([sys.executable, '-c', PROGRAM], capture_output=True, text=True,
                           timeout=LIMIT, check=False)
    assert (ended.stdout, ended.stderr) == ('released\ninterrupted\n', '')


def test_a_handler_of_the_program_gets_the_interrupted_frame():
    code = ('import signal\nfrom rrto_bridge.program import signals\n'
            'signals.install(lambda: False, None)\n'
            'signal.signal(signal.SIGUSR1, lambda number, frame: print(frame.f_lineno))\n'
            'signal.raise_signal(signal.SIGUSR1)\n')
    ended = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                           timeout=LIMIT, check=False)
    assert (ended.stdout, ended.stderr) == ('5\n', '')


class Stop(BaseException):
    pass


def test_a_signal_during_the_first_connection_does_not_connect_again():
    tried = []

    def connect():
        tried.append(1)
        assert not connection.busy()
        raise Stop

    connection = Connection(connect)
    with pytest.raises(Stop):
        connection.synchronize()
    assert len(tried) == 1


@pytest.mark.parametrize('interrupted', ['Node', 'bound_parameters', 'Spinning', 'Alarm',
                                         'find_server', 'Channel'])
def test_a_link_that_is_interrupted_anywhere_leaves_nothing_behind(interrupted, monkeypatch):
    def stop(*_, **__):
        raise Stop

    contexts = []
    made = shell.Context
    monkeypatch.setattr(shell, 'Context', lambda: contexts.append(made()) or contexts[0])
    monkeypatch.setattr(shell, 'find_server', lambda node: 'anyone')
    monkeypatch.setattr(shell, interrupted, stop)
    with pytest.raises(Stop):
        Link(LinkOptions('rpc'))
    assert not contexts[0].ok()


@pytest.mark.long
def test_ctrl_c_ends_a_program_that_waits_for_a_server_which_does_not_answer():
    domain = Domain()
    with SpunNodes(int(domain.env['ROS_DOMAIN_ID'])) as nodes:
        # This server is not spun, so it does not answer.
        mute = Node('mute', context=nodes.context)
        mute.create_publisher(msg.ServerStatus, '/rrto/mute/status', qos.STATUS)
        mute.create_service(srv.Open, '/rrto/mute/open', lambda request, response: response)
        program = Lines(domain.rrto('run', '--server', 'mute', '--', sys.executable, '-c',
                                    'import torch; torch.ones(2).cuda()'))
        nodes.until(lambda: any(re.fullmatch('/rrto/mute/.*/down', topic)
                                for topic, _ in mute.get_topic_names_and_types()))
        program.process.send_signal(signal.SIGINT)
        code, said = program.ended()
        mute.destroy_node()
    domain.close()
    assert code == -signal.SIGINT and 'KeyboardInterrupt' in said
    assert 'does not answer' not in said
