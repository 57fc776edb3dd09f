"""Parameters of the worker node and of the server node.

They are settings of the fleet file, and some parameters that only these nodes have.
"""

from __future__ import annotations

from typing import Any, ClassVar

from fleet_env.errors import SettingError
from fleet_env.settings.base import changed, checked, setting
from fleet_env.settings.fleet import (
    ROBOT,
    Computer,
    FleetConfig,
    FleetSettings,
    LinkConfig,
    ReachConfig,
    RobotConfig,
    SecurityConfig,
)
from fleet_env.settings.fleet_file import link_trace
from fleet_env.settings.power_model import PowerModel
from fleet_ros.link import LinkSettings
from fleet_ros.managed import ManagedSettings
from fleet_ros.parameters import declare, parameters
from rclpy.node import Node
from rog_core.errors import ConfigError

_ELSEWHERE = ('channel', 'codec_pace', 'traffic', *ReachConfig.model_fields)


SERVER = 'rog'  # name of the parameter server's namespace, which no robot may have


class WorkerSettings(ManagedSettings, LinkSettings, Computer, FleetSettings):
    """Settings of a robot's node."""

    UNUSED: ClassVar[tuple[str, ...]] = (
        *_ELSEWHERE, 'minutes', 'sync', 'server', 'upstream', 'security.control')

    rank: int = setting(0, 'rank of this robot, selects its share of the data', ge=0, le=65535)
    world: int = setting(1, 'number of robots that share the data', ge=1, le=65536)
    server_namespace: str = setting('/rog', 'namespace of the parameter server')


class ServerSettings(ManagedSettings, LinkSettings, FleetSettings):
    """Settings of the parameter-server node; `declare_robots` adds parameters for each robot."""

    UNUSED: ClassVar[tuple[str, ...]] = (
        *_ELSEWHERE, 'device', 'learning_rate', 'nesterov', 'weight_decay', 'batch_size',
        'evaluate_every', 'pace', 'link', 'power', 'stragglers')

    minutes: float = setting(0.0, 'duration of the training; 0, without a fleet file: until it is '
                                  'stopped', 'min', ge=0.0)
    robots: tuple[str, ...] = setting((), 'names of the robots of the fleet, with ROBOT.capacity '
                                      'and ROBOT.link.* for each; empty: any robot may join')
    out: str = setting('', 'directory for run.jsonl, summary.json and the checkpoint; empty for '
                       'none', empty=True)
    resume: bool = setting(False, 'continue from the checkpoint in the out directory, if any')
    fleet: str = setting('', 'name of the fleet, for the records', empty=True)


class RobotEntry(Computer):
    """The parameters that the server's node has for each robot, needed before a robot registers."""

    link: LinkConfig = LinkConfig(trace='')


def worker_parameters(fleet: FleetConfig, robot: RobotConfig) -> dict[str, Any]:
    """Return the parameters of a robot's worker node."""
    rank, world = fleet.share(robot.name)
    return parameters(WorkerSettings(**_sections(fleet) | {
        'training': changed(fleet.training, pace=robot.pace), 'link': robot.link,
        'power': robot.power, 'stragglers': robot.stragglers, 'capacity': robot.capacity,
        'rank': rank, 'world': world,
        'server_namespace': f'{fleet.network.namespace}/{SERVER}'}))


def upstream_parameters(settings: ServerSettings) -> dict[str, Any]:
    """Return the parameters of the worker that represents a server's fleet in its parent fleet."""
    above = settings.upstream
    return parameters(WorkerSettings(
        training=changed(settings.training, codec=above.codec, granularity=above.granularity),
        network=settings.network, heartbeat=settings.heartbeat, link=above.link,
        security=SecurityConfig(key=above.key, open=settings.security.open),
        power=PowerModel(computing=0.0, communicating=0.0, stalled=0.0),
        server_namespace=f'{above.namespace}/{SERVER}'))


def server_parameters(fleet: FleetConfig, out: str) -> dict[str, Any]:
    """Return the parameters of the parameter-server node."""
    found = parameters(ServerSettings(**_sections(fleet) | {
        'robots': tuple(robot.name for robot in fleet.robots), 'out': out, 'fleet': fleet.name}))
    for robot in fleet.robots:
        entry = parameters(RobotEntry(capacity=robot.capacity, link=robot.link))
        found |= {f'{robot.name}.{name}': value for name, value in entry.items()}
    return found


def _sections(fleet: FleetConfig) -> dict[str, Any]:
    return {name: getattr(fleet, name) for name in FleetSettings.model_fields}


def declare_robots(node: Node, names: tuple[str, ...]) -> dict[str, RobotEntry]:
    """Declare the parameters of each robot on the server's node; return robot -> values.

    :raises ConfigError: a name is invalid, or given twice.
    :raises SettingError: a value is invalid; the message names the parameter.
    :raises TraceError: a trace cannot be read.
    """
    robots: dict[str, RobotEntry] = {}
    for name in names:
        if robot_name(name) in robots:
            raise ConfigError(f"parameter robots: two robots are called '{name}'; give each its "
                              'own name')
        robots[name] = entry = declare(node, RobotEntry, f'{name}.')
        if entry.link.emulate and (entry.link.trace or entry.link.rate):
            link_trace(entry.link)  # raises TraceError if the trace cannot be read
    return robots


def fleet_namespace(server: str) -> str:
    """Return a fleet's namespace from its server's namespace: '/blue' from '/blue/rog'."""
    return server.rstrip('/').rpartition('/')[0]


def robot_name(name: str) -> str:
    """Return ``name`` if it can be a robot's name: names of `RobotConfig` with slashes between.

    :raises ConfigError: the name is not allowed.
    """
    most = ROBOT['max_length']
    try:
        for part in name.split('/') if len(name) <= most else [name[:most + 1]]:
            checked(RobotConfig, {'name': part})
    except SettingError as error:
        raise ConfigError(f"a robot's {error.message}") from None
    return name
