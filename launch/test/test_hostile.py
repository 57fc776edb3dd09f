"""A fleet receives a flood of hostile messages and calls, with and without a key.

The variable ROG_HOSTILE sets the number of messages. The attacker reads all topics, so
the attacker knows the session.
"""

import math
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import fleet_under_test
import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray
from fleet_env.records.events import read_run
from fleet_env.records.summary import read_summary
from fleet_link.key import new_key, write_key
from fleet_link.seal import Caller
from fleet_ros.sealing import ServiceClient, octets, seal
from fleet_testing import environment
from fleet_under_test import HERE, SEED, Fleet
from puppet import Puppet, partition
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.msg import ParameterValue
from rcl_interfaces.srv import GetParameters, ListParameters, SetParameters
from rclpy.parameter import Parameter
from rclpy.serialization import deserialize_message, serialize_message
from rog_core.codecs import encode_ids, get_codec
from rog_core.errors import RogError
from rog_core.model.flat import partition_of_model
from rog_core.protocol.messages import PROTOCOL, Ack, Chunk, End, Kind, Receipt
from rog_msgs.msg import (
    Bundle,
    FleetStatus,
    RobotStatus,
    RowAck,
    RowChunk,
    TrainingStatus,
    TransferEnd,
    TransferReceipt,
)
from rog_msgs.srv import PinModel, Register, SaveCheckpoint, SetSync, Stop
from rog_ros import qos
from rog_ros.convert import to_ros
from rog_ros.signature import process_of
from rog_ros.transfers import split
from tiny_task import Tiny
from type_description_interfaces.srv import GetTypeDescription

pytestmark = pytest.mark.long
MESSAGES = int(os.environ.get('ROG_HOSTILE', 3000))
GROWTH = 64  # largest allowed growth of a process in MiB
TOPICS = {'push': (RowChunk, qos.CHUNK), 'push_end': (TransferEnd, qos.CHUNK),
          'push_receipt': (TransferReceipt, qos.CHUNK), 'push_ack': (RowAck, qos.CHUNK),
          'pull': (RowChunk, qos.CHUNK), 'pull_end': (TransferEnd, qos.CHUNK),
          'pull_receipt': (TransferReceipt, qos.CHUNK), 'pull_ack': (RowAck, qos.CHUNK),
          'push_bundle': (Bundle, qos.CHUNK), 'pull_bundle': (Bundle, qos.CHUNK),
          'training_status': (TrainingStatus, qos.STATUS)}
EXTREMES = {'uint8': 255, 'uint16': 2 ** 16 - 1, 'uint32': 2 ** 32 - 1, 'uint64': 2 ** 64 - 1,
            'double': (float('nan'), float('inf'), -1.0, 1e308)}


def honest(robot, **changes):
    """Return a valid registration of a robot with the model of `Fleet`.

    ``changes``: other values for fields of the registration.
    """
    partition = partition_of_model(Tiny(seed=SEED).model(), 'row', 'onebit')
    values = {'protocol': PROTOCOL, 'incarnation': 7, 'granularity': 'row', 'codec': 'onebit',
              'digest': partition.digest, 'number': 1,
              'names': [p.name for p in partition.parameters],
              'shapes': ['x'.join(map(str, p.shape)) for p in partition.parameters],
              'roles': [int(p.role) for p in partition.parameters]}
    return Register.Request(robot=robot, **{**values, **changes})


def _change(name, *values):
    return lambda request, rng: setattr(request, name, rng.choice(values))


def _many(request, rng):
    request.names, request.shapes = ['0.weight'] * 5000, ['12x96'] * 5000
    request.roles = [0] * 5000


def _shape(request, rng):
    request.shapes = [rng.choice(['99999999999x99999999', '-1', 'x', '9' * 4000]),
                      *request.shapes[1:]]


# Each function except the first puts wrong values into a correct registration. The first function
# changes nothing: its registration is wrong because it uses the name of a robot that is alive.
WRONG = [lambda request, rng: None, _many, _shape, _change('protocol', 0, 5, 2 ** 32 - 1),
         _change('robot', 'x' * 1000, '../etc', 'robot9', ''), _change('codec', 'raw', '\n' * 999),
         _change('granularity', 'atoms', 'x' * 1000), _change('digest', '', '0' * 64),
         _change('names', [], ['0.weight']), _change('roles', [], [9] * 4)]


