"""A fleet under a flood of hostile messages and calls, with and without a key.

ROG_HOSTILE sets how many; the stranger hears all topics, so it knows the session.
"""

import os
import random
import threading
from pathlib import Path

import fleet_under_test
import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray
from fleet_under_test import SEED, Fleet
from rcl_interfaces.srv import ListParameters, SetParameters
from rclpy.parameter import Parameter
from rclpy.serialization import deserialize_message, serialize_message
from rog_core.errors import RogError
from rog_core.flat import rows_of, trainable
from rog_core.messages import PROTOCOL
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
from rog_ros.seal import derived, new_key, sealed, write_key
from tiny_task import Tiny

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


def honest(robot, **changes):
    """The registration of a robot that trains what `Fleet` trains; the server accepts it."""
    partition = rows_of(trainable(Tiny(seed=SEED).model()), 'row', 'onebit')
    values = {'protocol': PROTOCOL, 'incarnation': 7, 'granularity': 'row', 'codec': 'onebit',
              'digest': partition.digest, 'number': 1,
              'names': [p.name for p in partition.parameters],
              'shapes': ['x'.join(map(str, p.shape)) for p in partition.parameters]}
    return Register.Request(robot=robot, **{**values, **changes})


def _change(name, *values):
    return lambda request, rng: setattr(request, name, rng.choice(values))


def _many(request, rng):
    request.names, request.shapes = ['0.weight'] * 5000, ['12x96'] * 5000


def _shape(request, rng):
    request.shapes = [rng.choice(['99999999999x99999999', '-1', 'x', '9' * 4000]),
                      *request.shapes[1:]]


