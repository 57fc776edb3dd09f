"""A fleet that leaves this machine has a key, or its user has said that it needs none."""

import os

import pytest
import rclpy
from fleet_env.errors import SettingError
from fleet_ros import exposure
from fleet_ros.exposure import leaves_machine, look_before, require_key
from fleet_ros.process import run

URI = ('<CycloneDDS><Domain><General><Interfaces><NetworkInterface {}/></Interfaces></General>'
       '</Domain></CycloneDDS>')
HERE = [{'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}, {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'off'},
        {'ROS_LOCALHOST_ONLY': '1', 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET'},
        {'CYCLONEDDS_URI': URI.format('name="lo"')},
        {'CYCLONEDDS_URI': URI.format('address="127.0.0.1" multicast="false"')}]
AWAY = [{'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET'},
        {'CYCLONEDDS_URI': URI.format('name="wlan0"')}, {'CYCLONEDDS_URI': 'file:///etc/dds.xml'},
        {'CYCLONEDDS_URI': URI.format('name="lo"/><NetworkInterface name="eth0"')}]


@pytest.mark.parametrize('environment', HERE)
def test_what_stays_on_this_machine_needs_no_key(environment):
    assert not leaves_machine(environment)
    require_key('', False, environment)


@pytest.mark.parametrize('embedded', [True, False])
def test_without_any_variable_it_is_as_far_as_this_rclpy_reaches(embedded, monkeypatch):
    monkeypatch.setattr(exposure, 'find_spec', lambda name: embedded or None)
    assert leaves_machine({}) is not embedded


@pytest.mark.parametrize('environment', AWAY)
def test_what_leaves_it_needs_one_or_the_users_word(environment):
    assert leaves_machine(environment)
    with pytest.raises(SettingError, match='rog key FILE.*security.open: true'):
        require_key('', False, environment)
    require_key('fleet.key', False, environment)
    require_key('', True, environment)


def test_a_node_without_a_key_is_refused_before_anything_of_it_is_on_the_network(monkeypatch):
    """What reads its parameters stays on this machine."""
    monkeypatch.delenv('CYCLONEDDS_URI', raising=False)
    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'SUBNET')
    environment, seen = dict(os.environ), []

    class Watched(exposure.Node):
        def __init__(self, *args, **options):
            seen.append(leaves_machine(os.environ))
            super().__init__(*args, **options)

    monkeypatch.setattr(exposure, 'Node', Watched)
    with pytest.raises(SettingError, match='rog key FILE'):
        look_before('worker', '/', ['--ros-args', '-r', '__ns:=/robot1'])
    for given in ('security.open:=true', 'security.key:=fleet.key'):
        look_before('worker', '/', ['--ros-args', '-p', given])
    assert seen == [False] * 3 and not rclpy.ok()
    assert dict(os.environ) == environment


def test_a_process_that_is_refused_has_not_joined(capsys):
    def before(arguments):
        assert not rclpy.ok()
        raise SettingError('not like this')

    assert run(lambda: pytest.fail('built'), lambda *_: 0, [], (), before) == 1
    assert capsys.readouterr().err == 'error: not like this\n'
