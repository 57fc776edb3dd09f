"""A fleet with a key refuses strangers, replayed messages and other keys, and trains meanwhile."""

import subprocess
import sys

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from fleet_link.key import new_key, write_key
from fleet_testing import LIMIT, environment
from fleet_under_test import HERE, Fleet
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
from rog_msgs.srv import Register, SaveCheckpoint, SetSync, Stop
from rog_ros import qos
from rog_ros.transfers import FIELDS

pytestmark = pytest.mark.long
TOPICS = {'push': (RowChunk, qos.CHUNK), 'push_end': (TransferEnd, qos.CHUNK),
          'push_receipt': (TransferReceipt, qos.CHUNK), 'push_ack': (RowAck, qos.CHUNK),
          'pull': (RowChunk, qos.CHUNK), 'pull_end': (TransferEnd, qos.CHUNK),
          'pull_receipt': (TransferReceipt, qos.CHUNK), 'pull_ack': (RowAck, qos.CHUNK),
          'training_status': (TrainingStatus, qos.STATUS)}


@pytest.fixture(scope='module')
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp('keys')
    key = new_key()
    for name, one in (('fleet', key), ('other', new_key()), ('robot1', key.of('robot1')),
                      ('robot2', key.of('robot2'))):
        write_key(folder / f'{name}.key', one)
    return folder


@pytest.fixture(scope='module')
def fleet(tmp_path_factory, keys):
    with Fleet(tmp_path_factory.mktemp('sealed'), robots=2) as fleet:
        fleet.start('server', **key(keys, 'fleet'))
        for robot in ('robot1', 'robot2'):
            fleet.start(robot, **key(keys, robot))
        fleet.until_trained('robot1', 'robot2')
        yield fleet


def key(folder, name):
    return {'security.key': str(folder / f'{name}.key')}


def _call(fleet, kind, name, request):
    client = fleet.node.create_client(kind, name)
    fleet.until(client.service_is_ready, f'{name} is there')
    future = client.call_async(request)
    fleet.until(future.done, f'{name} answers')
    return future.result()


def test_all_that_was_heard_may_be_said_again_and_in_other_names_and_changes_nothing(fleet):
    """Messages of the present session change nothing when an attacker sends them again.

    The attacker sends each message unchanged, in the other robot's name, with changes, and without
    its seal.
    """
    heard = {}
    for robot in ('robot1', 'robot2'):
        for topic, messages in fleet.overhear(robot, TOPICS).items():
            heard[robot, topic] = messages
    fleet.until(lambda: all(len(m) > 3 for m in heard.values()), 'messages of each kind')
    heard = {place: list(messages)[-50:] for place, messages in heard.items()}
    publishers = {place: fleet.node.create_publisher(TOPICS[place[1]][0], '/' + '/'.join(place),
                                                     TOPICS[place[1]][1]) for place in heard}
    bundles = {(robot, way): fleet.node.create_publisher(Bundle, f'/{robot}/{way}_bundle',
                                                         qos.CHUNK)
               for robot in ('robot1', 'robot2') for way in ('push', 'pull')}
    fleet.until(lambda: all(p.get_subscription_count() for p in (
        *publishers.values(), *bundles.values())), 'discovery')

    def say(robot, topic, message):
        """Send a message alone, and in a bundle."""
        publishers[robot, topic].publish(message)
        if (field := FIELDS.get(type(message))) is not None:
            for way in ('push', 'pull'):
                bundles[robot, way].publish(Bundle(**{field: [message]}))

    for (robot, topic), messages in heard.items():
        other = 'robot2' if robot == 'robot1' else 'robot1'
        for message in messages:
            say(robot, topic, message)  # send the message a second time
            say(other, topic, message)  # send the message in the other robot's name
            if hasattr(message, 'attempt'):
                message.attempt += 1
            elif hasattr(message, 'packet'):
                message.packet += 1
            elif message.state != 'stopped':
                message.state, message.count = 'stopped', message.count + 1000
            say(robot, topic, message)  # send the message with changed fields
            setattr(message, 'values' if topic in ('push', 'pull') else 'tag', [])
            say(robot, topic, message)  # send the message without its seal
        fleet.until_trained('robot1', 'robot2', iterations=1)
    fleet.until_trained('robot1', 'robot2', iterations=10)
    # Check that the server and robot1 have refused messages.
    for name in ('server', 'robot1'):
        assert 'it is not sealed' in fleet.log(name)
    for robot in ('robot1', 'robot2'):
        assert 'rejoined' not in fleet.log('server') and fleet.processes[robot].poll() is None
    for publisher in (*publishers.values(), *bundles.values()):
        fleet.node.destroy_publisher(publisher)


