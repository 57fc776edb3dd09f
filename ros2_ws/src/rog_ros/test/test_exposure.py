"""A fleet that leaves this machine has a key, or its user has said that it needs none."""

import pytest
from fleet_env.errors import SettingError
from fleet_ros import exposure
from fleet_ros.exposure import leaves_machine, require_key

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
