"""Each setting of the fleet file reaches the nodes that need it, as a parameter."""

import json
import math
import os

import pytest
import rclpy
from fleet_env.errors import SettingError
from fleet_env.settings.base import knobs
from fleet_env.settings.fleet import FleetConfig, FleetSettings, RobotConfig
from fleet_env.settings.fleet_file import with_overrides
from fleet_ros.parameters import declare, declared
from rclpy.context import Context
from rclpy.node import Node
from rclpy.parameter import Parameter
from rog_core.errors import ConfigError
from rog_ros.parameters import (
    RobotEntry,
    ServerSettings,
    WorkerSettings,
    declare_robots,
    fleet_namespace,
    robot_name,
    server_parameters,
    worker_parameters,
)

FLEET = FleetConfig(name='team', robots=(RobotConfig(name='robot1'), RobotConfig(name='robot2')))

# Maps each setting that is not a parameter of a node to the reason.
ELSEWHERE = {
    'domain_id': 'ROS_DOMAIN_ID', 'interface': 'the configuration of DDS', 'peers': 'the same',
    'discovery_server': 'the same', 'namespace': 'the namespaces of the nodes',
    'channel.shared': 'virtual time only', 'channel.header': 'virtual time only',
    'codec_pace': 'virtual time only',
    'upstream.peers': 'refused as long as upstream.interface is lo',
    'upstream.discovery_server': 'refused beside upstream.peers',
    'traffic': 'virtual time only'}
CHANGED = {
    'task': 'a.b:C', 'sync': 'bsp', 'codec': 'raw', 'granularity': 'layer', 'buffers': 'local',
    'device': 'cuda', 'task_options': {'fog': 1}, 'link.trace': 'indoor', 'link.emulate': False,
    'nesterov': False, 'security.key': '/fleet.key', 'upstream.robot': 'red',
    'upstream.interface': 'wlan1', 'upstream.namespace': '/above', 'upstream.codec': 'raw',
    'upstream.granularity': 'layer', 'upstream.key': '/above.key',
    'upstream.link.trace': 'indoor'}
SETTINGS = [knob for knob in knobs(FleetSettings) if knob.name not in ELSEWHERE]


def other(knob):
    if knob.name in CHANGED:
        return CHANGED[knob.name]
    if knob.kind is bool:
        return not knob.default
    return knob.default + 1 if knob.kind is int else knob.default / 2 + 0.3


def parameters(fleet):
    return server_parameters(fleet, 'out'), worker_parameters(fleet, fleet.robots[1])


@pytest.mark.parametrize('knob', SETTINGS, ids=lambda knob: knob.name)
def test_a_setting_reaches_a_node(knob):
    changed = with_overrides(FLEET, {'.'.join(knob.path): other(knob)})
    assert parameters(changed) != parameters(FLEET)


def test_a_robot_finds_the_server_of_its_own_fleet():
    _, worker = parameters(with_overrides(FLEET, {'network.namespace': '/blue/team'}))
    assert worker['server_namespace'] == '/blue/team/rog'
    assert fleet_namespace('/blue/team/rog') == '/blue/team' and fleet_namespace('/rog') == ''


def test_what_a_robot_alone_has_reaches_its_node_and_the_server():
    for name, value in (('capacity', 3.0), ('pace', 2.0), ('stragglers.time', 4.0),
                        ('power.stalled', 1.0), ('link.scale', 2.0)):
        changed = with_overrides(FLEET, {f'robots.robot2.{name}': value})
        server, worker = parameters(changed)
        assert worker[name] == value
        assert server.get(f'robot2.{name}', value) == value and 'robot2.capacity' in server


def test_every_parameter_is_described_and_has_the_bounds_of_the_schema():
    for model in (ServerSettings, WorkerSettings, RobotEntry):
        for knob in declared(model):
            assert knob.description and not knob.description.endswith('.')


@pytest.fixture(scope='module')
def node_of():
    """Yield a function that starts a node with the given parameters and returns the node."""
    context, nodes = Context(), []
    os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    rclpy.init(args=[], context=context)

    def make(values):
        overrides = [Parameter(name, value=value) for name, value in values.items()]
        nodes.append(Node(f'declares{len(nodes)}', context=context, parameter_overrides=overrides))
        return nodes[-1]

    yield make
    for node in nodes:
        node.destroy_node()
    rclpy.shutdown(context=context)


