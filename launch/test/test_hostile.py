"""A fleet under a flood of hostile messages and calls, with and without a key.

ROG_HOSTILE sets how many; the stranger hears all topics, so it knows the session.
"""

import os
import random
from pathlib import Path

import numpy as np
import pytest
from fleet_under_test import Fleet
from rclpy.serialization import deserialize_message, serialize_message
from rog_core.errors import RogError
from rog_msgs.msg import (
    FleetStatus,
    RowAck,
    RowChunk,
    TrainingStatus,
    TransferEnd,
    TransferReceipt,
)
from rog_msgs.srv import Register, SaveCheckpoint, SetSync
from rog_ros import qos
from rog_ros.seal import new_key, write_key

pytestmark = pytest.mark.long
MESSAGES = int(os.environ.get('ROG_HOSTILE', 3000))
GROWTH = 64  # MiB that a process may grow by
TOPICS = {'push': (RowChunk, qos.CHUNK), 'push_end': (TransferEnd, qos.CONTROL),
          'push_receipt': (TransferReceipt, qos.CONTROL), 'push_ack': (RowAck, qos.CHUNK),
          'pull': (RowChunk, qos.CHUNK), 'pull_end': (TransferEnd, qos.CONTROL),
          'pull_receipt': (TransferReceipt, qos.CONTROL), 'pull_ack': (RowAck, qos.CHUNK),
          'training_status': (TrainingStatus, qos.STATUS)}
EXTREMES = {'uint8': 255, 'uint16': 2 ** 16 - 1, 'uint32': 2 ** 32 - 1, 'uint64': 2 ** 64 - 1,
            'double': (float('nan'), float('inf'), -1.0, 1e308)}


class Stranger:
    """Hears everything that two robots and their server say, and says it again, changed."""

    def __init__(self, fleet, seed):
        self.fleet, self.rng, self.said = fleet, random.Random(seed), 0
        self.heard, self.out = {}, {}
        for robot in ('robot1', 'robot2'):
            for topic, (kind, profile) in TOPICS.items():
                place = f'/{robot}/{topic}'
                self.heard[place] = messages = []
                fleet.node.create_subscription(kind, place, messages.append, profile)
        fleet.until(lambda: all(len(m) > 2 for m in self.heard.values()), 'messages of each kind')
        self.heard = {place: messages[-100:] for place, messages in self.heard.items()}
        for place in self.heard:
            kind, profile = TOPICS[place.rpartition('/')[2]]
            self.out[place] = fleet.node.create_publisher(kind, place, profile)
        self.out['/rog/fleet_status'] = fleet.node.create_publisher(
            FleetStatus, '/rog/fleet_status', qos.STATUS)
        fleet.until(lambda: all(p.get_subscription_count() for p in self.out.values()), 'discovery')
        self.clients = {kind: fleet.node.create_client(kind, f'/rog/{name}') for kind, name in (
            (Register, 'register'), (SaveCheckpoint, 'save_checkpoint'), (SetSync, 'set_sync'))}
        fleet.until(lambda: all(c.service_is_ready() for c in self.clients.values()), 'services')

    def say(self, count):
        """Say so much; between, let everybody work."""
        for _ in range(count):
            place = self.rng.choice(sorted(self.heard))
            message = self.rng.choice(self.heard[place])
            kind = type(message)
            message = deserialize_message(serialize_message(message), kind)
            way = self.rng.randrange(6)
            if way == 1:     # another robot's
                place = place.replace('robot1', 'x').replace('robot2', 'robot1').replace(
                    'x', 'robot2')
            elif way == 2:   # a bit here and there
                message = self.flipped(message)
            elif way == 3:   # a field at its limit
                self.to_the_limit(message)
            elif way == 4 and kind is RowChunk:  # large
                message.ids = [1] * 20_000
                message.values = [255, 126] * 20_000
            elif way == 5 and hasattr(message, 'attempt'):  # the next transfer, or one far ahead
                message.attempt += self.rng.choice([1, 2, 10 ** 6])
                message.iteration += self.rng.choice([0, 1, 10 ** 6])
            self.out[place].publish(message)
            self.said += 1
            if self.said % 500 == 0:
                self.call()
            if self.said % 50 == 0:
                self.fleet.spin()

    def fall_silent(self):
        """Let the fleet forget what it was told; what comes from now on is true."""
        for _ in range(20 * len(self.out)):  # more than all queues hold
            self.fleet.spin()
        self.fleet.robots.clear()
        self.fleet.until(lambda: len(self.fleet.robots) == 2, 'the robots report')

    def flipped(self, message):
        data = bytearray(serialize_message(message))
        for _ in range(self.rng.randint(1, 4)):
            data[self.rng.randrange(4, len(data))] ^= 1 << self.rng.randrange(8)
        try:
            return deserialize_message(bytes(data), type(message))
        except (RogError, RuntimeError, ValueError, AssertionError, UnicodeDecodeError):
            return message

    def to_the_limit(self, message):
        fields = {name: kind for name, kind in message.get_fields_and_field_types().items()
                  if kind in EXTREMES}
        name = self.rng.choice(sorted(fields))
        value = EXTREMES[fields[name]]
        setattr(message, name, self.rng.choice(value) if isinstance(value, tuple) else value)

    def call(self):
        """Make one call of each service, and wait for the answers."""
        rng = self.rng
        names = ['0.weight'] * rng.choice([0, 1, 4, 5000])
        calls = [self.clients[kind].call_async(request) for kind, request in (
            (Register, Register.Request(
                protocol=5, robot=rng.choice(['robot1', 'robot2', 'x' * 1000, '../etc']),
                incarnation=rng.getrandbits(64), codec=rng.choice(['onebit', 'raw', '\n' * 999]),
                granularity='row', attempt=2 ** 32 - 1, iteration=2 ** 32 - 1, names=names,
                shapes=[rng.choice(['99999999999x99999999', '-1', '', 'x', '9' * 4000])
                        for _ in names])),
            (SaveCheckpoint, SaveCheckpoint.Request(name=rng.choice(['../x', '/etc/x', 'a/b']))),
            (SetSync, SetSync.Request(sync=rng.choice(['none', 'rsp:-1', '\n' * 99]))))]
        self.fleet.until(lambda: all(c.done() for c in calls), 'answers')
        assert not calls[1].result().success and not calls[2].result().success
        assert not calls[0].result().accepted, calls[0].result()


