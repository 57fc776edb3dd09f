"""The fleet file is the single source: each of its settings reaches the nodes that it concerns."""

import dataclasses
import json

import pytest
from fleet_env.errors import FleetFileError
from fleet_env.fleet import (
    FleetConfig,
    LinkConfig,
    RobotConfig,
    StragglerConfig,
    TrainingConfig,
)
from fleet_env.fleet_file import with_overrides
from fleet_env.power import PowerModel
from rog_core.errors import ConfigError
from rog_ros.parameters import (
    SERVER,
    WORKER,
    RobotEntry,
    link_of,
    power_of,
    robots_of,
    server_parameters,
    stragglers_of,
    worker_parameters,
)

FLEET = FleetConfig('team', (RobotConfig('robot1'), RobotConfig('robot2')))

# Settings that no node parameter carries, and why.
ELSEWHERE = {
    'name': 'parameter fleet', 'description': 'for people', 'network.domain_id': 'ROS_DOMAIN_ID',
    'network.interface': 'the configuration of DDS',
    'link.offset': 'in the link', 'channel.shared': 'virtual time only',
    'training.codec_pace': 'virtual time only', 'training.traffic': 'virtual time only',
}
CHANGED = {
    'training.task': 'a.b:C', 'training.sync': 'bsp', 'training.codec': 'raw',
    'training.granularity': 'layer', 'training.task_options': {'fog': 1}, 'link.trace': 'indoor',
    'link.emulate': False, 'training.nesterov': False}


def settings():
    """Dotted names and values of every scalar setting of a fleet, and the task's options."""
    for name, value in dataclasses.asdict(FLEET).items():
        if isinstance(value, dict):
            yield from ((f'{name}.{key}', inner) for key, inner in value.items())
        elif name not in ('robots', 'file'):
            yield name, value


def other(name, value):
    if name in CHANGED:
        return CHANGED[name]
    return value + 1 if isinstance(value, int) else value / 2 + 0.3


def parameters(fleet):
    return server_parameters(fleet, 1.0, 'out'), worker_parameters(fleet, fleet.robots[1], 1.0)


@pytest.mark.parametrize('name, value', [s for s in settings() if s[0] not in ELSEWHERE],
                         ids=lambda x: str(x))
def test_a_setting_reaches_a_node(name, value):
    changed = with_overrides(FLEET, {name: other(name, value)})
    assert parameters(changed) != parameters(FLEET)


def test_what_a_robot_alone_has_reaches_its_node():
    for name, value in (('capacity', 3.0), ('pace', 2.0), ('stragglers.time', 4.0)):
        changed = with_overrides(FLEET, {f'robots.robot2.{name}': value})
        assert parameters(changed)[1] != parameters(FLEET)[1], name


def test_what_is_passed_is_declared_with_the_same_type_and_within_bounds():
    for passed, declared in zip(parameters(FLEET), (SERVER, WORKER), strict=True):
        for name, value in passed.items():
            knob = declared[name]
            assert type(value) is type(knob.default), name
            assert knob.low is None or knob.low <= value <= knob.high, name
            assert not knob.choices or value in knob.choices, name


def test_every_parameter_has_a_description():
    assert all(knob.description.endswith('.') for knob in [*SERVER.values(), *WORKER.values()])


def test_what_a_node_reads_is_what_the_fleet_file_says():
    link = LinkConfig('indoor', 0.5, True, 30.0, 0.01)
    robot = RobotConfig('robot1', link, 0.0, PowerModel(5.0, 3.0, 1.0), 0.0,
                        StragglerConfig(.1, 2.0, .01, 30.0), 3.0)
    fleet = FleetConfig('team', (robot,), training=TrainingConfig())
    server, worker = server_parameters(fleet, 0.0, ''), worker_parameters(fleet, robot, 0.0)
    assert link_of(worker['link']) == link and power_of(worker['power']) == robot.power
    assert stragglers_of(worker['stragglers']) == robot.stragglers and worker['capacity'] == 3
    assert robots_of(server['robots']) == {'robot1': RobotEntry(link, 3.0)}
    assert robots_of('[{"name": "robot1"}]') == {
        'robot1': RobotEntry(LinkConfig(emulate=False), 1.0)}
    assert robots_of('[]') == {} and stragglers_of('{}') == StragglerConfig()


@pytest.mark.parametrize('read, text, message', [
    (link_of, '{', 'parameter link is not JSON'), (link_of, '3', 'must be an object'),
    (link_of, '{"trase": "x"}', "did you mean 'trace'"),
    (link_of, '{"scale": 0}', 'link.scale is 0'),
    (link_of, '{"latency": "x"}', 'link.latency must be a number'),
    (power_of, '{"stalled": -1}', 'power.stalled is -1'), (robots_of, '[3]', 'robots[0]'),
    (robots_of, '[{"name": 3}]', 'cannot be the name'),
    (robots_of, '[{"name": "a", "link": 3}]', 'robots[0].link must be a mapping'),
    (stragglers_of, '{"probability": 2}', 'stragglers.probability is 2'),
    (robots_of, '[{"name": "a", "capacity": 0}]', 'robots[0].capacity is 0'),
    (robots_of, '[{"name": "a", "pace": 1}]', 'name, link and capacity'),
    (robots_of, '[{"name": "a"}, {"name": "a"}]', "two robots are called 'a'")])
def test_what_is_wrong_is_named(read, text, message):
    with pytest.raises((ConfigError, FleetFileError)) as caught:
        read(text)
    assert message in str(caught.value)


def test_task_options_travel_as_json():
    fleet = with_overrides(FLEET, {'training.task_options': {'fog': 0.5, 'split': 'iid'}})
    assert json.loads(parameters(fleet)[1]['task_options']) == {'fog': 0.5, 'split': 'iid'}
