"""Arguments that the launch files share: who starts here, DDS, and parameters by their tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml
from fleet_env.fleet import NetworkConfig
from fleet_ros.environment import dds_environment
from fleet_ros.parameters import Knob
from launch.actions import DeclareLaunchArgument, SetEnvironmentVariable
from launch.substitutions import LaunchConfiguration
from launch_ros.parameter_descriptions import ParameterValue

PATIENCE = 15.0  # s that a process has to end by itself on Ctrl+C

ONLY = DeclareLaunchArgument('only', default_value='', description='Start only these, separated '
                             'by commas: server, or names of robots; empty: all.')


def robots_and_network() -> list[DeclareLaunchArgument]:
    """The arguments of a launch without a fleet file."""
    return [
        DeclareLaunchArgument('robots', default_value='robot1',
                              description='Names of the robots, separated by commas.'),
        ONLY,
        DeclareLaunchArgument('interface', default_value='lo', description='Network interface of '
                              'DDS; lo keeps everything on this machine.'),
        DeclareLaunchArgument('domain_id', default_value='0', description='ROS domain.')]


def value(context: Any, argument: str) -> str:
    """What the argument was given, or its default."""
    return LaunchConfiguration(argument).perform(context).strip()


def names(context: Any, argument: str) -> list[str]:
    """What the argument lists, separated by commas."""
    return [name.strip() for name in value(context, argument).split(',') if name.strip()]


def chosen(context: Any, robots: Sequence[str]) -> list[str]:
    """Who of `server` and the robots starts here; RuntimeError if `only` names anybody else."""
    there, only = ['server', *robots], names(context, 'only')
    if unknown := sorted(set(only).difference(there)):
        raise RuntimeError(f"only:={value(context, 'only')} names {', '.join(unknown)}; there are "
                           f"{', '.join(there)}")
    return [name for name in there if not only or name in only]


def network(context: Any) -> NetworkConfig:
    """What `robots_and_network` say of DDS."""
    return NetworkConfig(int(value(context, 'domain_id')), value(context, 'interface'))


def environment(network: NetworkConfig) -> list[Any]:
    """The actions that confine DDS to this network."""
    return [SetEnvironmentVariable(*item) for item in dds_environment(network).items()]


def text_parameter(text: str) -> ParameterValue:
    """A text: without its type launch reads YAML, and a directory called 2024 becomes a number."""
    return ParameterValue(text, value_type=str)


def parameter(argument: str, knob: Knob, text: str) -> Any:
    """A parameter of the knob's type; RuntimeError if the argument's text is none of that type."""
    kind = type(knob.default)
    if kind is str:
        return text_parameter(text)
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        found = None
    if kind is float and type(found) is int:
        found = float(found)
    if type(found) is not kind:
        raise RuntimeError(f'{argument}:={text} must be of type {kind.__name__}: '
                           f'{knob.description}')
    return found
