"""Tests of nodes with the environment variables of a fleet.

The nodes run in network namespaces, which have the interface wlan9 besides `lo`.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest
from fleet_env.settings.fleet import ReachConfig
from fleet_testing import LIMIT
from rclpy.utilities import get_rmw_implementation_identifier

# `wlan9` stands for an interface to a network outside this machine. IPv6 is off, because with
# IPv6 the kernel itself would send packets on this interface.
SETUP = '''
sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1 || exit 77
ip link set lo up && ip link add wlan9 type veth peer name air9 || exit 77
ip address add 10.9.0.1/24 dev wlan9 && ip link set wlan9 up multicast $MULTICAST || exit 77
ip link set air9 up || exit 77
exec "$@"
'''
NODES = '''
import os, sys, time
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment
os.environ.update(dds_environment(ReachConfig.model_validate_json(sys.argv[1])))
import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from std_msgs.msg import String

def sent():
    line, = [line for line in open('/proc/net/dev') if 'wlan9:' in line]
    return int(line.split(':')[1].split()[9])

before, got = sent(), []
contexts = [Context(), Context()]
for context in contexts:
    rclpy.init(args=[], context=context)
nodes = [Node(f'n{n}', context=context) for n, context in enumerate(contexts)]
publisher = nodes[0].create_publisher(String, 'words', 10)
nodes[1].create_subscription(String, 'words', got.append, 10)
executor = SingleThreadedExecutor(context=contexts[1])
executor.add_node(nodes[1])
end = time.monotonic() + float(os.environ['LIMIT'])
while not got and time.monotonic() < end:
    publisher.publish(String(data='hello'))
    executor.spin_once(timeout_sec=0.1)
print(len(got) > 0, sent() - before)
sys.stdout.flush()
os._exit(0)
'''


TWO_NETWORKS = '''
import os, sys
from fleet_env.errors import SettingError
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment
from fleet_ros.exposure import reaching
os.environ.update(dds_environment(ReachConfig.model_validate_json(sys.argv[1])))
import rclpy
from rclpy.context import Context
rclpy.init(args=[])
with reaching(ReachConfig(domain_id=7)):
    Context().init([], domain_id=7)
try:
    with reaching(ReachConfig(interface='wlan9')):
        print('another network')
except SettingError as error:
    print(error)
sys.stdout.flush()
os._exit(0)
'''


def in_a_network(program, network, multicast='on', more=(), **environment):
    """Return what a Python program prints in a network with the interface wlan9."""
    if shutil.which('unshare') is None or shutil.which('ip') is None:
        pytest.skip('needs unshare and ip')
    done = subprocess.run(
        ['unshare', '-rn', 'sh', '-c', SETUP, 'sh', sys.executable, '-c', program,
         network.model_dump_json(), *more], text=True, capture_output=True, timeout=2 * LIMIT,
        env={**os.environ, 'LIMIT': str(LIMIT), 'MULTICAST': multicast, **environment})
    if done.returncode in (1, 77) and 'Traceback' not in done.stderr:
        pytest.skip(f'network namespaces are not allowed here: {done.stderr.strip()}')
    assert done.returncode == 0, done.stderr
    return done.stdout


def heard_and_sent(network, multicast='on', **environment):
    """Return whether two nodes discover each other, and how many packets they send on wlan9."""
    heard, packets = in_a_network(NODES, network, multicast, **environment).split()
    return heard == 'True', int(packets)


@pytest.mark.parametrize('environment', [
    {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET'},
    pytest.param({'ROS_STATIC_PEERS': '10.9.0.2'}, marks=pytest.mark.long)],
    ids=['SUBNET', 'peers'])
def test_on_this_machine_means_on_this_machine(environment):
    assert heard_and_sent(ReachConfig(), **environment) == (True, 0)


@pytest.mark.long
def test_on_an_interface_means_on_that_interface():
    heard, packets = heard_and_sent(ReachConfig(interface='wlan9'), ROS_LOCALHOST_ONLY='1',
                                    ROS_AUTOMATIC_DISCOVERY_RANGE='LOCALHOST')
    assert heard and packets > 0


@pytest.mark.long
def test_peers_meet_where_there_is_no_multicast():
    heard, _ = heard_and_sent(ReachConfig(interface='wlan9', peers='10.9.0.1'), 'off')
    assert heard


def test_a_process_that_is_on_a_network_is_refused_another_one_with_fast_dds():
    said = in_a_network(TWO_NETWORKS, ReachConfig())
    if 'fastrtps' in get_rmw_implementation_identifier():
        assert 'must be those of the fleet that this process is in, got interface wlan9' in said
    else:
        assert said.strip() == 'another network'


# Announcements of one process in 10 s that come to a port which nobody has any more.
GUESTS = '''
import os, subprocess, sys, time
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.dds_profiles import ANNOUNCED
from fleet_ros.environment import dds_environment
os.environ.update(dds_environment(ReachConfig.model_validate_json(sys.argv[1])))
import rclpy
rclpy.init(args=[])
node = rclpy.create_node('host')

def to_closed_ports():
    names, values = (line.split() for line in open('/proc/net/snmp') if line.startswith('Udp:'))
    return int(dict(zip(names, values))['NoPorts'])

for _ in range(5):
    subprocess.run([sys.executable, '-c', sys.argv[2]], check=True)
while 'guest' in node.get_node_names():
    time.sleep(0.05)
before, end = to_closed_ports(), time.monotonic() + 2 * ANNOUNCED
while time.monotonic() < end:
    time.sleep(0.05)
print(to_closed_ports() - before)
sys.stdout.flush()
os._exit(0)
'''
GUEST = '''
import os, rclpy, time
rclpy.init(args=[])
node, end = rclpy.create_node('guest'), time.monotonic() + float(os.environ['LIMIT'])
while 'host' not in node.get_node_names() and time.monotonic() < end:
    time.sleep(0.05)
rclpy.shutdown()
'''


@pytest.mark.long
def test_processes_that_have_ended_do_not_add_to_the_announcements():
    assert int(in_a_network(GUESTS, ReachConfig(interface='wlan9'), more=[GUEST])) <= 3


# A server and two robots, each in a network namespace; `wlan9` connects each robot with the server.
FLEET = '''
import json, os, subprocess, sys
NODE = sys.argv[2]

def ip(line):
    subprocess.run(['ip', *line.split()], check=True)

ip('link add wlan8 type bridge'), ip('address add 10.8.0.1/24 dev wlan8')
ip('link set wlan8 up multicast on')
places, nodes = {}, {}
for number, robot in enumerate(('robot1', 'robot2'), 2):
    place = places[robot] = subprocess.Popen(
        ['unshare', '-n', 'sh', '-c', 'echo; exec cat'], text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE)
    place.stdout.readline()
    ip(f'link add to{number} type veth peer name wlan8 netns {place.pid}')
    ip(f'link set to{number} master wlan8 up')
    for line in (f'address add 10.8.0.{number}/24 dev wlan8', 'link set wlan8 up multicast on',
                 'link set lo up'):
        subprocess.run(['nsenter', '-n', '-t', str(place.pid), 'ip', *line.split()], check=True)

def start(name, place, wanted):
    inside = ['nsenter', '-n', '-t', str(places[place].pid)] if place else []
    nodes[name] = subprocess.Popen(
        [*inside, sys.executable, '-c', NODE, sys.argv[1], name, json.dumps(wanted)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

start('server', '', ['robot1', 'robot2', 'driver1'])
start('robot1', 'robot1', ['server', 'driver1'])
start('driver1', 'robot1', ['server', 'robot1'])
start('robot2', 'robot2', ['server'])
seen = {name: json.loads(node.stdout.readline()) for name, node in nodes.items()}
for process in (*nodes.values(), *places.values()):
    process.kill()
print(json.dumps(seen))
'''
MEMBER = '''
import json, os, sys, time
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.dds_profiles import FIRST
from fleet_ros.environment import dds_environment
network, name, wanted = ReachConfig.model_validate_json(sys.argv[1]), *sys.argv[2:]
os.environ.update(dds_environment(network, robot=name != 'server'))
import rclpy
rclpy.init(args=[])
node, wanted, found = rclpy.create_node(name), {*json.loads(wanted)}, set()
end = time.monotonic() + float(os.environ['LIMIT'])
while not wanted <= found and time.monotonic() < end:
    found |= {*node.get_node_names()}
    time.sleep(0.05)
end = time.monotonic() + FIRST  # whoever announces itself has done so by then
while time.monotonic() < end:
    found |= {*node.get_node_names()}
    time.sleep(0.05)
print(json.dumps(sorted(found - {name})), flush=True)
sys.stdin.read()  # the others look for this one
'''


@pytest.mark.long
def test_robots_discover_the_server_and_their_own_machine_but_not_one_another():
    if 'fastrtps' not in get_rmw_implementation_identifier():
        pytest.skip('with Cyclone DDS all discover one another')
    seen = json.loads(in_a_network(FLEET, ReachConfig(interface='wlan8'), more=[MEMBER]))
    assert seen == {'server': ['driver1', 'robot1', 'robot2'], 'robot1': ['driver1', 'server'],
                    'driver1': ['robot1', 'server'], 'robot2': ['server']}
