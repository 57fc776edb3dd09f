"""A fleet trains despite invalid messages, impostors and robots that do not belong to it."""

import pytest
from fleet_under_test import Fleet
from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.parameter import Parameter
from rog_core.protocol.messages import PROTOCOL
from rog_msgs.msg import RowAck, RowChunk, TrainingStatus, TransferEnd, TransferReceipt
from rog_msgs.srv import Register, SetSync
from rog_ros import qos

SERVER = '/rog/parameter_server'
pytestmark = pytest.mark.long


@pytest.fixture(scope='module')
def fleet(tmp_path_factory):
    with Fleet(tmp_path_factory.mktemp('foreign'), robots=2) as fleet:
        fleet.start_all()
        fleet.until_trained('robot1', 'robot2')
        yield fleet


def listened(fleet):
    """Return the session of robot1, and the list of chunks that robot1 pushes.

    The session is read from the chunks, as anybody in the network can do if the fleet has
    no key.
    """
    heard = fleet.overhear('robot1', {'push': (RowChunk, qos.CHUNK)})['push']
    fleet.until(lambda: heard, 'a chunk of robot1')
    return heard[-1].incarnation, heard


def test_the_statuses_do_not_say_the_session(fleet):
    session, _ = listened(fleet)
    worker, server = fleet.robots['robot1'].incarnation, fleet.status.incarnation
    assert session not in (worker ^ server, worker, server)
    assert fleet.robots['robot1'].session == 0


def test_nobody_can_say_in_the_name_of_a_robot_that_it_stops(fleet):
    status = fleet.robots['robot1']
    publisher = fleet.node.create_publisher(TrainingStatus, '/robot1/training_status', qos.STATUS)
    fleet.until(publisher.get_subscription_count, 'discovery')
    for session in (0, status.incarnation, status.incarnation ^ fleet.status.incarnation):
        publisher.publish(TrainingStatus(robot='robot1', incarnation=status.incarnation,
                                         state='stopped', session=session))
        fleet.until_trained('robot1', 'robot2', iterations=2)
        assert fleet.state('robot1') != 'stopped'
    fleet.until(lambda: 'dropped a status of robot1' in fleet.log('server'), 'a warning')
    fleet.node.destroy_publisher(publisher)


def test_garbage_is_dropped_with_a_warning_and_training_goes_on(fleet):
    """Invalid messages are dropped even if they name the present session and pass most checks."""
    session_now, _ = listened(fleet)
    publishers = {kind: fleet.node.create_publisher(kind, f'/robot1/{topic}', profile)
                  for kind, topic, profile in ((RowChunk, 'push', qos.CHUNK),
                                               (RowAck, 'pull_ack', qos.CHUNK),
                                               (TransferEnd, 'push_end', qos.CHUNK),
                                               (TransferReceipt, 'pull_receipt', qos.CHUNK),
                                               (TrainingStatus, 'training_status', qos.STATUS))}
    fleet.until(lambda: all(p.get_subscription_count() for p in publishers.values()), 'discovery')

    def told():
        """Publish all; return whether the server has warned.

        The server may not have discovered the publishers yet, and most are best effort.
        """
        top = 2 ** 32 - 1
        for session in (session_now, 7):
            for kind in (0, 1, 3, 200):
                same = {'incarnation': session, 'kind': kind, 'attempt': 10 ** 6, 'iteration': 5}
                for message in (
                        RowChunk(**same, sequence=top, codec=1, segments=1, ids=[0], values=[1]),
                        RowChunk(**same, sequence=0, codec=99, segments=1, ids=[0], values=[1]),
                        RowChunk(**same, sequence=0, codec=1, segments=65535, ids=[255] * 9,
                                 values=[]),
                        RowChunk(**same, sequence=0, codec=1, segments=2, ids=[255, 255, 3, 0],
                                 values=[255] * 40),
                        RowAck(incarnation=session, packet=top, mask=2 ** 64 - 1, arrived=1.0),
                        TransferEnd(**same, chunks=top, duration=float('nan'),
                                    mta_duration=float('nan')),
                        TransferReceipt(**same, chunks=top, taken=[255] * 100)):
                    publishers[type(message)].publish(message)
        for name in ('robot1', 'ghost'):
            publishers[TrainingStatus].publish(
                TrainingStatus(robot=name, incarnation=3, state='stopped'))
        return 'dropped a message of robot1' in fleet.log('server')
    fleet.until(told, 'a warning')
    fleet.until_trained('robot1', 'robot2', iterations=15)
    assert fleet.processes['server'].poll() is None
    assert 'ghost' not in (fleet.out / 'run.jsonl').read_text()


