"""The settings decide where traffic goes, whatever the user's environment contains."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fleet_env.errors import FleetFileError, SettingError
from fleet_env.settings.base import changed, checked
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.dds_profiles import cyclone_profile, fastdds_profile, is_loopback
from fleet_ros.environment import (
    dds_environment,
    domain_of,
    fastdds_file,
    refuse_false_security,
    share_of,
    where_traffic_goes,
)
from fleet_testing import LIMIT
from rclpy.utilities import get_rmw_implementation_identifier

HERE = ReachConfig()
_LINGER = '<WriterLingerDuration>200ms<'
# Environment variables that setup.bash of Jazzy exports, and variables with which a user chooses
# own settings of DDS. A fleet must not use any of them.
WANDERING = {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET', 'ROS_STATIC_PEERS': '10.0.0.9',
             'ROS_DISCOVERY_SERVER': '10.0.0.9:11811', 'SKIP_DEFAULT_XML_FILE': '0',
             'FASTRTPS_DEFAULT_PROFILES_FILE': '/etc/theirs.xml',
             'FASTDDS_DEFAULT_PROFILES_FILE': '/etc/theirs.xml',
             'CYCLONEDDS_URI': '<CycloneDDS><Domain><General><Interfaces><NetworkInterface '
                               'autodetermine="true"/></Interfaces></General></Domain></CycloneDDS>'}
OPEN_ADDRESSES = '''
import os, rclpy
from pathlib import Path
context = rclpy.init()
node = rclpy.create_node('one')
inodes = {os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')
          if os.path.islink(f'/proc/self/fd/{fd}')}
print(*{line.split()[-1] for line in open('/proc/self/maps') if '/dev/shm/fast' in line})
for line in Path('/proc/net/udp').read_text().splitlines()[1:]:
    fields = line.split()
    if f'socket:[{fields[9]}]' in inodes:
        print('.'.join(str(byte) for byte in bytes.fromhex(fields[1][:8])[::-1]))
'''


def on(interface, **more):
    return checked(ReachConfig, {'interface': interface, **more})


@pytest.mark.parametrize('name', WANDERING)
def test_environment_variables_do_not_let_a_fleet_leave_this_machine(monkeypatch, name):
    monkeypatch.setenv(name, WANDERING[name])
    found = dds_environment(HERE)
    assert found[name] != WANDERING[name]
    # only the profiles decide where traffic goes
    assert found['ROS_AUTOMATIC_DISCOVERY_RANGE'] == 'SYSTEM_DEFAULT'
    assert '"lo"' in found['CYCLONEDDS_URI'] and _LINGER in found['CYCLONEDDS_URI']
    # the announcements are frequent, so that a forgotten participant is soon discovered again
    assert '<SPDPInterval>5s<' in found['CYCLONEDDS_URI']
    text = Path(found[fastdds_file()]).read_text()
    assert '<interfaceWhiteList><interface>lo</interface></interfaceWhiteList>' in text
    assert '<useBuiltinTransports>false<' in text


@pytest.mark.parametrize(('middleware', 'library', 'refused'), [
    ('rmw_fastrtps_cpp', b"doesn't have the security libraries", True),
    ('rmw_fastrtps_cpp', b'security', False), ('rmw_fastrtps_cpp', None, False),
    ('rmw_cyclonedds_cpp', b"doesn't have the security libraries", False)])
def test_sros2_is_refused_with_a_fast_dds_that_was_built_without_it(
        monkeypatch, tmp_path, middleware, library, refused):
    monkeypatch.setattr(sys, 'prefix', str(tmp_path))
    monkeypatch.setenv('AMENT_PREFIX_PATH', '')
    monkeypatch.setenv('RMW_IMPLEMENTATION', middleware)
    if library is not None:
        (tmp_path / 'lib').mkdir()
        (tmp_path / 'lib' / 'librmw_fastrtps_shared_cpp.so').write_bytes(b'ELF' + library)
    dds_environment(HERE)
    monkeypatch.setenv('ROS_SECURITY_ENABLE', 'true')
    if not refused:
        dds_environment(HERE)
        return
    with pytest.raises(FleetFileError, match='built without security.*security.key'):
        dds_environment(HERE)
    with pytest.raises(FleetFileError, match='built without security'):
        refuse_false_security()


@pytest.mark.parametrize(('domain', 'highest'), [(0, 119), (231, 119), (232, 62)])
def test_no_participant_of_the_highest_domain_has_a_port_above_65535(domain, highest, monkeypatch):
    monkeypatch.setenv('ROS_DOMAIN_ID', str(domain))
    found = dds_environment(ReachConfig())
    assert f'<MaxAutoParticipantIndex>{highest}<' in found['CYCLONEDDS_URI']
    assert f'<maxInitialPeersRange>{highest + 1}<' in Path(found[fastdds_file()]).read_text()
    assert 7411 + 250 * domain + 2 * highest <= 65535


@pytest.mark.parametrize(('peers', 'highest'), [('', 119), ('10.0.0.2', 32)])
def test_with_cyclone_a_process_takes_the_port_of_one_that_has_ended(peers, highest):
    profile = cyclone_profile(on('wlan0', peers=peers))
    assert '<ParticipantIndex>auto<' in profile
    assert f'<MaxAutoParticipantIndex>{highest}<' in profile


def test_environment_variables_do_not_confine_a_fleet_to_this_machine(monkeypatch):
    monkeypatch.setenv('ROS_LOCALHOST_ONLY', '1')
    monkeypatch.setattr(socket, 'if_nameindex', lambda: [(1, 'lo'), (2, 'wlan0')])
    monkeypatch.setattr(socket, 'getaddrinfo', lambda name, *_: [(2, 2, 17, '', (
        {'laptop.local': '10.0.0.3'}.get(name, name), 0))])
    found = dds_environment(on('wlan0', peers='10.0.0.2, laptop.local'))
    assert found['ROS_LOCALHOST_ONLY'] == ''
    for part in ('"wlan0"', '"10.0.0.2"', '"laptop.local"', '<MaxMessageSize>1400B',
                 '<SPDPInterval>5s', '>200ms</HeartbeatInterval>', _LINGER):
        assert part in found['CYCLONEDDS_URI']
    text = Path(found[fastdds_file()]).read_text()
    for part in ('<interface>wlan0<', '>10.0.0.2<', '>10.0.0.3<', '>239.255.0.1<',
                 '<maxMessageSize>1400<'):
        assert part in text


def test_a_peer_that_cannot_be_resolved_is_named(monkeypatch):
    """The error message contains the name of the peer that cannot be resolved.

    Without this error, Fast DDS would drop the whole profile. Without a profile, Fast DDS uses
    every interface.
    """
    monkeypatch.setattr(socket, 'if_nameindex', lambda: [(1, 'lo'), (2, 'wlan0')])
    with pytest.raises(FleetFileError, match="'nobody.invalid', which this machine cannot"):
        dds_environment(on('wlan0', peers='nobody.invalid'))


def test_profiles_are_kept_in_the_folder_of_ros(monkeypatch, tmp_path):
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    path = Path(dds_environment(HERE)[fastdds_file()])
    assert path.parent == tmp_path / 'fleet'
    path.write_text('spoilt')
    dds_environment(HERE)
    assert 'spoilt' not in path.read_text()
    (tmp_path / 'file').touch()
    monkeypatch.setenv('ROS_HOME', str(tmp_path / 'file'))
    with pytest.raises(FleetFileError, match='must be writable.*set ROS_HOME'):
        dds_environment(HERE)


@pytest.mark.skipif(get_rmw_implementation_identifier() != 'rmw_fastrtps_cpp',
                    reason='another middleware')
def test_fast_dds_accepts_its_profile():
    """Fast DDS prints no error and uses only the interface of the profile.

    If Fast DDS refused the profile, it would print an error and use all interfaces.
    """
    done = subprocess.run([sys.executable, '-c', OPEN_ADDRESSES], text=True, capture_output=True,
                          timeout=LIMIT, check=True, env={**os.environ, **dds_environment(HERE)})
    assert 'rror' not in done.stderr and 'shm/fast' not in done.stdout
    assert set(done.stdout.split()) == {'127.0.0.1'}


def test_the_domain_is_that_of_the_settings_else_of_the_environment(monkeypatch):
    monkeypatch.setenv('ROS_DOMAIN_ID', '17')
    assert domain_of(HERE) == 17 and domain_of(on('lo', domain_id=4)) == 4
    monkeypatch.delenv('ROS_DOMAIN_ID')
    assert domain_of(HERE) == 0


def test_a_fleet_that_leaves_this_machine_says_so():
    assert is_loopback(HERE) and 'stays on this machine' in where_traffic_goes(HERE)
    text = where_traffic_goes(on('wlan0', peers='10.0.0.2', namespace='/blue'))
    assert not is_loopback(on('wlan0'))
    for part in ('LEAVES this machine on wlan0', '10.0.0.2', '/blue'):
        assert part in text


def test_an_interface_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(FleetFileError, match="'wlan77'.*it has lo"):
        dds_environment(on('wlan77'))


@pytest.mark.parametrize(('changes', 'says'), [
    ({'peers': '10.0.0.2'}, 'over lo'), ({'namespace': 'blue'}, '/blue'),
    ({'interface': 'wlan0', 'peers': 'a b'}, '10.0.0.2'), ({'domain_id': 233}, '232')])
def test_invalid_network_settings_are_refused(changes, says):
    with pytest.raises(SettingError, match=says):
        changed(HERE, **changes)


def test_a_name_cannot_break_the_profile():
    assert '<evil' not in cyclone_profile(on('"/><evil a="'))
    assert '<evil' not in fastdds_profile(on('</interface><evil>'))


@pytest.mark.parametrize('text', ['233', 'seven', '-1', '٣'])
def test_an_invalid_domain_is_refused(text, monkeypatch):
    monkeypatch.setenv('ROS_DOMAIN_ID', text)
    with pytest.raises(FleetFileError, match=f"from 0 to 232, got '{text}'"):
        dds_environment(HERE)
    assert dds_environment(on('lo', domain_id=3))['ROS_DOMAIN_ID'] == '3'


def test_the_messages_of_this_environment_are_found_though_nothing_is_sourced(monkeypatch):
    if (Path(sys.prefix) / 'share/fleet_msgs').exists():    # else ROS 2 is sourced
        monkeypatch.delenv('AMENT_PREFIX_PATH', raising=False)
    assert list((share_of('fleet_msgs') / 'msg').glob('*.msg'))
    with pytest.raises(FleetFileError, match='source the setup.bash of its workspace'):
        share_of('no_such_package')