def test_what_a_node_reads_is_what_the_fleet_file_says(node_of):
    fleet = with_overrides(FLEET, {
        '.'.join(knob.path): other(knob) for knob in SETTINGS if knob.name != 'link.offset'} | {
        'robots.robot2.link.offset': 30.0, 'robots.robot2.capacity': 3.0})
    server, worker = parameters(fleet)
    robot = fleet.robots[1]
    node = node_of(worker)
    read = declare(node, WorkerSettings)
    assert (read.link, read.power, read.stragglers) == (robot.link, robot.power, robot.stragglers)
    assert (read.capacity, read.rank, read.world) == (3.0, *fleet.share('robot2'))
    assert read.heartbeat == fleet.heartbeat and read.network == fleet.network
    for knob in declared(WorkerSettings):
        if knob.path[0] == 'training':
            assert getattr(read.training, knob.name) == getattr(fleet.training, knob.name)
    limits = node.describe_parameter('chunk_bytes')
    assert '[B]' in limits.description and limits.integer_range[0].to_value == 65000
    assert limits.read_only and '256' in limits.additional_constraints
    node = node_of(server)
    read = declare(node, ServerSettings)
    assert read.robots == ('robot1', 'robot2') and read.fleet == 'team' and read.out == 'out'
    assert (read.server, read.minutes) == (fleet.server, fleet.minutes)
    assert not node.describe_parameter('sync').read_only
    assert declare_robots(node, read.robots)['robot2'] == RobotEntry(link=robot.link, capacity=3.0)


def test_without_a_fleet_file_links_are_real_and_everything_else_is_the_schemas(node_of):
    read = declare(node_of({}), ServerSettings)
    assert read.robots == () and read.training == FLEET.training
    assert declare(node_of({}), WorkerSettings).link.trace == ''
    assert declare_robots(node_of({}), ('a',)) == {'a': RobotEntry()}


@pytest.mark.parametrize('given, message', [
    ({'task_options': '{'}, 'parameter task_options is not JSON'),
    ({'task_options': '3'}, 'parameter task_options must be a mapping'),
    ({'task': 'cruda'}, 'parameter task is .*package.module:Class'),
    ({'granularity': 'rows'}, "parameter granularity is 'rows'; .*did you mean 'row'"),
    ({'device': 'gpu'}, 'parameter device .*cuda:N'),
    ({'learning_rate': 0.0}, 'parameter learning_rate is 0.0; .* greater than 0'),
    ({'heartbeat.limit': 0.1}, 'parameter heartbeat .*longer than'),
    ({'server_namespace': ' '}, 'parameter server_namespace is empty'),
    ({'link.scale': 0.0}, 'parameter link.scale is 0.0'),
])
def test_what_is_wrong_is_named(node_of, given, message):
    with pytest.raises(SettingError, match=message):
        declare(node_of(given), WorkerSettings)


@pytest.mark.parametrize('names, given, message', [
    (('a', 'a'), {}, "two robots are called 'a'"),
    (('a b',), {}, "a robot's name is 'a b'; it must"),
    (('a',), {'a.link.trace': '/no/such'}, '/no/such'),
    (('a',), {'a.capacity': 0.0}, 'parameter a.capacity is 0.0'),
])
def test_what_is_wrong_with_a_robot_is_named(node_of, names, given, message):
    with pytest.raises((ConfigError, ValueError), match=message):
        declare_robots(node_of(given), names)


def test_task_options_travel_as_json():
    fleet = with_overrides(FLEET, {'training.task_options': {'fog': 0.5, 'split': 'iid'}})
    assert json.loads(parameters(fleet)[1]['task_options']) == {'fog': 0.5, 'split': 'iid'}


def test_a_robot_name_fits_the_topics_that_are_made_from_it():
    assert robot_name('x' * 64) == 'x' * 64  # the longest allowed name
    for wrong in ('x' * 232, '/'.join(['xyz'] * 20), 'a__b', '1e5'):
        with pytest.raises(ConfigError, match='letters a to z, digits and single underscores, '
                                              'first a letter.*, at most 64 characters'):
            robot_name(wrong)


@pytest.mark.parametrize('given', [math.inf, 1e5, True])
def test_what_ros_2_reads_as_no_text_is_refused_with_what_to_do(node_of, given):
    with pytest.raises(SettingError, match='parameter fleet must be text; .*put quotes'):
        declare(node_of({'fleet': given}), ServerSettings)