def test_a_false_fleet_status_sends_nobody_away(fleet):
    joins = fleet.log('server').count('joins')
    publisher = fleet.node.create_publisher(FleetStatus, '/rog/fleet_status', qos.STATUS)
    fleet.until(lambda: publisher.get_subscription_count() > 1, 'discovery')
    for state in ('away', 'training'):
        for process in (fleet.status.incarnation, 7):
            for _ in range(5):
                publisher.publish(FleetStatus(
                    incarnation=process, count=2 ** 40, state='stopped', tag=[1] * 64,
                    robots=[RobotStatus(robot='robot1', state=state)]))
    fleet.until_trained('robot1', 'robot2', iterations=5)
    assert fleet.log('server').count('joins') == joins
    fleet.node.destroy_publisher(publisher)


def test_diagnostics_name_whose_messages_were_refused(fleet):
    seen = []
    fleet.node.create_subscription(DiagnosticArray, '/diagnostics', seen.append, qos.DIAGNOSTICS)

    def said():
        return {v.key: v.value for m in seen for s in m.status if s.name.endswith(': fleet')
                for v in s.values}
    fleet.until(lambda: said().get('key') == 'yes', 'diagnostics of the server')
    assert int(said()['messages refused of robot1']) > 0


def test_a_robot_with_another_key_is_told_so_and_so_is_the_server(fleet, keys):
    fleet.interrupt('robot2')
    assert fleet.ended('robot2') == 0
    write_key(keys / 'wrong.key', new_key().of('robot2'))
    fleet.start('robot2', label='wrong', **key(keys, 'wrong'),
                **{'heartbeat.limit': 0.6, 'heartbeat.period': 0.2})
    fleet.until(lambda: 'must have keys that belong together' in fleet.log('wrong'), 'it is told')
    fleet.until(lambda: "in the name of 'robot2': it is not sealed with our key" in fleet.log(
        'server'), 'so is the server')
    fleet.until_trained('robot1')
    # An answer without proof may be from anybody, so the robot asks again.
    assert fleet.processes['wrong'].poll() is None and 'Traceback' not in fleet.log('wrong')
    fleet.interrupt('wrong')
    assert fleet.ended('wrong') == 0


def test_a_robot_without_a_key_is_told_what_it_needs(fleet, keys):
    fleet.start('robot2', label='none')
    assert fleet.ended('none') == 1
    assert 'the server has a key: make one for this robot' in fleet.log('none')


def test_a_robot_with_the_key_of_another_does_not_start(fleet, keys):
    fleet.start('robot2', label='other', **key(keys, 'robot1'))
    assert fleet.ended('other') == 1
    assert "this is the key of 'robot1', not of 'robot2'" in fleet.log('other')


def test_a_robot_with_a_key_does_not_join_a_server_that_has_none(tmp_path, keys):
    with Fleet(tmp_path, robots=1) as fleet:
        fleet.start('server')
        fleet.start('robot1', **key(keys, 'robot1'),
                    **{'heartbeat.limit': 0.6, 'heartbeat.period': 0.2})
        fleet.until(lambda: 'must have keys that belong together' in fleet.log('robot1'),
                    'it is told')
        assert fleet.iteration('robot1') == 0 and fleet.processes['robot1'].poll() is None


def rog(fleet, *words):
    return subprocess.run([sys.executable, '-m', 'rog_cli.main', 'control', *words], text=True,
                          capture_output=True, env=environment(fleet.domain, HERE), timeout=LIMIT)


