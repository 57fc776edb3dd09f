"""Processes meet through a discovery server of Fast DDS or a router of Zenoh, without multicast."""

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import rclpy
from fleet_env.errors import FleetFileError, SettingError
from fleet_env.settings.base import checked
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment, where_traffic_goes
from fleet_testing import LIMIT, eventually, free_domain
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


def talk(speaker, listener, stack):
    """Return what is heard, and a function that says something and listens for it."""
    heard, publisher = [], speaker.create_publisher(String, 'said', 1)
    listener.create_subscription(String, 'said', heard.append, 1)
    executor = SingleThreadedExecutor(context=listener.context)
    stack.callback(executor.shutdown)
    executor.add_node(listener)

    def speak():
        publisher.publish(String())
        executor.spin_once(timeout_sec=0.05)
    return heard, speak


@pytest.mark.skipif('fastrtps' not in get_rmw_implementation_identifier() or PROGRAM is None,
                    reason='needs Fast DDS and its program fast-discovery-server')
def test_two_nodes_meet_once_a_discovery_server_runs(monkeypatch, port):
    network = reach(f'127.0.0.1:{port}', domain_id=free_domain())
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
        heard, speak = talk(*nodes, stack)

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


def test_with_zenoh_the_setting_names_the_routers_and_all_else_of_the_users_stays(monkeypatch):
    monkeypatch.setenv('RMW_IMPLEMENTATION', 'rmw_zenoh_cpp')
    monkeypatch.setenv('ZENOH_CONFIG_OVERRIDE',
                       'connect/endpoints=["tcp/10.0.0.9:7447"];queries_default_timeout=9')
    monkeypatch.delenv('RUST_LOG', raising=False)
    alone = dds_environment(ReachConfig())
    assert 'ZENOH_CONFIG_OVERRIDE' not in alone and 'admin=off' in alone['RUST_LOG']
    monkeypatch.setenv('RUST_LOG', 'debug')
    assert dds_environment(ReachConfig())['RUST_LOG'] == 'debug'
    with socket.create_server(('127.0.0.1', 0)) as router:
        port = router.getsockname()[1]
        found = dds_environment(reach(f'localhost, 127.0.0.1:{port}'))['ZENOH_CONFIG_OVERRIDE']
        assert found == ('mode="client";queries_default_timeout=9;connect/endpoints='
                         f'["tcp/127.0.0.1:7447#iface=lo", "tcp/127.0.0.1:{port}#iface=lo"]')
        monkeypatch.setenv('ZENOH_CONFIG_OVERRIDE', found)  # as a child of such a process has it
        assert dds_environment(reach(f'127.0.0.1:{port}'))['ZENOH_CONFIG_OVERRIDE'] == (
            'mode="client";queries_default_timeout=9;connect/endpoints='
            f'["tcp/127.0.0.1:{port}#iface=lo"]')
    with pytest.raises(FleetFileError, match='no router of rmw_zenoh answers.*start it first'):
        dds_environment(reach(f'127.0.0.1:{port}'))


@pytest.mark.skipif('zenoh' not in get_rmw_implementation_identifier(), reason='needs rmw_zenoh')
def test_two_nodes_meet_through_a_router_of_zenoh(monkeypatch, port):
    network = reach(f'127.0.0.1:{port}', domain_id=free_domain())
    program = next(path for prefix in os.environ['AMENT_PREFIX_PATH'].split(os.pathsep)
                   if (path := Path(prefix, 'lib', 'rmw_zenoh_cpp', 'rmw_zenohd')).exists())
    router = subprocess.Popen([program], stdin=subprocess.DEVNULL, env={
        **os.environ, 'ZENOH_CONFIG_OVERRIDE': f'listen/endpoints=["tcp/127.0.0.1:{port}"]'})
    with ExitStack() as stack:
        stack.callback(router.wait, LIMIT)
        stack.callback(router.terminate)

        def reachable():
            with suppress(FleetFileError):
                return dds_environment(network)

        eventually(reachable)
        for name, value in reachable().items():
            monkeypatch.setenv(name, value)
        context = Context()
        rclpy.init(args=[], context=context, domain_id=network.domain_id)
        stack.callback(context.try_shutdown)
        nodes = [rclpy.create_node(name, context=context) for name in ('one', 'other')]
        for node in nodes:
            stack.callback(node.destroy_node)
        heard, speak = talk(*nodes, stack)

        eventually(lambda: heard, step=speak)


@pytest.mark.parametrize(('values', 'message'), [
    ({'discovery_server': '10.0.0.2'}, 'cannot be reached over lo'),
    ({'discovery_server': 'localhost:0'}, 'a port is from 1 to 65535'),
    ({'discovery_server': 'a', 'peers': 'b', 'interface': 'wlan0'}, 'a fleet uses one of them'),
    ({'discovery_server': 'a;b', 'interface': 'wlan0'}, '10.0.0.2 or laptop.local:11811')])
def test_a_discovery_server_that_cannot_work_is_refused(values, message):
    with pytest.raises(SettingError, match=message):
        checked(ReachConfig, values)
