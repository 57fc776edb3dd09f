"""A developer adds a setting in one line of one file, and it is available everywhere."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import fleet_env
from fleet_testing import FORGET, PROGRAMS, Forked

ROOT = Path(__file__).parents[2]
AT = '    chunk_bytes: int = _('  # start of a line that defines a setting of `network`
LINE = "    hops: int = _(2, 'most hops of a packet', 'nodes', ge=1, le=9)\n"
PLACES = FORGET + '''
import runpy
import rclpy
from fleet_env.settings.fleet import FleetSettings
from fleet_env.settings.fleet_file import explained_fleet, read_fleet
from fleet_env.settings.base import arguments
from fleet_ros.parameters import declare
from rclpy.node import Node
from rog_cli.main import main
from rog_ros.parameters import ServerSettings, WorkerSettings, server_parameters

fleet = read_fleet('fleet.yaml')
assert fleet.network.hops == 5, 'in a fleet file'
assert 'hops: 5' in explained_fleet(fleet) and 'most hops of a packet' in explained_fleet(fleet)
assert server_parameters(fleet, '')['hops'] == 5, 'handed to a node'

rclpy.init(args=['--ros-args', '-p', 'hops:=7'])
for model in (ServerSettings, WorkerSettings):
    node = Node(model.__name__.lower())
    assert declare(node, model).network.hops == 7, 'as a ROS parameter'
    said = node.describe_parameter('hops')
    assert said.description == 'most hops of a packet [nodes]'
    assert (said.integer_range[0].from_value, said.integer_range[0].to_value) == (1, 9)
    node.destroy_node()
rclpy.shutdown()

text = arguments(FleetSettings)['hops']
assert text == ('most hops of a packet (a whole number, at least 1 and at most 9 nodes; '
                'default 2)')
if sys.argv[2] == 'launch':
    from rog_bringup.fleet_launch import fleet_launch
    known = {a.name: a for a in fleet_launch('indoor').get_launch_arguments()}
    assert text in known['hops'].description, 'as a launch argument'

assert main(['sim', 'fleet.yaml', '--set', 'network.hops=10']) == 2, 'by --set'
page = runpy.run_path(sys.argv[1])['page']()
assert '| `network.hops`, parameter `hops` |' in page, 'on the page'
'''


def test_one_line_adds_a_setting_everywhere(tmp_path):
    package = tmp_path / 'fleet_env'
    shutil.copytree(Path(fleet_env.__file__).parent, package)
    file = package / 'settings' / 'fleet.py'
    text = file.read_text()
    assert AT in text
    file.write_text(text.replace(AT, LINE + AT))
    (tmp_path / 'fleet.yaml').write_text('name: f\nnetwork: {hops: 5}\nrobots: [{name: robot1}]\n')
    (tmp_path / 'places.py').write_text(PLACES)
    path = os.pathsep.join([str(tmp_path), os.environ.get('PYTHONPATH', '')])
    env = {**os.environ, 'PYTHONPATH': path, 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
    with Forked(PROGRAMS, ['places.py', str(ROOT / 'tools' / 'settings.py'),
                           'launch' if find_spec('launch_ros') else ''], env,
                cwd=tmp_path) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said
    assert 'network.hops is 10 nodes; it must be a whole number, at least 1' in said
