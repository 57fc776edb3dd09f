"""With a key, a stranger who hears and sends everything reads, changes and gets nothing."""

import re
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import rclpy
from fleet_link.key import new_key, write_key
from fleet_msgs.msg import Frame, FrameAck
from fleet_ros import qos
from fleet_ros.sealing import octets
from fleet_ros.spinning import Spinning
from fleet_testing import LIMIT, eventually
from processes import Domain
from rclpy.context import Context
from rclpy.node import Node
from rclpy.serialization import deserialize_message, serialize_message
from rrto_bridge.protocol.messages import PROTOCOL
from rrto_msgs import msg, srv

SECRET = 1234.5678     # the program uploads a tensor that is full of this number
# The program goes on until a line comes on its input, so that a stranger has time.
PROGRAM = f'''
import select, sys, torch
secret = torch.full((2000,), {SECRET}).cuda()
print(round((secret - {SECRET} + 1).sum().item()), flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    total = (secret - {SECRET} + 2).sum().item()
print(round(total), flush=True)
'''
TOPICS = {'up': Frame, 'down': Frame, 'up_ack': FrameAck, 'down_ack': FrameAck}


@pytest.fixture
def domain():
    made = Domain(forked=True)
    yield made
    made.close()


@pytest.fixture(scope='module')
def keys(tmp_path_factory):
    folder, key = tmp_path_factory.mktemp('keys'), new_key()
    for name, one in (('fleet', key), ('other', new_key()), ('robot1', key.of('robot1'))):
        write_key(folder / f'{name}.key', one)
    return folder


@pytest.fixture(scope='module')
def keyed(keys):
    """The domain of a server that has the fleet's key."""
    made = Domain(forked=True)
    made.server('safe', **{'security.key': keys / 'fleet.key'}).wait('serving as')
    yield made
    made.close()


class Stranger:
    """Hears all topics of the programs of a server, and can say anything there."""

    def __init__(self, domain):
        self.context = Context()
        rclpy.init(context=self.context, domain_id=int(domain.env['ROS_DOMAIN_ID']))
        self.node = Node('stranger', context=self.context)
        self.heard, self.publishers = {}, {}
        self.client = self.node.create_client(srv.Open, '/rrto/safe/open')
        self.spinning = Spinning(self.node)

    def close(self):
        self.spinning.close()
        self.node.destroy_node()
        self.context.try_shutdown()

    def joins(self):
        """Subscribe to the topics of a program as soon as they are there; return whether it is."""
        for name, _ in self.node.get_topic_names_and_types():
            found = re.fullmatch(r'/rrto/safe/\w+/(\w+)', name)
            if found and found[1] in TOPICS and name not in self.heard:
                kind = TOPICS[found[1]]
                messages = self.heard[name] = []
                self.node.create_subscription(kind, name, messages.append, qos.STREAM)
                self.publishers[name] = self.node.create_publisher(kind, name, qos.STREAM)
        return len(self.heard) == len(TOPICS)

    def attack(self):
        """Say again what was heard, and false versions of it."""
        for name, messages in self.heard.items():
            for message in list(messages)[-30:]:
                for other in (message, *changed(message)):
                    self.publishers[name].publish(other)
                if isinstance(message, FrameAck):
                    self.publishers[name].publish(FrameAck(
                        incarnation=message.incarnation, error='the server has ended'))

    def everything(self):
        return b''.join(serialize_message(m) for messages in self.heard.values()
                        for m in list(messages))


@contextmanager
def stranger_in(domain):
    stranger = Stranger(domain)
    try:
        yield stranger
    finally:
        stranger.close()


def changed(message):
    content = 'data' if isinstance(message, Frame) else 'tag'
    for field in ('packet', 'number'):
        other = deserialize_message(serialize_message(message), type(message))
        setattr(other, field, getattr(message, field) + 1)
        yield other
    for data in (b'', bytes(len(getattr(message, content)))):
        other = deserialize_message(serialize_message(message), type(message))
        setattr(other, content, octets(data))
        yield other


