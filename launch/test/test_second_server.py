"""Two parameter servers and two fleets in one DDS domain."""

import pytest
from fleet_testing import environment
from fleet_under_test import HERE, Fleet
from rclpy.parameter import Parameter
from rog_cli.launching.processes import FleetProcesses
from rog_msgs.msg import FleetStatus
from rog_ps.node import ParameterServerNode
from rog_ros import qos
from spun_nodes import SpunNodes


@pytest.mark.long
def test_a_second_server_finds_the_first_and_does_not_start(tmp_path):
    with Fleet(tmp_path, robots=1) as fleet:
        fleet.start('server')
        fleet.until(lambda: fleet.status is not None, 'the server is there')
        first = fleet.status.host
        fleet.start('server', label='second', out=str(tmp_path / 'second'))
        assert fleet.ended('second') == 1
        assert 'there is a parameter server at /rog already' in fleet.log('second')
        assert first in fleet.log('second')
        assert fleet.processes['server'].poll() is None


@pytest.mark.long
def test_a_launcher_that_finds_another_server_starts_nothing(tmp_path, monkeypatch):
    with Fleet(tmp_path, robots=1) as fleet:
        fleet.start('server')
        fleet.until(lambda: fleet.status is not None, 'the server is there')
        monkeypatch.setattr('os.environ', environment(fleet.domain, HERE))
        monkeypatch.setattr(FleetProcesses, 'reach', lambda self, name: {})
        with FleetProcesses(fleet.fleet, tmp_path / 'second', ['server', 'robot1']) as second:
            second.prepare()
            second.start_all()
            assert second.failures() == {'server': 1} and not second.running()
            assert 'there is a parameter server at /rog already' in second.said('server')
            assert list(second.processes) == ['server']
        assert not (tmp_path / 'second/run.jsonl').exists()


@pytest.mark.long
def test_a_server_of_another_namespace_does_not_meet_it(tmp_path):
    with Fleet(tmp_path, robots=1) as fleet:
        fleet.start('server')
        fleet.until(lambda: fleet.status is not None, 'the server is there')
        fleet.start('server', label='blue', namespace='/blue', out=str(tmp_path / 'blue'))
        fleet.start('robot1', namespace='/blue', server_namespace='/blue/rog')
        fleet.until(lambda: 'robot1 joins' in fleet.log('blue'), 'robot1 joins its own fleet')
        assert not fleet.status.robots and 'second' not in fleet.log('server')


def test_a_server_that_gives_way_does_not_say_that_the_run_has_ended():
    with SpunNodes() as nodes:
        server = nodes.add(ParameterServerNode(
            context=nodes.context, parameter_overrides=[
                Parameter('task', value='exact_task:Exact')]))
        heard = []
        listener = nodes.node('listener')
        listener.create_subscription(FleetStatus, '/rog/fleet_status', heard.append, qos.STATUS)
        other = listener.create_publisher(FleetStatus, '/rog/fleet_status', qos.STATUS)
        nodes.until(lambda: heard and server.count_subscribers('/rog/fleet_status') == 2
                    and other.get_subscription_count() == 2)
        other.publish(FleetStatus(incarnation=1, elapsed=5.0, state='training', host='other'))
        nodes.until(lambda: server.done)
        assert 'other' in server.error
        server.finish()
        server.say_last()
        for _ in range(20):   # enough turns for the server's messages to arrive
            nodes.spin(0.01)
        assert {status.state for status in heard} == {'training'}
