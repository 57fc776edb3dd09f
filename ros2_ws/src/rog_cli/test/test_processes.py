"""The processes of a fleet end, or the command says which ones have not ended."""

import re
import subprocess
import sys

import pytest
import rclpy
import yaml
from fleet_env.settings.base import changed
from fleet_env.settings.fleet_file import load_fleet
from fleet_ros.environment import dds_environment
from rclpy.context import Context
from rclpy.node import Node
from rog_bringup import FLEETS
from rog_cli.launching.fork_server import kill
from rog_cli.launching.processes import FleetProcesses
from rog_cli.main import main


class Held:
    """Behaves like a process that waits for a device and so does not end, even after SIGKILL."""

    def kill(self):
        pass

    def wait(self, timeout=None):
        assert timeout is not None, 'this would be for ever'
        raise subprocess.TimeoutExpired('held', timeout)


def test_nobody_waits_for_ever_for_a_process_that_was_killed():
    assert not kill(Held())


def test_a_process_that_was_killed_has_ended():
    process = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
    assert kill(process) and process.poll() == -9


def test_the_processes_of_child_fleets_are_started_in_their_own_domains(tmp_path):
    fleet = load_fleet('two_level', [FLEETS])
    processes = FleetProcesses(fleet, tmp_path, ['server', 'blue', 'red'])
    assert processes.names == ['server', 'blue/server', 'blue/robot1', 'blue/robot2',
                               'red/server', 'red/robot1', 'red/robot2']
    *_, namespace, _, file = processes.command('red/server')
    assert namespace == '__ns:=/rog' and file == str(tmp_path / 'red/parameters/server.yaml')
    given = yaml.safe_load((tmp_path / 'red/parameters/server.yaml').read_text())
    parameters = given['/**']['ros__parameters']
    assert (parameters['upstream.robot'], parameters['upstream.domain_id']) == ('red', 0)
    assert parameters['out'] == str(tmp_path / 'red')
    red = dds_environment(processes.below['red'].fleet.network)
    assert red['ROS_DOMAIN_ID'] == '2'
    assert red.items() <= processes.environment('red/robot2').items()
    assert processes.log('red/robot2') == tmp_path / 'red/logs/robot2.log'
    processes.command('red/robot2')
    given = yaml.safe_load((tmp_path / 'red/parameters/robot2.yaml').read_text())
    assert (given['/**']['ros__parameters']['rank'], given['/**']['ros__parameters']['world']) \
        == (3, 4)


@pytest.mark.parametrize('name', ['inf', 'nan', '1e5', '1E5', '0x1f', '017', 'yes', 'off', 'null',
                                  '1_000', '2024-01-01', '1e', 'g\u00e4rten'])
def test_a_node_reads_every_fleet_name_as_text(tmp_path, monkeypatch, name):
    monkeypatch.setenv('ROS_LOG_DIR', str(tmp_path))
    fleet = changed(load_fleet('indoor', [FLEETS]), name=name)
    _, *arguments = FleetProcesses(fleet, tmp_path, ['server']).command('server')
    context = Context()
    rclpy.init(args=arguments, context=context)
    try:
        node = Node('reader', context=context, enable_rosout=False, start_parameter_services=False)
        assert node.declare_parameter('fleet', '').value == name
        node.destroy_node()
    finally:
        context.try_shutdown()


@pytest.mark.parametrize('section, changes, words', [
    ('upstream', {'domain_id': 7}, r'red.yaml: upstream is DDS domain 7, .* domain 0'),
    ('upstream', {'namespace': '/x'}, r'upstream is DDS domain 0, namespace /x, .*domain 0'),
    ('network', {'domain_id': 0}, 'red.yaml: network is DDS domain 0, like that of two_level;'),
    ('network', {'domain_id': 1}, 'network is DDS domain 1, like that of two_level_blue;')])
def test_fleets_that_cannot_meet_or_would_meet_each_other_are_refused(
        section, changes, words, tmp_path, capsys):
    """Refuse a child fleet that cannot reach its parent, or that uses another fleet's network.

    An earlier version started such fleets. In one case a robot trained alone without a warning.
    In another case two servers ran with the same DDS domain and namespace.
    """
    for name in ('two_level', 'two_level_blue', 'two_level_red'):
        data = yaml.safe_load((FLEETS / f'{name}.yaml').read_text())
        if name == 'two_level_red':
            data[section].update(changes)
        (tmp_path / f'{name}.yaml').write_text(yaml.safe_dump(data))
    assert main(['fleet', 'up', str(tmp_path / 'two_level.yaml'), '--out', str(tmp_path / 'out')]
                ) == 2
    assert re.search(words, capsys.readouterr().err)
    assert not (tmp_path / 'out').exists()