class Stranger:
    """An attacker that records the messages of two robots and their server, and changes them."""

    def __init__(self, fleet, seed):
        self.fleet, self.rng, self.said = fleet, random.Random(seed), 0
        self.heard, self.out = {}, {}
        for robot in ('robot1', 'robot2'):
            for topic, messages in fleet.overhear(robot, TOPICS).items():
                self.heard[f'/{robot}/{topic}'] = messages
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
        """Send ``count`` recorded messages, most of them changed; call services in between."""
        for _ in range(count):
            place = self.rng.choice(sorted(self.heard))
            message = self.rng.choice(self.heard[place])
            kind = type(message)
            message = deserialize_message(serialize_message(message), kind)
            way = self.rng.randrange(6)
            if way == 1:     # send one robot's message on the topic of the other robot
                place = place.replace('robot1', 'x').replace('robot2', 'robot1').replace(
                    'x', 'robot2')
            elif way == 2:   # flip some bits
                message = self.flipped(message)
            elif way == 3:   # set a field to its largest or smallest value
                self.to_the_limit(message)
            elif way == 4 and kind is RowChunk:  # a very large chunk
                message.ids = [1] * 20_000
                message.values = [255, 126] * 20_000
            # give the message the number of the next transfer, or a number far ahead
            elif way == 5 and hasattr(message, 'attempt'):
                message.attempt += self.rng.choice([1, 2, 10 ** 6])
                message.iteration += self.rng.choice([0, 1, 10 ** 6])
            self.out[place].publish(message)
            self.said += 1
            if self.said % 500 == 0:
                self.call()
            if self.said % 50 == 0:
                self.fleet.spin()

    def fall_silent(self):
        """Wait until no queue contains a false message and both robots have reported again."""
        for _ in range(20 * len(self.out)):  # enough turns to empty all queues
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
        if isinstance(message, Bundle):
            message = self.rng.choice(split(message))
        fields = {name: kind for name, kind in message.get_fields_and_field_types().items()
                  if kind in EXTREMES}
        name = self.rng.choice(sorted(fields))
        value = EXTREMES[fields[name]]
        setattr(message, name, self.rng.choice(value) if isinstance(value, tuple) else value)

    def call(self):
        """Call each service once, and wait for the answers."""
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
    """Return the memory that a process uses, in MiB."""
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
        # Send some messages before the measurement, because one-time allocations do not count.
        stranger.say(MESSAGES // 10)
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


# -- one attack per test; `honest` makes a valid registration


def call(fleet, kind, name, request):
    client = fleet.node.create_client(kind, name)
    fleet.until(client.service_is_ready, f'{name} is there')
    futures, until = [], [0.0]

    def answered():
        if time.monotonic() > until[0]:  # call again, because Fast DDS may drop the first answer
            until[0] = time.monotonic() + 10
            futures.append(client.call_async(request))
        return any(future.done() for future in futures)
    fleet.until(answered, f'{name} answers')
    fleet.node.destroy_client(client)
    return next(future.result() for future in futures if future.done())


@pytest.fixture
def open_fleet(tmp_path, monkeypatch):
    """A server without a key, which any robot may join."""
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
                continue  # robots with any name may join this server
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
    """The server accepts at most 32 robots, so that strangers cannot slow it down.

    Each robot adds topics, and rclpy's executor checks all topics in each turn.
    """
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
    answer, = call(open_fleet, SetParameters, '/rog/parameter_server/set_parameters',
                   SetParameters.Request(parameters=[use])).results
    assert not answer.successful and 'cannot change while the node runs' in answer.reason


@pytest.fixture
def keyed(tmp_path):
    key = new_key()
    write_key(tmp_path / 'fleet.key', key)
    write_key(tmp_path / 'robot1.key', key.of('robot1'))
    with Fleet(tmp_path, robots=1) as fleet:
        fleet.key = key
        yield fleet


# with these limits, a robot that the server refuses gives up after 1.8 s
SOON = {'heartbeat.limit': 0.6, 'heartbeat.period': 0.2}


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

    # Publish so often that the latest status that the robot receives is almost never from the
    # server.
    def repeat():
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
        response.accepted, response.reason, response.sealed = False, 'go away', [1] * 80
        return response
    keyed.node.create_service(Register, '/rog/register', answer)
    keyed.start('robot1', **with_key(keyed, 'robot1'), **SOON)
    keyed.until(lambda: len(asked) > 3 or keyed.processes['robot1'].poll() is not None,
                'robot1 asks the stranger again and again')
    keyed.start('server', **with_key(keyed, 'fleet'))
    keyed.until(lambda: keyed.iteration('robot1') > 5
                or keyed.processes['robot1'].poll() is not None, 'robot1 joins')
    assert keyed.processes['robot1'].poll() is None, keyed.log('robot1')
    assert 'must have keys that belong together' in keyed.log('robot1')


def registered(keyed, incarnation=7):
    """Register robot1 as an honest process of it; return the sealed request and the response."""
    caller = Caller(keyed.key.of('robot1').secret, 'robot1', incarnation)

    def ask():
        sealed = caller.call(REGISTER, serialize_message(honest('robot1', incarnation=incarnation)))
        request = Register.Request(sealed=octets(sealed))
        answer = call(keyed, Register, '/rog/register', request)
        return request, caller.answer(REGISTER, sealed, bytes(answer.sealed))
    assert ask()[1] is None, 'it does not know the process of the server yet'
    request, response = ask()
    return request, deserialize_message(response, Register.Response)


REGISTER = '/rog/register'


def test_a_registration_is_taken_once_by_a_server_process(keyed):
    """The server refuses a registration that is sent a second time.

    Between the first and the second time, the robot goes away. Then a later process of the robot
    registers and goes away, too.
    """
    keyed.start('server', **with_key(keyed, 'fleet'), **SOON)
    keyed.until(lambda: keyed.status, 'the server')
    heard, answer = registered(keyed)
    assert answer.accepted
    keyed.until(lambda: keyed.state('robot1') == 'away', 'it is gone')
    assert registered(keyed, 8)[1].accepted
    keyed.until(lambda: keyed.state('robot1') == 'away', 'it is gone, too')
    answer = call(keyed, Register, '/rog/register', heard)
    assert not answer.accepted and not len(answer.sealed)
    assert 'the call is repeated' in keyed.log('server')


def test_a_robot_that_has_not_heard_yet_that_it_was_accepted_is_not_reported(keyed, monkeypatch):
    """The server does not count or log statuses that a robot sends before it knows its session.

    These statuses have no tag of the session. Once the robot knows the session, the server
    refuses a status without the tag, and counts it.
    """
    keyed.diagnostics = {}

    def on_diagnostics(message):
        keyed.diagnostics.update({v.key: v.value for s in message.status for v in s.values})
    keyed.node.create_subscription(DiagnosticArray, '/diagnostics', on_diagnostics, qos.DIAGNOSTICS)
    keyed.start('server', **with_key(keyed, 'fleet'))
    answers = []
    with monkeypatch.context() as patch:
        patch.setattr(Puppet, '_on_answer', lambda puppet, future: answers.append(future))
        puppet = Puppet(keyed, 'robot1', keyed.key.of('robot1'))
        puppet.until(lambda: answers, 'it is accepted')
        for _ in range(3):
            puppet.beat()
    puppet._on_answer(answers[0])
    puppet.trained()
    assert refused(puppet) == 0 and 'dropped a status' not in keyed.log('server')
    session, puppet.session = puppet.session, None
    puppet.beat()
    puppet.session = session
    puppet.until(lambda: refused(puppet) == 1, 'the twin: it has heard')


def test_a_fleet_with_a_key_offers_no_parameter_services(keyed):
    keyed.start('server', **with_key(keyed, 'fleet'))
    keyed.start('robot1', **with_key(keyed, 'robot1'))
    keyed.until_trained('robot1')

    def closed():
        offered = {name for name, _ in keyed.node.get_service_names_and_types()}
        return {'/rog/register', '/rog/stop'} <= offered and not [
            name for name in offered if 'parameters' in name and 'observer' not in name]

    # A killed process of an earlier test in this DDS domain may stay in the ROS graph for a while.
    keyed.until(closed, 'control services are offered, and no parameter services')


# -- a robot that lies: it has a valid key, or its fleet has no key; see `puppet`

# For each lie: the type of the message, whether the server must refuse and count the lie,
# and a function that returns the false messages to send before the true one. The server
# does not count a false message that belongs to no transfer under way. Nor does it count a
# false message that it accepts instead of the true one: this harms only the liar.
LIES = {
    'other rows under its number': (Chunk, False, lambda p, c: [rows_swapped(c)]),
    'its rows under the next number, too': (Chunk, False, lambda p, c: [replace(c, sequence=1)]
                                            if c.sequence == 0 and p.chunks > 1 else []),
    'no rows': (Chunk, True, lambda p, c: [replace(c, segments=0, ids=c.ids[:0],
                                                   values=c.values[:0])]),
    'no rows but a count': (Chunk, True, lambda p, c: [replace(c, ids=c.ids[:0],
                                                               values=c.values[:0])]),
    'rows and no values': (Chunk, True, lambda p, c: [replace(c, values=c.values[:0])]),
    'a row twice in a chunk': (Chunk, True, lambda p, c: [replace(
        c, segments=c.segments + 1, ids=np.append(c.ids, np.uint8(0)),
        values=np.append(c.values, c.values[:8]))]),
    'another codec': (Chunk, True, lambda p, c: [replace(c, codec=number)
                                                 for number in (0, 3, 4, 77, 255)]),
    'a number beyond the model': (Chunk, True, lambda p, c: [
        replace(c, sequence=number) for number in (partition().segments, 2**32 - 1)]),
    'the iteration after it': (Chunk, True, lambda p, c: [replace(c, transfer=replace(
        c.transfer, iteration=c.transfer.iteration + 1))]),
    'the iteration before it': (Chunk, True, lambda p, c: [replace(c, transfer=replace(
        c.transfer, iteration=c.transfer.iteration - 1))]),
    'the push after it': (Chunk, True, lambda p, c: [replace(c, transfer=p.following())]),
    'another session': (Chunk, False, lambda p, c: [replace(c, transfer=replace(
        c.transfer, incarnation=1))]),
    'a direction that is not its own': (Chunk, True, lambda p, c: [replace(c, transfer=replace(
        c.transfer, kind=kind)) for kind in (Kind.PULL, Kind.SNAPSHOT, Kind.FINAL)]),
    'a full gradient that nobody has asked for': (Chunk, False, lambda p, c: [
        End(replace(c.transfer, kind=Kind.ANCHOR), 0)]),
    'an end of a future iteration': (Chunk, True, lambda p, c: [
        End(p.following(iteration=p.machine.iteration + k, ahead=0), 0) for k in (1, 10**6)]),
    'an end of a future push': (Chunk, True, lambda p, c: [
        End(p.following(ahead=k), 0) for k in (1, 2, 10**6)]),
    'an end of more chunks than rows': (Chunk, True, lambda p, c: [End(c.transfer, 2**32 - 1)]),
    'an end of a time that is none': (Chunk, True, lambda p, c: [
        End(c.transfer, 1, 1.0, seconds) for seconds in (math.nan, math.inf, -1.0)]),
    'a receipt of a pull that was never sent': (Chunk, False, lambda p, c: [
        Receipt(p.following(Kind.PULL, ahead=k), 3, b'\x07') for k in (1, 1000)]),
    'a receipt of more than was sent': (Receipt, True, lambda p, r: [
        replace(r, chunks=2**20, taken=b'\xff' * 2**17)]),
    'a receipt that does not fit its count': (Receipt, True, lambda p, r: [
        replace(r, taken=taken) for taken in (r.taken + b'\0', r.taken + bytes(10**6))]),
    'acknowledgements beyond the window': (Receipt, True, lambda p, r: [
        Ack(number, mask, at, r.transfer.incarnation) for number, mask, at in (
            (10**6, 0, 1.0), (2**31, 2**64 - 1, 1.0), (0, 2**64 - 1, math.nan))]),
}


def rows_swapped(chunk):
    """Return the chunk with its rows replaced by equally many rows from the end of the model."""
    ids = np.arange(partition().segments)[-chunk.segments:]
    sizes = get_codec('onebit').sizes(partition().lengths[ids])
    return replace(chunk, ids=encode_ids(ids), values=np.zeros(int(sizes.sum()), np.uint8))


@pytest.fixture(scope='module', params=[False, True], ids=['without a key', 'with a key'])
def liar(tmp_path_factory, request):
    """Yield robot1 as a `Puppet`, in a fleet whose server and robot2 are processes.

    A `Puppet` is a robot that runs in this test process and can send false messages.
    """
    folder, key = tmp_path_factory.mktemp('liar'), new_key() if request.param else None
    keys = {name: {} for name in ('server', 'robot2')}
    if key is not None:
        write_key(folder / 'server.key', key)
        write_key(folder / 'robot2.key', key.of('robot2'))
        keys = {name: {'security.key': str(folder / f'{name}.key')} for name in keys}
    with Fleet(folder, robots=3) as fleet:
        for name, settings in keys.items():
            fleet.start(name, **settings)
        fleet.key = key
        fleet.diagnostics = {}

        def on_diagnostics(message):
            fleet.diagnostics.update({v.key: v.value for s in message.status if 'fleet' in s.name
                                      for v in s.values})
        fleet.node.create_subscription(DiagnosticArray, '/diagnostics', on_diagnostics,
                                       qos.DIAGNOSTICS)
        puppet = Puppet(fleet, 'robot1', key and key.of('robot1'))
        puppet.trained(2)
        puppet.until(lambda: fleet.iteration('robot2') > 2, 'robot2 trains')
        yield puppet


def refused(puppet):
    return int(puppet.fleet.diagnostics.get('messages refused of robot1', 0))


def all_train(puppet, iterations=3):
    """Check that robot1 (the `Puppet`) and robot2 train on, and that no process ended or failed.

    A process has failed if its log contains a traceback.
    """
    fleet = puppet.fleet
    mine, other = puppet.machine.iteration, fleet.iteration('robot2')
    puppet.until(lambda: puppet.machine.iteration >= mine + iterations
                 and fleet.iteration('robot2') >= other + iterations, 'both train')
    assert all(process.poll() is None for process in fleet.processes.values())
    for name in fleet.processes:
        assert 'Traceback' not in fleet.log(name)


def test_what_a_robot_says_again_and_again_does_not_fill_the_record(liar):
    """A robot that sends the same four statuses again and again adds few lines to the run record.

    Run this test first, because the robot must not have sent much before.
    """
    fleet = liar.fleet
    all_train(liar)
    before = len(read_run(fleet.out))
    for number in range(1500):
        liar.beat(evaluated_at=1 + number % 2, iteration=1 + number // 2 % 2)
        fleet.spin()
        time.sleep(0.002)
    all_train(liar)
    lines = len(read_run(fleet.out)) - before
    assert lines < 4 * (liar.machine.iteration + fleet.iteration('robot2')) + 100


@pytest.mark.parametrize('name', LIES)
def test_a_robot_that_lies_beside_each_message_is_refused_and_the_twin_is_taken(liar, name):
    kind, counted, lies = LIES[name]
    all_train(liar)
    before, joins, told = refused(liar), liar.fleet.log('server').count('joins'), []

    def lie(value):
        said = lies(liar, value) if isinstance(value, kind) else []
        told.extend(said)
        return said
    liar.lie = lie
    try:
        # Do not expect a refusal of every false message: a false message that arrives after the end
        # of its transfer is dropped without a warning.
        liar.until(lambda: len(told) > 3 and (not counted or refused(liar) >= before + 3),
                   'it lies, and refusals are counted')
        all_train(liar, iterations=6)
    finally:
        liar.lie = lambda value: []
    all_train(liar)
    assert liar.fleet.log('server').count('joins') == joins, 'nobody had to register again'


NUMBERS = [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324]


def test_statuses_of_absurd_numbers_leave_server_and_records_well(liar):
    fleet = liar.fleet
    floats = [name for name, kind in TrainingStatus.get_fields_and_field_types().items()
              if kind == 'double']
    whole = {name: 2**int(kind[4:]) - 1
             for name, kind in TrainingStatus.get_fields_and_field_types().items()
             if kind.startswith('uint') and name not in ('incarnation', 'count', 'session')}
    assert len(floats) > 8 and len(whole) > 6
    for number in NUMBERS:
        for name in floats:
            liar.beat(**{name: number})
            fleet.spin()
        liar.beat(**dict.fromkeys(floats, number))
        all_train(liar, 1)
    for name, number in whole.items():
        liar.beat(**{name: number})
        all_train(liar, 1)
    liar.beat(**whole)
    for sync in ('flown', 'rsp:auto', 'rsp:4'):
        assert control(fleet, SetSync, 'set_sync', sync=sync).success
        for number in NUMBERS:
            liar.status = {'loss': number, 'accuracy': number}
            all_train(liar, 1)
    liar.status = {}
    all_train(liar)
    assert read_run(fleet.out)


def test_giant_texts_in_a_status_are_kept_by_nobody(liar):
    fleet = liar.fleet
    for field in ('host', 'version', 'sync'):
        liar.beat(**{field: '\x1b[2J' * 250_000})
        all_train(liar, 1)
    liar.beat(state='x' * 10**6)
    liar.beat(robot='y' * 10**6)
    all_train(liar)
    assert max(map(len, fleet.log('server').splitlines())) < 2000
    assert max(len(value) for value in fleet.diagnostics.values()) < 2000


def test_what_a_robot_says_on_the_topics_of_another_changes_nothing_there(liar):
    """Messages that robot1 sends on robot2's topics, with robot1's session, change nothing.

    Without a key, anybody may send in the name of robot2: see SECURITY.md.
    """
    fleet = liar.fleet
    node, joins = fleet.node, fleet.log('server').count('joins')
    status = node.create_publisher(TrainingStatus, '/robot2/training_status', qos.STATUS)
    end = node.create_publisher(TransferEnd, '/robot2/push_end', qos.CHUNK)
    fleet.until(lambda: end.get_subscription_count() and status.get_subscription_count(),
                'discovery')
    mine = liar.session and liar.session.to_server
    for number in range(50):
        for robot in ('robot1', 'robot2'):
            status.publish(seal(mine, TrainingStatus(
                robot=robot, incarnation=process_of(liar.machine.incarnation), state='stopped',
                count=2**40 + number, session=liar.machine.session)))
        end.publish(seal(mine, to_ros(End(liar.following(), 0))))
        liar.step()
        fleet.spin()
    all_train(liar)
    assert fleet.state('robot2') not in ('', 'stopped', 'away')
    assert fleet.log('server').count('joins') == joins
    for publisher in (status, end):
        node.destroy_publisher(publisher)


@pytest.mark.parametrize('incarnation', [77, 0, 2**64 - 1])
def test_robots_of_one_incarnation_do_not_disturb_each_other(liar, incarnation):
    """Two robots with equal or different incarnations do not disturb each other.

    robot1 has the incarnation 77. If robot3 has 77, too, both sessions have the same number, but
    different topics and keys.
    """
    key = liar.fleet.key
    third = Puppet(liar.fleet, 'robot3', key and key.of('robot3'), incarnation)
    goal = liar.machine.iteration + 5
    third.until(lambda: liar.step() or (third.machine.iteration > 3
                                        and liar.machine.iteration >= goal), 'both train')
    third.beat(state='stopped', session=third.machine.session)
    third.machine.leave(time.monotonic())
    liar.until(lambda: liar.fleet.state('robot3') in ('stopped', 'away'), 'robot3 has left')
    all_train(liar)


def control(fleet, kind, name, **values):
    """Call a control service as `rog control` does."""
    client = ServiceClient(fleet.node, kind, f'/rog/{name}', controller(fleet),
                           fleet.node.get_logger().warning)
    fleet.until(client.service_is_ready, f'{name} is there')
    future = client.call_async(kind.Request(**values))
    fleet.until(future.done, f'{name} answers')
    return future.result()


def controller(fleet):
    return fleet.key and Caller(fleet.key.control(), '', secrets.randbits(63))


MALFORMED = ['', ' ', ':', '::', 'rsp', 'rsp:', 'rsp::', 'rsp:0', 'rsp:-1', 'rsp:1001', 'rsp:1e3',
             'rsp:4:4', 'rsp:4+', 'rsp:4++order', 'rsp:4+none', 'rsp:4+local=0',
             'rsp:4+local=99999', 'rsp:4+local=1e9', 'rsp:4-local', 'rsp:auto:9:4',
             'rsp:auto:0:0', 'dssp:3', 'dssp:5:1',
             'flown:nan:nan', 'flown:-1:4', 'ssp:\u0661' * 9, 'ssp:99999999999999999999', 'local:0',
             'diloco:0', 'diloco:4:9', 'diloco:4+rate=nan', 'diloco:4+rate=-1', 'diloco:4+quorum=0',
             'diloco:4+grace=inf', 'trimmed:0', 'trimmed:9', 'gsgm:1', 'gsgm+early', 'gsgm+svrg=0',
             'asp+svrg', 'gc:9', 'gc:-1', 'bsp:1', 'BSP', 'b\u0455p',
             'os:system', 'builtins:eval', 'subprocess:Popen:ls',
             'rog_core.server.server:Server', 'rog_core.methods.base:Holding:-1',
             'sys:exit', '../x:y', '__main__:main',
             'rog_core.methods.rsp:Rsp', 'rsp:4' + '+order' * 40]


def test_malformed_methods_are_refused_and_the_fleet_trains_as_before(liar):
    fleet = liar.fleet
    assert control(fleet, SetSync, 'set_sync', sync='rsp:4').success
    liar.until(lambda: fleet.status.sync == 'rsp:4', 'rsp:4')
    for sync in MALFORMED:
        answer = control(fleet, SetSync, 'set_sync', sync=sync)
        assert not answer.success and answer.message, sync
        liar.step()
    all_train(liar)
    assert fleet.status.sync == 'rsp:4'
    assert control(fleet, SetSync, 'set_sync', sync=' rsp:5 ').success, 'the twin'
    assert control(fleet, SetSync, 'set_sync', sync='rsp:4').success


RAW = [b'\0', b'\0\1\0\0', b'\0\1\0\0' + b'\xff' * 3, b'\0\1\0\0' + b'\xff' * 64,
       b'\0\1\0\0' + b'\xff' * 30_000, b'\0\1\0\0' + bytes(7), b'\xff' * 8, b'\0\3' + bytes(40),
       b'\0\0\0\0' + b'\x7f' * 90, bytes(2000)]


def test_bytes_that_are_no_message_end_nobody(liar):
    """No node ends when it receives bytes that are no valid message.

    The bytes are cut off, or have wrong lengths or an unknown encoding. No library would send
    them.
    """
    fleet = liar.fleet
    places = [(f'/{robot}/{topic}', *TOPICS[topic]) for robot in ('robot1', 'robot2')
              for topic in TOPICS] + [('/rog/fleet_status', FleetStatus, qos.STATUS)]
    sent = 0
    for place, kind, profile in places:
        publisher = fleet.node.create_publisher(kind, place, profile)
        fleet.until(publisher.get_subscription_count, 'discovery')
        texts = [name for name, idl in kind.get_fields_and_field_types().items() if idl == 'string']
        whole = serialize_message(kind(**dict.fromkeys(texts, 'AAAA')))
        no_text = whole.replace(b'AAAA', b'\xff\xfe\x80\xc3')
        for data in [*RAW, *(whole[:n] for n in range(4, len(whole), 7)), whole + bytes(50),
                     no_text]:
            # DDS refuses, with a RuntimeError, data that is longer than any message of this type.
            with suppress(RuntimeError):
                publisher.publish(data)
                sent += 1
            liar.step()
            fleet.spin()
        fleet.node.destroy_publisher(publisher)
    assert sent > 10 * len(places)
    if fleet.key is not None:
        all_train(liar)
    # The server may read a truncated message as a valid message of zeros. Without a key, it
    # possibly even accepts this message.
    liar.until(lambda: fleet.iteration('robot2') > 5, 'it lives')
    assert all(process.poll() is None for process in fleet.processes.values())
    all_train(liar)


def test_the_run_of_a_liar_ends_in_order_and_its_records_can_be_read(liar):
    """After all attacks, the run ends regularly and its records can be read.

    Run this test last, because it ends the fleet that the tests share.
    """
    fleet = liar.fleet
    liar.beat(energy=math.inf, compute_time=-1e308, bytes_sent=2**64 - 1)
    fleet.interrupt('server')
    liar.until(lambda: all(p.poll() is not None for p in fleet.processes.values()), 'all end')
    assert [fleet.ended(name) for name in fleet.processes] == [0, 0]
    summary = read_summary(fleet.out)
    assert {'robot1', 'robot2'} <= summary.robots.keys() and read_run(fleet.out)
    assert summary.robots['robot2'].accuracy.after > 0


# -- more attacks, which need a fleet of their own


def test_a_type_that_is_none_in_a_call_of_a_parameter_service_ends_no_node(open_fleet):
    open_fleet.start('robot1')
    open_fleet.until_trained('robot1')
    node = '/rog/parameter_server'
    for number in (10, 77, 255):
        wrong = ParameterMessage(name='sync', value=ParameterValue(type=number))
        assert not call(open_fleet, SetParameters, f'{node}/set_parameters',
                        SetParameters.Request(parameters=[wrong])).results
    twin = Parameter('sync', value='bsp').to_parameter_msg()
    assert call(open_fleet, SetParameters, f'{node}/set_parameters',
                SetParameters.Request(parameters=[twin])).results[0].successful
    open_fleet.until_trained('robot1')


def test_a_robot_refuses_calls_that_change_parameters(open_fleet):
    """A robot's parameters are fixed while it runs; `ros2 param` waits for all services, though."""
    open_fleet.start('robot1')
    open_fleet.until_trained('robot1')
    offered = {name for name, _ in open_fleet.node.get_service_names_and_types()
               if name.startswith('/robot1/worker/')}
    assert {'/robot1/worker/get_parameters', '/robot1/worker/list_parameters',
            '/robot1/worker/describe_parameters'} <= offered
    change = Parameter('heartbeat.limit', value=9.0).to_parameter_msg()
    result, = call(open_fleet, SetParameters, '/robot1/worker/set_parameters',
                   SetParameters.Request(parameters=[change])).results
    assert not result.successful and 'read-only' in result.reason
    assert not call(open_fleet, SetParameters, '/robot1/worker/set_parameters',
                    SetParameters.Request(parameters=[change] * 2000)).results
    open_fleet.until_trained('robot1')
    names = call(open_fleet, ListParameters, '/robot1/worker/list_parameters',
                 ListParameters.Request()).result.names
    assert 'heartbeat.limit' in names
    value, = call(open_fleet, GetParameters, '/robot1/worker/get_parameters',
                  GetParameters.Request(names=['heartbeat.limit'])).values
    assert value.double_value == 2.0


def test_a_model_that_only_claims_to_be_the_same_is_refused(open_fleet):
    good = honest('robot7')
    names, shapes, roles = list(good.names), list(good.shapes), list(good.roles)
    for changes in ({'names': names[::-1], 'shapes': shapes[::-1]},
                    {'names': names[:-1], 'shapes': shapes[:-1], 'roles': roles[:-1]},
                    {'names': [*names, 'x'], 'shapes': [*shapes, '1'], 'roles': [*roles, 0]},
                    {'names': [*names, names[0]], 'shapes': [*shapes, shapes[0]],
                     'roles': [*roles, 0]},
                    {'roles': [3, *roles[1:]]},
                    {'shapes': ['x'.join(s.split('x')[::-1]) for s in shapes]},
                    {'shapes': [f'0{s}' if s else s for s in shapes[:1]] + ['97', *shapes[2:]]},
                    {'digest': good.digest.upper()}, {'digest': good.digest[:-1]},
                    {'digest': f'{good.digest} '}, {'granularity': 'Row'}, {'codec': 'ternary'}):
        answer = call(open_fleet, Register, '/rog/register', honest('robot7', **changes))
        assert not answer.accepted and answer.reason, changes
    assert call(open_fleet, Register, '/rog/register', good).accepted


def test_a_server_that_starts_prints_nothing_raw_that_another_says_of_itself(tmp_path):
    with Fleet(tmp_path, robots=1) as fleet:
        publisher = fleet.node.create_publisher(FleetStatus, '/rog/fleet_status', qos.STATUS)
        publisher.publish(FleetStatus(
            incarnation=7, count=1, state='training', elapsed=math.inf, host='\x1b[2J\x07' * 50_000,
            sync='bsp\n' * 1000, robots=[RobotStatus(robot='\x1b]0;x' * 100)] * 2000))
        fleet.start('server')
        assert fleet.ended('server') == 1
        log = fleet.log('server')
        assert 'there is a parameter server at /rog already' in log
        assert all(c.isprintable() or c == '\n' for c in log) and len(log) < 5000


def test_a_registration_that_was_heard_or_changed_is_not_answered(keyed):
    """Whoever offers `/rog/register` reads requests of the robot, and can do nothing with them."""
    heard = []

    def listen(request, response):
        heard.append(request)
        return response
    service = keyed.node.create_service(Register, '/rog/register', listen)
    keyed.start('robot1', **with_key(keyed, 'robot1'), **SOON)
    keyed.until(lambda: heard, 'robot1 asks')
    keyed.node.destroy_service(service)
    keyed.start('server', **with_key(keyed, 'fleet'))
    keyed.until(lambda: keyed.iteration('robot1') > 3, 'robot1 trains')
    assert not heard[0].robot and not heard[0].names, 'nothing can be read'
    sealed = bytes(heard[0].sealed)
    for k in range(0, len(sealed), 7):
        changed = bytearray(sealed)
        changed[k] ^= 1
        answer = call(keyed, Register, '/rog/register', Register.Request(sealed=octets(changed)))
        assert not answer.accepted and not len(answer.sealed)
    # A request for no process of the server gets an answer that names the process, for the robot.
    answer = call(keyed, Register, '/rog/register', heard[0])
    assert not answer.accepted and not answer.incarnation and len(answer.sealed)
    assert keyed.processes['robot1'].poll() is None


def test_a_stranger_cannot_say_that_a_control_call_was_carried_out(keyed):
    """`rog control` does not accept an answer from a service that an attacker offers.

    The attacker also repeats the status of the server, whose process is suspended.
    """
    recorded, asked = [], []
    keyed.node.create_subscription(FleetStatus, '/rog/fleet_status', recorded.append, qos.STATUS)
    keyed.start('server', **with_key(keyed, 'fleet'))
    keyed.until(lambda: len(recorded) > 3, 'statuses')
    keyed.processes['server'].send_signal(signal.SIGSTOP)

    def answer(request, response):
        asked.append(request)
        response.success, response.message = True, 'stopping'
        response.sealed = request.sealed
        return response
    offered = [keyed.node.create_service(kind, f'/rog/{name}', answer) for kind, name in (
        (Stop, 'stop'), (SetSync, 'set_sync'), (SaveCheckpoint, 'save_checkpoint'),
        (PinModel, 'pin_model'))]
    publisher = keyed.node.create_publisher(FleetStatus, '/rog/fleet_status', qos.STATUS)
    command = [sys.executable, '-m', 'rog_cli.main', 'control', 'stop', '--timeout', '15',
               '--key', str(keyed.folder / 'fleet.key')]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=environment(keyed.domain, HERE)) as caller:
        keyed.until(lambda: publisher.publish(recorded[-1]) or caller.poll() is not None,
                    'it gives up')
        assert asked, 'the stranger has answered'
        assert caller.returncode == 2, caller.stdout.read()
        assert 'does not prove' in caller.stderr.read()
    # Remove the attacker's services. Otherwise one of them could answer the next call, before the
    # server's service is discovered.
    for service in offered:
        keyed.node.destroy_service(service)
    keyed.processes['server'].send_signal(signal.SIGCONT)
    # Stop the server with a valid call. Repeat the call, because the server may have discovered the
    # client only after the first one. A server without robots ends at once, so its answer may not
    # arrive.
    client = ServiceClient(keyed.node, Stop, '/rog/stop', controller(keyed),
                           keyed.node.get_logger().warning)

    def stopped():
        client.call_async(Stop.Request())
        return keyed.processes['server'].poll() is not None
    keyed.until(client.service_is_ready, 'the service of the server')
    keyed.until(stopped, 'server ends')
    assert keyed.ended('server') == 0
    assert 'stopped by request' in keyed.log('server')


def test_what_was_recorded_of_a_run_is_of_no_use_after_a_restart_of_its_server(keyed):
    """A restarted server refuses all messages and calls that were recorded before its restart."""
    heard, asked = keyed.overhear('robot1', TOPICS), []

    def listen(request, response):
        asked.append(request)
        return response
    service = keyed.node.create_service(Register, '/rog/register', listen)
    keyed.start('robot1', **with_key(keyed, 'robot1'))
    keyed.until(lambda: asked, 'it asks')
    keyed.start('server', **with_key(keyed, 'fleet'))
    keyed.until(lambda: all(len(m) > 2 for m in heard.values()), 'messages')
    keyed.node.destroy_service(service)
    request, response = registered(keyed, 9)
    asked.append(request)
    caller = controller(keyed)
    sets = [caller.call('/rog/set_sync', serialize_message(SetSync.Request(sync='asp')))]
    answer = call(keyed, SetSync, '/rog/set_sync', SetSync.Request(sealed=octets(sets[0])))
    assert caller.answer('/rog/set_sync', sets[0], bytes(answer.sealed)) is None
    sets += [caller.call('/rog/set_sync', serialize_message(SetSync.Request(sync='asp')))]
    call_ = SetSync.Request(sealed=octets(sets[1]))
    answer = call(keyed, SetSync, '/rog/set_sync', call_)
    assert caller.answer('/rog/set_sync', sets[1], bytes(answer.sealed)), 'the twin'
    keyed.until(lambda: keyed.status.sync == 'asp', 'it is carried out')
    former = keyed.status.incarnation
    keyed.kill('robot1')
    keyed.kill('server')
    heard = {topic: list(messages)[-30:] for topic, messages in heard.items()}
    keyed.start('server', resume=True, label='second', **with_key(keyed, 'fleet'))
    keyed.until(lambda: keyed.status.incarnation != former, 'the second server')
    publishers = {topic: keyed.node.create_publisher(kind, f'/robot1/{topic}', profile)
                  for topic, (kind, profile) in TOPICS.items()}
    keyed.until(lambda: publishers['push'].get_subscription_count(), 'discovery')
    for request in asked:
        answer = call(keyed, Register, '/rog/register', request)
        assert not answer.accepted
        for topic, messages in heard.items():
            for message in messages:
                publishers[topic].publish(message)
                keyed.spin()
    answer = call(keyed, SetSync, '/rog/set_sync', call_)
    assert not answer.success
    assert keyed.state('robot1') in ('', 'away') and 'joins' not in keyed.log('second')
    keyed.start('robot1', **with_key(keyed, 'robot1'))
    keyed.until_trained('robot1')


def test_a_robot_rejoins_while_others_register_in_its_name_without_end(keyed):
    keyed.start('server', **with_key(keyed, 'fleet'))
    keyed.start('robot1', **with_key(keyed, 'robot1'))
    keyed.until_trained('robot1')
    client = keyed.node.create_client(Register, '/rog/register')
    keyed.until(client.service_is_ready, 'the service')
    over = threading.Event()

    def flood():
        request = honest('robot1', sealed=[1] * 80)
        while not over.wait(0.005):
            request.incarnation += 1
            client.remove_pending_request(client.call_async(request))
    robot = keyed.processes['robot1']
    robot.send_signal(signal.SIGSTOP)
    keyed.until(lambda: keyed.state('robot1') == 'away', 'it is away')
    stranger = threading.Thread(target=flood)
    stranger.start()
    try:
        robot.send_signal(signal.SIGCONT)
        keyed.until(lambda: keyed.state('robot1') not in ('', 'away'), 'it is back')
        keyed.until_trained('robot1')
    finally:
        over.set()
        stranger.join()
    assert robot.poll() is None and 'Traceback' not in keyed.log('server')


def test_processes_that_stand_still_around_a_registration_find_together_again(keyed):
    keyed.start('server', **with_key(keyed, 'fleet'))
    keyed.until(lambda: keyed.status, 'the server')
    server = keyed.processes['server']
    server.send_signal(signal.SIGSTOP)       # the robot that starts next gets no answer
    keyed.start('robot1', **with_key(keyed, 'robot1'))
    keyed.until(lambda: 'robot1' in keyed.robots, 'robot1 is there')
    robot = keyed.processes['robot1']
    robot.send_signal(signal.SIGSTOP)        # the robot still has no answer to its registration
    server.send_signal(signal.SIGCONT)
    beats = keyed.status.count
    keyed.until(lambda: keyed.status.count > beats + 15, 'longer than the limit')
    robot.send_signal(signal.SIGCONT)
    keyed.until_trained('robot1')
    robot.send_signal(signal.SIGSTOP)        # suspend the robot while it trains
    keyed.until(lambda: keyed.state('robot1') == 'away', 'it is away')
    server.send_signal(signal.SIGSTOP)
    robot.send_signal(signal.SIGCONT)        # the robot registers at a suspended server
    seen = keyed.robots['robot1'].count
    keyed.until(lambda: keyed.robots['robot1'].count > seen + 15, 'longer than the limit')
    server.send_signal(signal.SIGCONT)
    keyed.until_trained('robot1')
    assert 'Traceback' not in keyed.log('server') + keyed.log('robot1')


def test_questions_for_types_of_messages_do_not_hold_up_a_node(keyed):
    """Many calls of `get_type_description` do not hold up a node.

    A node of a fleet with a key offers no other service of rclpy.
    """
    keyed.start('server', **with_key(keyed, 'fleet'))
    keyed.start('robot1', **with_key(keyed, 'robot1'))
    keyed.until_trained('robot1')
    joins = keyed.log('server').count('joins')  # a busy machine registers with a second call
    for node in ('/rog/parameter_server', '/robot1/worker'):
        client = keyed.node.create_client(GetTypeDescription, f'{node}/get_type_description')
        keyed.until(client.service_is_ready, 'the service')
        for name, digest in (('x' * 10**5, 'y' * 10**5), ('', ''), ('std_msgs/msg/String', 'x')):
            for _ in range(100):
                request = GetTypeDescription.Request(type_name=name, type_hash=digest)
                client.remove_pending_request(client.call_async(request))
        asked = call(keyed, GetTypeDescription, f'{node}/get_type_description',
                     GetTypeDescription.Request(type_name='no/msg/Type', type_hash='RIHS01_0'))
        assert not asked.successful
    keyed.until_trained('robot1', iterations=10)
    assert keyed.log('server').count('joins') == joins
