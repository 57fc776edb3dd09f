"""Processes find each other through a discovery server of Fast DDS, without multicast."""

import shutil
import socket
import subprocess
import time
from contextlib import ExitStack

import pytest
import rclpy
from fleet_env.errors import FleetFileError, SettingError
from fleet_env.settings.base import checked
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment, where_traffic_goes
from fleet_testing import LIMIT, free_domain
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.utilities import get_rmw_implementation_identifier
from std_msgs.msg import String

PROGRAM = shutil.which('fast-discovery-server')
ROUNDS = 40  # of 50 ms, in which nodes without a server do not find each other


def reach(server, **more):
    return checked(ReachConfig, {'discovery_server': server, **more})


@pytest.fixture
def port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


@pytest.mark.skipif('fastrtps' not in get_rmw_implementation_identifier() or PROGRAM is None,
                    reason='needs Fast DDS and its program fast-discovery-server')
def test_two_nodes_meet_once_a_discovery_server_runs(monkeypatch, port):
    network = reach(f'127.0.0.1:{port}', domain_id=free_domain())
    heard = []
    with ExitStack() as stack:
        nodes = []
        for robot in (True, False):
            for name, value in dds_environment(network, robot).items():
                monkeypatch.setenv(name, value)
            context = Context()
            rclpy.init(args=[], context=context, domain_id=network.domain_id)
            stack.callback(context.try_shutdown)
            nodes.append(rclpy.create_node('robot' if robot else 'other', context=context))
            stack.callback(nodes[-1].destroy_node)
        publisher = nodes[0].create_publisher(String, 'said', 1)
        nodes[1].create_subscription(String, 'said', heard.append, 1)
        executor = SingleThreadedExecutor(context=context)
        stack.callback(executor.shutdown)
        executor.add_node(nodes[1])

        def speak():
            publisher.publish(String())
            executor.spin_once(timeout_sec=0.05)

        for _ in range(ROUNDS):
            speak()
        assert not heard and nodes[1].get_node_names() == ['other']
        server = subprocess.Popen([PROGRAM, '-i', '0', '-l', '127.0.0.1', '-p', str(port)],
                                  stdout=subprocess.DEVNULL)
        stack.callback(server.wait, LIMIT)
        stack.callback(server.terminate)
        end = time.monotonic() + LIMIT
        while not heard and time.monotonic() < end:
            speak()
        assert heard


def test_the_variables_name_the_servers_and_let_tools_see_all(monkeypatch):
    monkeypatch.setenv('RMW_IMPLEMENTATION', 'rmw_fastrtps_cpp')
    found = dds_environment(reach('localhost'))
    assert found['ROS_DISCOVERY_SERVER'] == '127.0.0.1:11811'
    assert found['ROS_SUPER_CLIENT'] == 'TRUE'
    assert dds_environment(reach('localhost:9'), robot=True)['ROS_SUPER_CLIENT'] == ''
    several = dds_environment(reach('127.0.0.1, localhost:7'))
    assert several['ROS_DISCOVERY_SERVER'] == '127.0.0.1:11811;127.0.0.1:7'
    assert dds_environment(ReachConfig())['ROS_DISCOVERY_SERVER'] == ''
    assert 'discovery server localhost' in where_traffic_goes(reach('localhost'))


def test_cyclone_dds_has_no_discovery_server(monkeypatch):
    monkeypatch.setenv('RMW_IMPLEMENTATION', 'rmw_cyclonedds_cpp')
    with pytest.raises(FleetFileError, match=r'list the machines in network\.peers'):
        dds_environment(reach('localhost'))


@pytest.mark.parametrize(('values', 'message'), [
    ({'discovery_server': '10.0.0.2'}, 'cannot be reached over lo'),
    ({'discovery_server': 'localhost:0'}, 'a port is from 1 to 65535'),
    ({'discovery_server': 'a', 'peers': 'b', 'interface': 'wlan0'}, 'a fleet uses one of them'),
    ({'discovery_server': 'a;b', 'interface': 'wlan0'}, '10.0.0.2 or laptop.local:11811')])
def test_a_discovery_server_that_cannot_work_is_refused(values, message):
    with pytest.raises(SettingError, match=message):
        checked(ReachConfig, values)
