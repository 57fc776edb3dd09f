"""Where traffic goes is said by the settings, whatever the user's environment says."""

import socket

import pytest
from fleet_env.errors import FleetFileError, SettingError
from fleet_env.fleet import ReachConfig
from fleet_env.settings import changed, checked
from fleet_ros.environment import (
    cyclone_profile,
    dds_environment,
    domain_of,
    is_loopback,
    where_traffic_goes,
)

HERE = ReachConfig()
_LINGER = '<WriterLingerDuration>200ms<'
# What setup.bash of Jazzy exports, and what a user may have in a profile of their own.
WANDERING = {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET', 'ROS_STATIC_PEERS': '10.0.0.9',
             'CYCLONEDDS_URI': '<CycloneDDS><Domain><General><Interfaces><NetworkInterface '
                               'autodetermine="true"/></Interfaces></General></Domain></CycloneDDS>'}
OPEN_ADDRESSES = '''
import re, rclpy
from pathlib import Path
context = rclpy.init()
node = rclpy.create_node('one')
print({int(line.split()[1].split(':')[0], 16) for line in
       Path('/proc/net/udp').read_text().splitlines()[1:]})
'''


def on(interface, **more):
    return checked(ReachConfig, {'interface': interface, **more})


@pytest.mark.parametrize('name', WANDERING)
def test_what_the_environment_says_does_not_carry_a_fleet_off_this_machine(monkeypatch, name):
    monkeypatch.setenv(name, WANDERING[name])
    found = dds_environment(HERE)
    assert found['ROS_AUTOMATIC_DISCOVERY_RANGE'] == 'LOCALHOST' and name in found
    assert found['ROS_STATIC_PEERS'] == '' and '"lo"' in found['CYCLONEDDS_URI']
    assert _LINGER in found['CYCLONEDDS_URI']
    assert '<SPDPInterval>5s<' in found['CYCLONEDDS_URI']  # who was forgotten is met again soon


def test_what_the_environment_says_does_not_keep_a_fleet_on_this_machine(monkeypatch):
    monkeypatch.setenv('ROS_LOCALHOST_ONLY', '1')
    monkeypatch.setattr(socket, 'if_nameindex', lambda: [(1, 'lo'), (2, 'wlan0')])
    found = dds_environment(on('wlan0', peers='10.0.0.2, laptop.local'))
    assert found['ROS_LOCALHOST_ONLY'] == ''
    assert found['ROS_AUTOMATIC_DISCOVERY_RANGE'] == 'SUBNET'
    for part in ('"wlan0"', '"10.0.0.2"', '"laptop.local"', '<MaxMessageSize>1400B',
                 '<SPDPInterval>5s', '>200ms</HeartbeatInterval>', _LINGER):
        assert part in found['CYCLONEDDS_URI']


def test_the_domain_is_that_of_the_settings_else_of_the_environment(monkeypatch):
    monkeypatch.setenv('ROS_DOMAIN_ID', '17')
    assert domain_of(HERE) == 17 and domain_of(on('lo', domain_id=4)) == 4
    monkeypatch.delenv('ROS_DOMAIN_ID')
    assert domain_of(HERE) == 0


def test_a_fleet_that_leaves_this_machine_says_so(monkeypatch):
    assert is_loopback(HERE) and 'stays on this machine' in where_traffic_goes(HERE, {})
    text = where_traffic_goes(on('wlan0', peers='10.0.0.2', namespace='/blue'), {})
    assert not is_loopback(on('wlan0'))
    for part in ('LEAVES this machine on wlan0', '10.0.0.2', '/blue'):
        assert part in text
    other = {'AMENT_PREFIX_PATH': '/opt/ros/jazzy', 'RMW_IMPLEMENTATION': 'rmw_fastrtps_cpp'}
    assert 'only rmw_cyclonedds_cpp keeps to the interface' in where_traffic_goes(
        on('wlan0'), other)


def test_an_interface_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(FleetFileError, match="'wlan77'.*it has lo"):
        dds_environment(on('wlan77'))


@pytest.mark.parametrize(('changes', 'says'), [
    ({'peers': '10.0.0.2'}, 'over lo'), ({'namespace': 'blue'}, '/blue'),
    ({'interface': 'wlan0', 'peers': 'a b'}, '10.0.0.2'), ({'domain_id': 233}, '232')])
def test_what_cannot_be_is_refused(changes, says):
    with pytest.raises(SettingError, match=says):
        changed(HERE, **changes)


def test_a_name_cannot_break_the_profile():
    assert '<evil' not in cyclone_profile(on('"/><evil a="'))