def test_only_who_has_the_fleets_key_controls_it(fleet, keys):
    for kind, name, request in ((SetSync, 'set_sync', SetSync.Request(sync='bsp')),
                                (SaveCheckpoint, 'save_checkpoint', SaveCheckpoint.Request()),
                                (Stop, 'stop', Stop.Request())):
        answer = _call(fleet, kind, f'/rog/{name}', request)
        assert not answer.success and 'the server has a key' in answer.message
    refused = rog(fleet, 'sync', 'bsp', '--key', str(keys / 'other.key'))
    assert refused.returncode == 2 and 'is not proved by this key' in refused.stderr
    refused = rog(fleet, 'sync', 'bsp', '--key', str(keys / 'robot1.key'))
    assert refused.returncode == 2 and "needs the fleet's own" in refused.stderr
    assert fleet.status.sync == 'rsp:4'
    refused = rog(fleet, 'sync', 'bsp', '--key', str(keys / 'fleet.key'), '--namespace', '/other',
                  '--timeout', '3')
    assert refused.returncode == 2 and 'there is no parameter server' in refused.stderr
    done = rog(fleet, 'sync', 'bsp', '--key', str(keys / 'fleet.key'), '--interface', 'lo')
    assert (done.returncode, done.stdout.strip()) == (0, 'bsp'), done.stderr
    done = rog(fleet, 'save', 'before-lunch', '--key', str(keys / 'fleet.key'))
    assert done.returncode == 0 and '/saved/before-lunch/checkpoint-000001' in done.stdout
    refused = rog(fleet, 'save', '../out', '--key', str(keys / 'fleet.key'))
    assert refused.returncode == 2 and 'cannot be the name' in refused.stderr


def test_a_server_that_is_restarted_proves_itself_anew(fleet, keys):
    former = fleet.status.incarnation
    fleet.kill('server')
    fleet.start('server', resume=True, **key(keys, 'fleet'))
    fleet.until(lambda: fleet.status.incarnation != former, 'the server is back')
    fleet.until_trained('robot1')


def test_the_fleets_key_ends_the_run_in_order(fleet, keys):
    assert rog(fleet, 'stop', '--key', str(keys / 'fleet.key')).returncode == 0
    assert [fleet.ended(name) for name in ('server', 'robot1')] == [0, 0]


def test_a_registration_without_a_seal_is_refused(tmp_path, keys):
    """The server refuses a registration without a seal; its answer has none, either."""
    with Fleet(tmp_path, robots=1) as fleet:
        fleet.start('server', **key(keys, 'fleet'))
        request = Register.Request(robot='robot1', incarnation=5)
        answer = _call(fleet, Register, '/rog/register', request)
        assert not answer.accepted and 'the server has a key' in answer.reason
        assert not len(answer.sealed)


def test_a_robot_follows_a_restarted_server_at_once_and_strangers_never(tmp_path, keys):
    """A robot joins a restarted server at once, and ignores impostors.

    The heartbeat limit is an hour. A robot that waited for this limit would join too late.
    """
    patient = {'heartbeat.limit': 3600.0}
    with Fleet(tmp_path, robots=1) as fleet:
        stranger = fleet.node.create_publisher(FleetStatus, '/rog/fleet_status', qos.STATUS)

        def until_refused(name, **says):
            """Publish the false status until the node refuses it.

            Once is not enough: the node's subscription stores only one status, so a true status can
            replace the false one.
            """
            seen, refusal = fleet.log(name).count('it is not signed'), FleetStatus(
                incarnation=7, state='training', elapsed=1e6, host='mine', **says)
            fleet.until(lambda: stranger.publish(refusal)
                        or fleet.log(name).count('it is not signed') > seen,
                        f'{name} has refused the stranger')

        stranger.publish(FleetStatus(incarnation=7, state='training', elapsed=1e6, host='mine'))
        fleet.start('server', **key(keys, 'fleet'), **patient)
        fleet.start('robot1', **key(keys, 'robot1'), **patient)
        fleet.until_trained('robot1')
        for name in ('server', 'robot1'):
            until_refused(name)
        ours = next(s for s in iter(lambda: fleet.spin() or fleet.status, None)
                    if s.incarnation != 7)
        # The impostor claims to be the next server of the run, but does not have the key.
        until_refused('robot1', run=ours.run, start=ours.start + 1, count=1)
        fleet.until_trained('robot1', iterations=10)
        assert fleet.log('server').count('robot1 joins') == 1
        fleet.kill('server')
        fleet.start('server', resume=True, **key(keys, 'fleet'), **patient)
        fleet.until(lambda: fleet.log('server').count('robot1 joins') >= 2, 'it follows')
        fleet.until(lambda: fleet.status.run == ours.run and fleet.status.start == ours.start + 1,
                    'the same run')
        fleet.until_trained('robot1')