def _call(fleet, kind, name, request):
    client = fleet.node.create_client(kind, name)
    fleet.until(client.service_is_ready, f'{name} is there')
    future = client.call_async(request)
    fleet.until(future.done, f'{name} answers')
    return future.result()


@pytest.mark.parametrize('request_, reason', [
    (Register.Request(robot='robot9'), "'robot9' is not in the fleet file; it lists robot1"),
    (Register.Request(robot='no robot'), "a robot's name is 'no robot'"),
    (Register.Request(robot='robot1', protocol=99), 'speaks protocol 99'),
    (Register.Request(robot='robot1', names=['a'], shapes=[], roles=[0]),
     'got 0 shapes and 1 roles for 1'),
    (Register.Request(robot='robot1', names=['a'], shapes=['3xq'], roles=[0]),
     'not numbers joined by x'),
    (Register.Request(robot='robot1', protocol=PROTOCOL, codec='onebit', granularity='atoms',
                      names=['a'], shapes=['3'], roles=[0]),
     "granularity is 'atoms' here but 'row' there"),
    (Register.Request(robot='robot1', protocol=PROTOCOL, codec='zip'), "codec 'zip', this server"),
])
def test_a_registration_that_does_not_fit_is_refused_with_the_reason(fleet, request_, reason):
    answer = _call(fleet, Register, '/rog/register', request_)
    assert not answer.accepted and reason in answer.reason


def test_an_unknown_method_is_refused_and_a_known_one_comes_into_force(fleet):
    answer = _call(fleet, SetSync, '/rog/set_sync', SetSync.Request(sync='rsp:none'))
    assert not answer.success and 'not a whole number' in answer.message
    assert fleet.status.sync == 'rsp:4'
    assert _call(fleet, SetSync, '/rog/set_sync', SetSync.Request(sync='bsp')).success
    fleet.until(lambda: all(r.sync == 'bsp' for r in fleet.robots.values()), 'all robots know')
    fleet.until_trained('robot1', 'robot2')


def test_the_parameter_sync_shows_the_method_in_force_and_changes_it(fleet):
    def get():
        answer = _call(fleet, GetParameters, f'{SERVER}/get_parameters',
                       GetParameters.Request(names=['sync']))
        return answer.values[0].string_value

    def set_(**values):
        answer = _call(fleet, SetParameters, f'{SERVER}/set_parameters', SetParameters.Request(
            parameters=[Parameter(name, value=value).to_parameter_msg()
                        for name, value in values.items()]))
        return answer.results[0]

    assert _call(fleet, SetSync, '/rog/set_sync', SetSync.Request(sync='asp')).success
    assert get() == 'asp'
    refused = set_(sync='rsp:none')
    assert not refused.successful and 'not a whole number' in refused.reason and get() == 'asp'
    assert not set_(codec='raw').successful
    assert set_(sync='rsp:4').successful and get() == 'rsp:4'
    fleet.until(lambda: all(r.sync == 'rsp:4' for r in fleet.robots.values()), 'all robots know')


def test_a_robot_that_trains_another_model_is_told_the_first_difference(fleet):
    fleet.interrupt('robot2')
    assert fleet.ended('robot2') == 0
    fleet.start('robot2', label='wider', task='tiny_task:Wider')
    assert fleet.ended('wider') == 1
    assert "0.weight" in fleet.log('wider') and '97x12' in fleet.log('wider').replace(', ', 'x')
    assert 'Traceback' not in fleet.log('wider')
    fleet.until_trained('robot1')


def test_a_second_robot_of_the_same_name_gives_up_and_the_first_goes_on(fleet):
    fleet.start('robot1', label='second', out='',  # a second process with the name robot1
                **{'heartbeat.limit': 0.5, 'heartbeat.period': 0.2})
    assert fleet.ended('second') == 1
    assert "a robot named 'robot1' is alive" in fleet.log('second')
    fleet.until_trained('robot1')


def test_a_task_that_fails_ends_its_robot_with_the_reason_and_the_others_go_on(fleet):
    fleet.start('robot2', label='failing', task='tiny_task:Failing')
    assert fleet.ended('failing') == 1
    assert 'the task failed: RuntimeError: the camera is unplugged' in fleet.log('failing')
    fleet.until_trained('robot1')
