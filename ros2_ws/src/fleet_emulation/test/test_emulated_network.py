"""Tests of the network of `rog fleet up --emulate`.

All users can test its addresses and commands; only root can test the namespaces.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from fleet_emulation import network as network_module
from fleet_emulation.network import (
    INTERFACE,
    SERVER,
    EmulatedNetwork,
    NetworkError,
    addresses,
    commands,
    ip_counters,
    ports,
    without_shaping,
)
from fleet_emulation.radio import Conditions
from fleet_env.settings.fleet_file import dump_fleet, load_fleet, with_overrides, with_robots
from fleet_testing import LIMIT, eventually
from hypothesis import given
from hypothesis import strategies as st
from rog_bringup import FLEETS
from rog_cli.main import main
from rog_ros.parameters import server_parameters, worker_parameters


def may():
    """Return whether this user may create namespaces and TAP devices here."""
    probe = 'unshare -n ip tuntap add mode tap name probe0'
    return os.geteuid() == 0 and os.path.exists('/dev/net/tun') \
        and subprocess.run(probe.split(), capture_output=True).returncode == 0


as_root = pytest.mark.skipif(not may(), reason='needs root, namespaces and TAP devices')


def fleet_of(count, **overrides):
    """Return the outdoor fleet with ``count`` robots; its links are fast unless overridden."""
    fleet = with_robots(load_fleet('outdoor', [FLEETS]), count)
    return with_overrides(fleet, {'link.rate': 100, 'link.scale': 1, **overrides})


@given(st.integers(1, 1000))
def test_everybody_has_an_address_and_a_port_of_their_own(count):
    robots = [f'robot_with_a_long_name_{index}' for index in range(count)]
    found, bridge = addresses(robots), ports(robots)
    assert set(found) == {SERVER, *robots} and set(bridge) == set(robots)
    assert len(set(found.values())) == count + 1 and len(set(bridge.values())) == count
    assert all(ip_address(a) in ip_network('10.99.0.0/16') for a in found.values())
    assert all(len(name) <= 15 for name in bridge.values())


def test_the_bridge_joins_all_ports_and_nothing_else():
    lines = commands(SERVER, ['a', 'b'])
    joined = [line.split()[2] for line in lines if ' master ' in line]
    assert joined == list(ports(['a', 'b']).values())
    assert not any(' master ' in line or 'default' in line for line in commands('a', ['a', 'b']))


def test_nodes_do_not_emulate_the_link_a_second_time():
    fleet = fleet_of(2, **{'link.rate': 3, 'link.latency': 0.1})
    bare = without_shaping(fleet)
    assert not server_parameters(bare, '')['robot1.link.emulate']
    assert not worker_parameters(bare, bare.robot('robot2'))['link.emulate']


def test_counters_of_ip_are_read_by_name():
    assert ip_counters('Ip: Forwarding FragCreates\nIp: 2 7\nUdp: NoPorts\nUdp: 1\n') == {
        'Forwarding': 2, 'FragCreates': 7}


def test_without_root_the_command_says_so_before_anything_is_written(
        monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(os, 'geteuid', lambda: 1000)
    out = tmp_path / 'out'
    for verb in (['fleet', 'up', 'outdoor', '--emulate'], ['compare', 'outdoor', '--real']):
        assert main([*verb, '--out', str(out)]) == 2
        assert 'needs root' in capsys.readouterr().err
    assert not out.exists()


def test_a_part_of_a_fleet_cannot_be_emulated(capsys):
    assert main(['fleet', 'up', 'outdoor', '--emulate', '--only', 'robot1']) == 2
    assert 'nothing else can reach' in capsys.readouterr().err


# -- real namespaces and devices ---


@contextmanager
def network_of(fleet, out, every=0.1):
    out.mkdir(exist_ok=True)
    (out / 'fleet.yaml').write_text(dump_fleet(fleet))
    with EmulatedNetwork(fleet, out, every) as network:
        yield network


def socket_in(network, name, port=5000):
    """Return a UDP socket in a namespace.

    A socket stays in the namespace in which it was created.
    """
    with network.inside(name):
        found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.bind((addresses(network.robots)[name], port))
    found.settimeout(0.2)
    return found


def arrives(network, sender, receiver, name, text=b'hello'):
    """Return whether at least one of five datagrams arrives at the socket ``receiver``.

    ``name``: ``server`` or the robot to which the socket ``sender`` sends the datagrams.
    """
    for _ in range(5):
        sender.sendto(text, (addresses(network.robots)[name], 5000))
        try:
            if receiver.recv(100) == text:
                return True
        except TimeoutError:
            continue
    return False


@as_root
def test_robots_and_server_reach_each_other_and_nobody_else(tmp_path):
    with network_of(fleet_of(2), tmp_path) as network, \
            socket_in(network, SERVER) as server, socket_in(network, 'robot1') as one, \
            socket_in(network, 'robot2') as two:
        assert arrives(network, one, server, SERVER) and arrives(network, server, two, 'robot2')
        assert arrives(network, one, two, 'robot2')
        for end in (server, one):
            with pytest.raises(OSError, match='unreachable'):
                end.sendto(b'out', ('192.0.2.1', 5000))


@as_root
def test_two_networks_side_by_side_do_not_meet(tmp_path):
    with network_of(fleet_of(1), tmp_path / 'a') as here, socket_in(here, SERVER) as server, \
            socket_in(here, 'robot1') as mine, \
            network_of(fleet_of(1), tmp_path / 'b') as there, \
            socket_in(there, 'robot1') as robot, socket_in(there, SERVER) as other:
        assert arrives(there, robot, other, SERVER)
        with pytest.raises(TimeoutError):
            server.recv(100)
        assert arrives(here, mine, server, SERVER)


@as_root
def test_a_robot_out_of_range_is_not_heard_and_then_is(tmp_path):
    with network_of(fleet_of(1), tmp_path) as network, socket_in(network, SERVER) as server, \
            socket_in(network, 'robot1') as robot:
        assert arrives(network, robot, server, SERVER, b'before')
        network.change('robot1', Conditions(linked=False))
        eventually(lambda: not arrives(network, robot, server, SERVER, b'dark'))
        network.change('robot1', Conditions())
        eventually(lambda: arrives(network, robot, server, SERVER, b'again'))
    last = json.loads((tmp_path / 'air.json').read_text())
    assert last['robots']['robot1']['uplink']['refused'] >= 5
    assert last['ip']['robot1']['FragCreates'] == 0


@as_root
def test_a_robot_sends_at_the_rate_of_its_trace(tmp_path):
    """The radio's counters show that a robot's uplink carries data at the rate of its trace."""
    with network_of(fleet_of(1, **{'link.rate': 4}), tmp_path) as network, \
            socket_in(network, SERVER), socket_in(network, 'robot1') as robot:
        network.begin()
        last = tmp_path / 'air.jsonl'

        def carried():
            lines = last.read_text().splitlines()
            return json.loads(lines[-1])['robots']['robot1'] if lines else None

        def enough():
            for _ in range(20):
                robot.sendto(bytes(1400), (addresses(network.robots)[SERVER], 5000))
            found = carried()
            return found and found['uplink']['bytes'] > 500_000
        eventually(enough)
        found = carried()
    used, offered = found['uplink']['bytes'] * 8e-6, found['capacity_mbit']
    assert used <= offered + 0.1
    assert found['uplink']['busy'] * 4 == pytest.approx(used, rel=0.05)


LAUNCHER = '''
import os, signal, subprocess, sys
from pathlib import Path
from fleet_env.settings.fleet_file import load_fleet
from fleet_emulation.network import EmulatedNetwork
out = Path(sys.argv[1])
with EmulatedNetwork(load_fleet(out / 'fleet.yaml'), out) as network:
    with network.inside('robot1'):
        child = subprocess.Popen(['sleep', '1000'])
    os.kill(child.pid, signal.SIGSTOP)
    print(child.pid, network._radio.pid, flush=True)
    if sys.argv[2] == 'crash':
        raise RuntimeError('a defect')
    sys.stdin.read()
'''


def alive(pid):
    """Return whether a process still runs; a zombie has ended."""
    try:
        return re.search(r'^State:\s+[^ZX]', Path(f'/proc/{pid}/status').read_text(), re.M)
    except OSError:
        return None


@as_root
@pytest.mark.parametrize('end', ['kill', 'crash', 'leave'])
def test_nothing_is_left_however_the_launcher_ends(tmp_path, end):
    (tmp_path / 'fleet.yaml').write_text(dump_fleet(fleet_of(1)))
    before = set(socket.if_nameindex())
    launcher = subprocess.Popen([sys.executable, '-c', LAUNCHER, str(tmp_path), end],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True)
    pids = [int(pid) for pid in launcher.stdout.readline().split()]
    space = os.stat(f'/proc/{pids[0]}/ns/net').st_ino if end == 'kill' else None
    if end == 'kill':
        os.kill(launcher.pid, signal.SIGKILL)
    launcher.stdin.close()
    launcher.wait(LIMIT)
    launcher.stdout.close()
    eventually(lambda: not any(map(alive, pids)), lambda: f'{pids} ended')
    assert set(socket.if_nameindex()) == before
    if space is not None:
        listed = subprocess.run(['lsns', '-t', 'net', '-n', '-o', 'NS'], capture_output=True,
                                text=True).stdout
        assert str(space) not in listed.split()


@as_root
def test_the_users_dds_settings_do_not_lead_out_and_come_back(tmp_path, monkeypatch):
    monkeypatch.setenv('CYCLONEDDS_URI', '<CycloneDDS/>')
    monkeypatch.setenv('ROS_LOCALHOST_ONLY', '1')
    with network_of(fleet_of(1), tmp_path):
        assert INTERFACE in os.environ['CYCLONEDDS_URI']
        assert os.environ['ROS_LOCALHOST_ONLY'] != '1'
        assert os.environ['FASTDDS_BUILTIN_TRANSPORTS'] == 'UDPv4'
    assert os.environ['CYCLONEDDS_URI'] == '<CycloneDDS/>'
    assert os.environ['ROS_LOCALHOST_ONLY'] == '1'


@as_root
def test_what_cannot_be_set_up_is_taken_down_again(tmp_path, monkeypatch):
    (tmp_path / 'fleet.yaml').write_text(dump_fleet(fleet_of(1)))
    home = os.stat('/proc/thread-self/ns/net').st_ino
    monkeypatch.setattr(network_module, 'commands', lambda name, robots: ['link set none up'])
    with pytest.raises(NetworkError, match=r'(?s)Cannot find device.*link set none up'), \
            EmulatedNetwork(fleet_of(1), tmp_path):
        pass
    assert os.stat('/proc/thread-self/ns/net').st_ino == home


@as_root
@pytest.mark.parametrize('priority', (3, 99))
def test_the_radio_takes_precedence_over_programs_with_real_time_priority(priority):
    code = ('import os\nfrom fleet_emulation.forwarder import take_precedence\n'
            f'os.sched_setscheduler(0, os.SCHED_RR, os.sched_param({priority}))\n'
            'take_precedence()\nprint(os.sched_getparam(0).sched_priority)')
    ran = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                         timeout=LIMIT)
    assert (ran.stdout.strip(), ran.stderr) == (str(min(priority + 1, 99)), '')