def memory(process):
    """MiB that a process holds."""
    pages = int(Path(f'/proc/{process.pid}/statm').read_text().split()[1])
    return pages * os.sysconf('SC_PAGE_SIZE') / 2 ** 20


@pytest.mark.parametrize('sealed', [False, True], ids=['without a key', 'with a key'])
def test_nobody_crashes_hangs_or_grows(tmp_path, sealed):
    settings = {}
    if sealed:
        write_key(tmp_path / 'fleet.key', new_key())
        settings = {'security.key': str(tmp_path / 'fleet.key')}
    with Fleet(tmp_path, robots=2) as fleet:
        fleet.start('server', 'robot1', 'robot2', **settings)
        fleet.until_trained('robot1', 'robot2')
        stranger = Stranger(fleet, 1)
        stranger.say(MESSAGES // 10)  # what is remembered and compiled once is not counted
        before = {name: memory(process) for name, process in fleet.processes.items()}
        joins = fleet.log('server').count('joins')
        stranger.say(MESSAGES - MESSAGES // 10)
        stranger.fall_silent()
        fleet.until_trained('robot1', 'robot2', iterations=10)
        growth = {name: memory(process) - before[name]
                  for name, process in fleet.processes.items()}
        print(f'{stranger.said} messages; grown by {growth} MiB; joins '
              f'{fleet.log("server").count("joins") - joins}; accuracy '
              f'{[r.accuracy for r in fleet.robots.values()]}')
        assert max(growth.values()) < GROWTH
        assert all(process.poll() is None for process in fleet.processes.values())
        logs = ''.join(fleet.log(name) for name in fleet.processes)
        assert 'Traceback' not in logs and all(c.isprintable() or c in '\n\t\x1b' for c in logs)
        if sealed:
            assert fleet.log('server').count('joins') == joins, 'a robot was sent away'
            assert not any(robot.refused for robot in fleet.status.robots)
        fleet.interrupt('server')
        assert [fleet.ended(name) for name in fleet.processes] == [0, 0, 0]
        assert np.isfinite([r.accuracy for r in fleet.robots.values()]).all()