def test_a_stranger_reads_and_changes_nothing_and_the_program_gets_its_results(keyed, keys):
    with stranger_in(keyed) as stranger:
        over = threading.Event()

        def listen():
            while not over.wait(0.02) and not stranger.joins():
                pass
        listening = threading.Thread(target=listen)
        listening.start()
        try:
            process = keyed.start_file(
                '-m', 'rrto_bridge.cli.main', 'run', '--server', 'safe', '--key',
                keys / 'robot1.key', '--', sys.executable, '-c', PROGRAM, stdin=subprocess.PIPE)
            assert process.stdout.readline() == '2000\n', process.stderr.read()
        finally:
            over.set()
            listening.join()
        eventually(stranger.joins)
        eventually(lambda: all(stranger.heard.values()), step=stranger.attack)
        for _ in range(5):
            stranger.attack()
        out, err = process.communicate('go on\n', timeout=LIMIT)
        assert (process.returncode, out) == (0, '4000\n'), err
        assert struct.pack('<4f', *[SECRET] * 4) not in stranger.everything()
        # calls
        assert stranger.client.wait_for_service(LIMIT)
        for sealed in (b'', bytes(90)):
            future = stranger.client.call_async(srv.Open.Request(
                protocol=PROTOCOL, program='stranger', incarnation=5,
                sealed=octets(sealed)))
            eventually(future.done)
            assert not future.result().accepted and not len(future.result().sealed)


@pytest.mark.parametrize(('program', 'why'), [
    (None, 'refuses: the server has a key: make one for this robot'),
    ('other', 'does not answer')])
def test_who_lacks_the_right_key_is_told_why(keyed, keys, program, why):
    options = ['--key', str(keys / f'{program}.key')] if program else []
    code, out, err = keyed.run('--server', 'safe', *options, '--', 'python', '-c', PROGRAM)
    assert code == 1 and not out and why in err, err


def test_who_has_a_key_does_not_join_a_server_without_one(domain, keys):
    domain.server('open').wait('serving as')
    code, out, err = domain.run('--server', 'open', '--key', str(keys / 'robot1.key'), '--',
                                'python', '-c', PROGRAM)
    assert code == 1 and not out and 'it is not sealed, but this side has a key' in err, err


def test_a_server_that_has_not_our_key_is_passed_over(keyed, keys):
    with stranger_in(keyed) as stranger:
        stranger.node.create_service(srv.Open, '/rrto/a/open', lambda request, response: response)
        stranger.node.create_publisher(msg.ServerStatus, '/rrto/a/status', qos.STATUS)
        code, out, err = keyed.run('--key', str(keys / 'robot1.key'), '--', 'python', '-c',
                                   'import torch; print(torch.ones(3).cuda().sum().item())')
    assert (code, out) == (0, '3.0\n'), err


def test_a_stranger_ends_no_server(keyed):
    with stranger_in(keyed) as stranger:
        assert stranger.client.wait_for_service(LIMIT)
        offered = {name for name, _ in stranger.node.get_service_names_and_types()}
        assert not [name for name in offered if 'change_state' in name]
    assert keyed.processes[0].poll() is None


def test_a_robots_key_is_enough_for_a_server_of_its_own_on_its_machine(domain, keys):
    code, out, err = domain.run('--key', str(keys / 'robot1.key'), '--', 'python', '-c',
                                'import torch; print(torch.ones(3).cuda().sum().item())')
    assert (code, out) == (0, '3.0\n'), err
    assert 'no server was found' in err


def test_off_this_machine_nothing_starts_without_a_key_or_consent(domain):
    for name in list(domain.env):
        if name.startswith(('FASTRTPS', 'FASTDDS', 'CYCLONEDDS', 'ROS_AUTOMATIC')):
            del domain.env[name]
    domain.env['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'SUBNET'
    server = domain.start('rrto_bridge.server.main', '--ros-args', '-p', 'name:=safe')
    _, err = server.communicate(timeout=LIMIT)
    assert server.returncode == 1 and 'would leave this machine without a key' in err, err
