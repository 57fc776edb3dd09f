"""The launch description of a server and its robots, from the tables of their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from fleet_env.fleet import NetworkConfig
from fleet_ros.environment import dds_environment
from fleet_ros.parameters import Knob
from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from launch import LaunchDescription

_KEEP = ''        # an argument left empty keeps the parameter's default
_PATIENCE = '15'  # s that a process has to end by itself on Ctrl+C
_SHARED = 'link_'  # parameters of an emulated link are the same on both sides


@dataclass(frozen=True)
class Pair:
    """A package with a server node and a robot node."""

    package: str
    server: str
    robot: str
    server_knobs: Mapping[str, Knob]
    robot_knobs: Mapping[str, Knob]

    def argument(self, side: str, name: str) -> str:
        """Launch argument of a parameter; what both sides have is `server_...` on the server."""
        both = name in self.robot_knobs and name in self.server_knobs
        return f'server_{name}' if side == 'server' and both and not name.startswith(_SHARED) \
            else name


def pair_launch(pair: Pair) -> LaunchDescription:
    """Return the launch description: one server, and a node for each of `robots`."""
    texts = {pair.argument(side, name): knob.description
             for side, knobs in (('server', pair.server_knobs), ('robot', pair.robot_knobs))
             for name, knob in knobs.items()}
    arguments = [
        DeclareLaunchArgument('robots', default_value='robot1',
                              description='names of the robots, separated by commas'),
        DeclareLaunchArgument('only', default_value='', description='start only these, separated '
                              'by commas: server, or names of robots; empty for all'),
        DeclareLaunchArgument('interface', default_value='lo', description='network interface of '
                              'DDS; lo keeps everything on this machine'),
        DeclareLaunchArgument('domain_id', default_value='0', description='ROS domain'),
        *(DeclareLaunchArgument(name, default_value=_KEEP,
                                description=f'{text} Empty: the default.')
          for name, text in texts.items())]
    return LaunchDescription([*arguments, OpaqueFunction(function=_start, args=[pair])])


def _start(context: Any, pair: Pair) -> list[Any]:
    def value(name: str) -> str:
        return LaunchConfiguration(name).perform(context).strip()

    robots = [name.strip() for name in value('robots').split(',') if name.strip()]
    only = {name.strip() for name in value('only').split(',') if name.strip()}
    if unknown := only - {'server', *robots}:
        raise RuntimeError(f"only:={value('only')} names {', '.join(sorted(unknown))}; there are "
                           f"server, {', '.join(robots)}")
    network = NetworkConfig(int(value('domain_id')), value('interface'))
    actions: list[Any] = [SetEnvironmentVariable(*item)
                          for item in dds_environment(network).items()]

    def node(side: str, namespace: str, knobs: Mapping[str, Knob]) -> Node:
        given = {name: value(pair.argument(side, name)) for name in knobs}
        parameters = {name: _typed(pair.argument(side, name), knobs[name], text)
                      for name, text in given.items() if text != _KEEP}
        return Node(package=pair.package, executable=getattr(pair, side), namespace=namespace,
                    output='screen', parameters=[parameters] if parameters else [],
                    sigterm_timeout=_PATIENCE)

    if not only or 'server' in only:
        actions.append(node('server', pair.robot_knobs['server'].default, pair.server_knobs))
    return actions + [node('robot', robot, pair.robot_knobs) for robot in robots
                      if not only or robot in only]


def _typed(name: str, knob: Knob, text: str) -> Any:
    """The argument as the parameter's type; RuntimeError if it is none of that type."""
    kind = type(knob.default)
    if kind is str:  # without its type launch reads it as YAML: a directory called 2024 is a number
        return ParameterValue(text, value_type=str)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise RuntimeError(f"{name}:={text} must be of type {kind.__name__}: {knob.description}")
    return value