# Each makes an honest registration wrong in one point; nothing at all: the name is alive.
WRONG = [lambda request, rng: None, _many, _shape, _change('protocol', 0, 5, 2 ** 32 - 1),
         _change('robot', 'x' * 1000, '../etc', 'robot9', ''), _change('codec', 'raw', '\n' * 999),
         _change('granularity', 'atoms', 'x' * 1000), _change('digest', '', '0' * 64),
         _change('names', [], ['0.weight'])]


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
        registration = honest('robot1', incarnation=rng.getrandbits(64))
        rng.choice(WRONG)(registration, rng)
        calls = [self.clients[kind].call_async(request) for kind, request in (
            (Register, registration),
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


# -- one attack each; `honest` is the twin that is accepted


def call(fleet, kind, name, request):
    client = fleet.node.create_client(kind, name)
    fleet.until(client.service_is_ready, f'{name} is there')
    future = client.call_async(request)
    fleet.until(future.done, f'{name} answers')
    fleet.node.destroy_client(client)
    return future.result()


@pytest.fixture
def open_fleet(tmp_path, monkeypatch):
    """A server without a key where any robot may join."""
    listed = fleet_under_test.server_parameters
    monkeypatch.setattr(fleet_under_test, 'server_parameters', lambda *given: {
        name: value for name, value in listed(*given).items() if not name.startswith('robot')})
    with Fleet(tmp_path, robots=1) as fleet:
        fleet.start('server')
        fleet.until(lambda: fleet.status, 'the server is there')
        yield fleet


def test_an_honest_registration_is_accepted_and_each_wrong_one_refused(open_fleet):
    rng = random.Random(1)
    assert call(open_fleet, Register, '/rog/register', honest('robot8')).accepted
    for wrong in WRONG[1:]:
        for _ in range(4):
            request = honest('robot7')
            wrong(request, rng)
            if request.robot == 'robot9':
                continue  # any name may join here
            answer = call(open_fleet, Register, '/rog/register', request)
            assert not answer.accepted and answer.reason, request
    assert call(open_fleet, Register, '/rog/register', honest('robot7')).accepted


def test_a_name_that_no_topic_can_have_is_refused_and_the_server_lives(open_fleet):
    for length in (65, 232, 255):
        answer = call(open_fleet, Register, '/rog/register', honest('x' * length))
        assert not answer.accepted and 'at most' in answer.reason
    assert call(open_fleet, Register, '/rog/register', honest('x' * 64)).accepted
    assert open_fleet.processes['server'].poll() is None


def test_strangers_that_join_are_few(open_fleet):
    """Each brings topics, and the executor of rclpy looks at all of them in each turn."""
    answers = [call(open_fleet, Register, '/rog/register', honest(f'stranger{number}'))
               for number in range(40)]
    assert [answer.accepted for answer in answers] == [True] * 32 + [False] * 8
    assert 'at most 32 robots' in answers[-1].reason
    assert call(open_fleet, Register, '/rog/register', honest('stranger3')).accepted, 'it is known'


def test_names_that_are_refused_are_not_kept(open_fleet):
    seen = []
    open_fleet.node.create_subscription(DiagnosticArray, '/diagnostics', seen.append,
                                        qos.DIAGNOSTICS)
    for number in range(200):
        request = honest(f'stranger{number}', protocol=1)
        assert not call(open_fleet, Register, '/rog/register', request).accepted
    seen.clear()
    open_fleet.until(lambda: seen, 'diagnostics')
    said = {v.key: v.value for s in seen[-1].status for v in s.values}
    assert said['messages refused of unknown robots'] == '200'
    assert not [key for key in said if 'stranger' in key]


def test_a_stranger_cannot_make_the_server_import_a_module(open_fleet):
    refused = call(open_fleet, SetSync, '/rog/set_sync', SetSync.Request(sync='antigravity:Fly'))
    assert not refused.success and 'must be loaded already' in refused.message
    assert call(open_fleet, SetSync, '/rog/set_sync', SetSync.Request(sync='bsp')).success


def test_saves_of_strangers_are_few(open_fleet):
    answers = [call(open_fleet, SaveCheckpoint, '/rog/save_checkpoint',
                    SaveCheckpoint.Request(name=f'n{k}')) for k in range(30)]
    assert answers[0].success, answers[0].message
    assert len(list((open_fleet.out / 'saved').iterdir())) <= 16


def test_large_calls_of_parameter_services_are_answered_at_once_and_with_nothing(open_fleet):
    node = '/rog/parameter_server'
    many = call(open_fleet, ListParameters, f'{node}/list_parameters',
                ListParameters.Request(prefixes=['x'] * 5000))
    assert not many.result.names
    few = call(open_fleet, ListParameters, f'{node}/list_parameters', ListParameters.Request())
    assert 'sync' in few.result.names


def test_the_clock_of_a_node_cannot_be_changed(open_fleet):
    use = Parameter('use_sim_time', value=True).to_parameter_msg()
    open_fleet.start('robot1')
    open_fleet.until_trained('robot1')
    for node in ('/rog/parameter_server', '/robot1/worker'):
        answer, = call(open_fleet, SetParameters, f'{node}/set_parameters',
                       SetParameters.Request(parameters=[use])).results
        assert not answer.successful and 'cannot change while the node runs' in answer.reason
    open_fleet.until_trained('robot1')


@pytest.fixture
def keyed(tmp_path):
    key = new_key()
    write_key(tmp_path / 'fleet.key', key)
    write_key(tmp_path / 'robot1.key', key.of('robot1'))
    with Fleet(tmp_path, robots=1) as fleet:
        fleet.key = key
        yield fleet


SOON = {'heartbeat.limit': 0.6, 'heartbeat.period': 0.2}  # it would give up after 1.8 s


def with_key(fleet, name):
    return {'security.key': str(fleet.folder / f'{name}.key')}


def test_recorded_statuses_of_a_former_server_keep_no_robot_away(keyed):
    recorded = []
    keyed.node.create_subscription(FleetStatus, '/rog/fleet_status', recorded.append, qos.STATUS)
    keyed.start('server', **with_key(keyed, 'fleet'))
    keyed.until(lambda: len(recorded) > 5, 'statuses of the first server')
    keyed.kill('server')
    recorded = list(recorded)
    keyed.start('server', resume=True, **with_key(keyed, 'fleet'))
    keyed.until(lambda: keyed.status.incarnation != recorded[0].incarnation, 'the second server')
    publisher = keyed.node.create_publisher(FleetStatus, '/rog/fleet_status', qos.STATUS)
    over = threading.Event()

    def repeat():  # so often that the server's own statuses are hardly ever the last
        while not over.wait(0.001):
            publisher.publish(recorded[-1])
    stranger = threading.Thread(target=repeat)
    stranger.start()
    try:
        keyed.start('robot1', **with_key(keyed, 'robot1'), **SOON)
        keyed.until(lambda: keyed.iteration('robot1') > 20 or keyed.processes['robot1'].poll()
                    is not None, 'robot1 trains while somebody repeats the first server')
    finally:
        over.set()
        stranger.join()
    assert keyed.processes['robot1'].poll() is None, keyed.log('robot1')


def test_a_second_register_service_sends_no_robot_away(keyed):
    asked = []

    def answer(request, response):
        asked.append(request)
        response.accepted, response.reason, response.tag = False, 'go away', [1] * 16
        return response
    keyed.node.create_service(Register, '/rog/register', answer)
    keyed.start('robot1', **with_key(keyed, 'robot1'), **SOON)
    keyed.until(lambda: len(asked) > 3 or keyed.processes['robot1'].poll() is not None,
                'robot1 asks the stranger again and again')
    keyed.start('server', **with_key(keyed, 'fleet'))
    keyed.until(lambda: keyed.iteration('robot1') > 5
                or keyed.processes['robot1'].poll() is not None, 'robot1 joins')
    assert keyed.processes['robot1'].poll() is None, keyed.log('robot1')
    assert 'not proved' in keyed.log('robot1')


def test_a_registration_is_taken_once_by_a_server_process(keyed):
    """Said again after its robot is gone, it is of a process that another one has replaced."""
    keyed.start('server', **with_key(keyed, 'fleet'), **SOON)
    keyed.until(lambda: keyed.status, 'the server')
    ask = derived(keyed.key.of('robot1').secret, 'ask')
    heard = sealed(ask, honest('robot1', server=keyed.status.incarnation))
    assert call(keyed, Register, '/rog/register', heard).accepted
    keyed.until(lambda: keyed.state('robot1') == 'away', 'it is gone')
    later = sealed(ask, honest('robot1', server=keyed.status.incarnation, incarnation=8))
    assert call(keyed, Register, '/rog/register', later).accepted
    keyed.until(lambda: keyed.state('robot1') == 'away', 'it is gone, too')
    answer = call(keyed, Register, '/rog/register', heard)
    assert not answer.accepted and 'was replaced by another' in answer.reason


def test_a_fleet_with_a_key_offers_no_parameter_services(keyed):
    keyed.start('server', **with_key(keyed, 'fleet'))
    keyed.start('robot1', **with_key(keyed, 'robot1'))
    keyed.until_trained('robot1')

    def closed():
        offered = {name for name, _ in keyed.node.get_service_names_and_types()}
        return {'/rog/register', '/rog/stop'} <= offered and not [
            name for name in offered if 'parameters' in name and 'observer' not in name]

    # Those that were killed before are on the graph until DDS forgets them.
    keyed.until(closed, 'control services are offered, and no parameter services')
