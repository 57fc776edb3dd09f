"""The arguments that the launch files share: settings, processes to start here, and DDS."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from tempfile import NamedTemporaryFile
from typing import Any

from fleet_env.errors import did_you_mean
from fleet_env.settings.base import Settings, Text, arguments, from_flat
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment, where_traffic_goes
from fleet_ros.parameters import parameter_file, parameters
from launch.actions import (
    DeclareLaunchArgument,
    LogInfo,
    OpaqueFunction,
    SetEnvironmentVariable,
)
from launch.substitutions import LaunchConfiguration
from launch_ros.parameter_descriptions import ParameterFile

from launch import LaunchDescription

ENCLAVE = DeclareLaunchArgument(
    'enclave', default_value='', description='SROS 2: before the names of the enclaves, which are '
    'those of server and robots: /fleet stands for /fleet/rog, /fleet/robot1, and so on; / for '
    '/rog, /robot1. Empty: none')
ONLY = DeclareLaunchArgument('only', default_value='', description='start only these, separated '
                             'by commas: server, or names of robots; empty: all')


def described(arguments: Sequence[DeclareLaunchArgument], start: Callable[..., list[Any]],
              *given: Any) -> LaunchDescription:
    """Return a launch description with these arguments, whose actions ``start`` returns.

    It warns of each argument that does not exist, because launch itself accepts any name.

    :param start: called with the launch context and ``given``.
    """
    names = [argument.name for argument in arguments]
    return LaunchDescription([*arguments, OpaqueFunction(function=_misspelt, args=[names]),
                              OpaqueFunction(function=start, args=list(given))])


def _misspelt(context: Any, names: list[str]) -> list[Any]:
    return [LogInfo(msg=f"warning: there is no argument '{given}'; "
                        f"{did_you_mean(given, names) or '--show-args lists all'}")
            for given in context.launch_configurations if given not in names]


def declared(texts: Mapping[str, str]) -> list[DeclareLaunchArgument]:
    """Return launch arguments with empty default values; ``texts``: name -> description."""
    return [DeclareLaunchArgument(name, default_value='', description=text)
            for name, text in texts.items()]


def robots_and_network() -> list[DeclareLaunchArgument]:
    """Return the launch arguments `robots`, `only` and the network settings (`ReachConfig`).

    Launch files without the argument `fleet` declare these arguments.
    """
    return [
        DeclareLaunchArgument('robots', default_value='robot1',
                              description='names of the robots, separated by commas'),
        ONLY, *declared(arguments(ReachConfig))]


def value(context: Any, argument: str) -> str:
    """Return the value of an argument, or its default."""
    return LaunchConfiguration(argument).perform(context).strip()


def names(context: Any, argument: str) -> list[str]:
    """Return the names in an argument, which is a comma-separated list."""
    return [name.strip() for name in value(context, argument).split(',') if name.strip()]


def chosen(context: Any, robots: Sequence[str]) -> list[str]:
    """Return the names among `server` and ``robots`` that the argument `only` selects.

    These are the nodes to start on this machine; all of them if `only` is empty.

    :raises RuntimeError: `only` contains a name that is neither `server` nor in ``robots``.
    """
    there, only = ['server', *robots], names(context, 'only')
    if unknown := sorted(set(only).difference(there)):
        raise RuntimeError(f"only:={value(context, 'only')} names {', '.join(unknown)}; there are "
                           f"{', '.join(there)}")
    return [name for name in there if not only or name in only]


def network(context: Any) -> ReachConfig:
    """Return the network settings that the arguments of `robots_and_network` give.

    :raises SettingError: a value is not allowed.
    """
    return from_flat(ReachConfig, given(context, arguments(ReachConfig)))


def given(context: Any, names: Iterable[str]) -> dict[str, Text]:
    """Return a dict, name -> value, of the arguments ``names`` that are not empty."""
    return {name: Text(text) for name in names if (text := value(context, name))}


def environment(network: ReachConfig) -> list[Any]:
    """Return launch actions that make DDS use ``network`` and print where its traffic goes."""
    return [*(SetEnvironmentVariable(*item) for item in dds_environment(network).items()),
            LogInfo(msg=where_traffic_goes(network))]


def enclave(context: Any, name: str) -> list[str]:
    """Return the ROS arguments that set a node's enclave; none if the argument `enclave` is empty.

    :param name: namespace of the node, for example /robot1.
    :raises RuntimeError: SROS 2 is not enabled.
    """
    prefix = value(context, 'enclave')
    if not prefix:
        return []
    if os.environ.get('ROS_SECURITY_ENABLE', '') != 'true':
        raise RuntimeError(f'enclave:={prefix} asks for SROS 2, but ROS_SECURITY_ENABLE is not '
                           'true: the nodes would talk unprotected. Export it, and '
                           'ROS_SECURITY_KEYSTORE')
    return ['--enclave', prefix.rstrip('/') + name]


def enforced(context: Any) -> list[Any]:
    """Return the launch action that makes a node without valid keys fail.

    Return no action if enclaves are not used. By default, ROS 2 starts a node without valid
    keys, and this node communicates without protection.
    """
    return [SetEnvironmentVariable('ROS_SECURITY_STRATEGY', 'Enforce')] \
        if value(context, 'enclave') else []


def typed(values: Mapping[str, Any]) -> list[ParameterFile]:
    """Return the parameters of a node; every text stays a text, also one like 2024 or inf."""
    if not values:
        return []
    with NamedTemporaryFile('w', encoding='utf-8', prefix='launch_params_', delete=False) as file:
        file.write(parameter_file(values))
    return [ParameterFile(file.name)]


def given_parameters(model: type[Settings], texts: Mapping[str, str]) -> list[ParameterFile]:
    """Return the node parameters for the settings in ``texts``, name -> text.

    :raises SettingError: a value is not allowed.
    """
    values = parameters(from_flat(model, texts))
    return typed({name: values[name] for name in texts})
