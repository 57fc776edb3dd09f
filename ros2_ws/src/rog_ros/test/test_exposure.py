"""A fleet that communicates beyond this machine needs a key, or its user's consent to have none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import rclpy
from fleet_env.errors import SettingError
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment, fastdds_file
from fleet_ros.exposure import leaves_machine, look_before, require_key
from fleet_ros.process import run
from fleet_testing import LIMIT

URI = ('<CycloneDDS><Domain><General><Interfaces><NetworkInterface {}/></Interfaces></General>'
       '</Domain></CycloneDDS>')
CYCLONE = {'RMW_IMPLEMENTATION': 'rmw_cyclonedds_cpp'}
FASTDDS = {'RMW_IMPLEMENTATION': 'rmw_fastrtps_cpp'}
HERE = [{**CYCLONE, 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'},
        {**CYCLONE, 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'off'},
        {**FASTDDS, 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'off'},
        {**CYCLONE, 'ROS_LOCALHOST_ONLY': '1', 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET'},
        {**CYCLONE, 'CYCLONEDDS_URI': URI.format('name="lo"')},
        {**CYCLONE, 'CYCLONEDDS_URI': URI.format('address="127.0.0.1" multicast="false"')},
        {**dds_environment(ReachConfig()), **CYCLONE},
        {**dds_environment(ReachConfig()), **FASTDDS}]
# Unless a profile confines it, Fast DDS listens on every interface, even if the discovery range is
# LOCALHOST (see fleet_ros/test/test_confinement.py).
AWAY = [CYCLONE, FASTDDS, {**dds_environment(ReachConfig()), 'RMW_IMPLEMENTATION': 'rmw_zenoh'},
        {**CYCLONE, 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET'},
        {**FASTDDS, 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'},
        {**FASTDDS, 'ROS_LOCALHOST_ONLY': '1'},
        {**dds_environment(ReachConfig()), **FASTDDS, 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET'},
        {**dds_environment(ReachConfig()), **FASTDDS, fastdds_file(): '/none'},
        {**CYCLONE, 'CYCLONEDDS_URI': URI.format('name="wlan0"')},
        {**CYCLONE, 'CYCLONEDDS_URI': 'file:///etc/dds.xml'},
        {**CYCLONE, 'CYCLONEDDS_URI': URI.format('name="lo"/><NetworkInterface name="eth0"')}]


@pytest.mark.parametrize('environment', HERE)
def test_what_stays_on_this_machine_needs_no_key(environment):
    assert not leaves_machine(environment)
    require_key('', False, environment)


@pytest.mark.parametrize('spoilt', [
    ('<useBuiltinTransports>false', '<useBuiltinTransports>true'), ('>lo<', '>wlan0<'),
    ('</interface>', '</interface><address>10.0.0.1</address>'), ('</profiles>', ''),
    ('</transport_descriptors>', '<transport_descriptor/></transport_descriptors>')])
def test_a_profile_of_fast_dds_that_opens_one_other_interface_leaves_this_machine(
        spoilt, tmp_path):
    environment = {**dds_environment(ReachConfig()), **FASTDDS}
    text = Path(environment[fastdds_file()]).read_text()
    assert text.count(spoilt[0]) == 1
    environment[fastdds_file()] = str(tmp_path / 'theirs.xml')
    (tmp_path / 'theirs.xml').write_text(text)
    assert not leaves_machine(environment)
    (tmp_path / 'theirs.xml').write_text(text.replace(*spoilt))
    assert leaves_machine(environment)


@pytest.mark.parametrize('environment', AWAY)
def test_what_leaves_it_needs_one_or_the_users_word(environment):
    assert leaves_machine(environment)
    with pytest.raises(SettingError, match='rog key FILE.*security.open: true'):
        require_key('', False, environment)
    require_key('fleet.key', False, environment)
    require_key('', True, environment)


def test_a_node_without_a_key_is_refused_before_anything_of_it_is_on_the_network(monkeypatch):
    monkeypatch.delenv('CYCLONEDDS_URI', raising=False)
    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'SUBNET')
    environment = dict(os.environ)
    with pytest.raises(SettingError, match='rog key FILE'):
        look_before('worker', '/', ['--ros-args', '-r', '__ns:=/robot1'])
    for given in ('security.open:=true', 'security.key:=fleet.key'):
        look_before('worker', '/', ['--ros-args', '-p', given])
    assert dict(os.environ) == environment and not rclpy.ok()


def test_the_process_that_reads_the_parameters_of_a_node_stays_on_this_machine():
    environment = {**os.environ, 'CYCLONEDDS_URI': '', 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET'}
    program = '''
import os
from fleet_ros import exposure

class Watched(exposure.Node):
    def __init__(self, *args, **options):
        print(exposure.leaves_machine(os.environ))
        super().__init__(*args, **options)

print(exposure.leaves_machine(os.environ))
exposure.Node = Watched
print(*exposure._declared('worker', '/', ['--ros-args', '-p', 'security.key:=fleet.key']))
'''
    done = subprocess.run([sys.executable, '-c', program], text=True, stdout=subprocess.PIPE,
                          timeout=LIMIT, check=True, env=environment)
    said = [line for line in done.stdout.splitlines() if '\x1b' not in line]  # not Zenoh's log
    assert said == ['True', 'False', 'fleet.key False']


def test_a_process_that_is_refused_has_not_joined(capsys):
    def before(arguments):
        assert not rclpy.ok()
        raise SettingError('not like this')

    assert run(lambda: pytest.fail('built'), lambda *_: 0, [], (), before) == 1
    assert capsys.readouterr().err == 'error: not like this\n'
