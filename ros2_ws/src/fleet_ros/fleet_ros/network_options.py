"""Options of commands that read no fleet file: the network, the key, and those of servers."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Mapping
from typing import Any

from fleet_env.command import at_least_one
from fleet_env.settings.base import Text, flat, from_flat, knobs
from fleet_env.settings.fleet import ReachConfig

from .dds_profiles import is_loopback
from .environment import dds_environment, where_traffic_goes
from .exposure import FLEET_KEY


def add_network_options(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """Add --interface, --domain-id, --peers and --namespace.

    :param without: names of settings whose options are not added.
    """
    group = parser.add_argument_group('network')
    for knob in knobs(ReachConfig):
        if knob.name not in without:
            group.add_argument('--' + knob.name.replace('_', '-'), dest=f'network.{knob.name}',
                               metavar='X', help=knob.help.replace('%', '%%'))


# options that all servers have as parameters of the same names
SERVERS = ('device', 'threads', 'memory', 'directory', 'disk')


def add_access_options(parser: argparse.ArgumentParser) -> None:
    """Add --key and --open."""
    parser.add_argument('--key', default='', metavar='FILE',
                        help="key file: the team's own for a server, or the robot's (rog key; "
                             f'default: {FLEET_KEY} of the environment, else no key)')
    parser.add_argument('--open', action='store_true',
                        help='allow traffic beyond this machine without a key; this trusts '
                             'everybody on the network')


def add_server_options(parser: argparse.ArgumentParser, device: str, memory: str) -> None:
    """Add the options that all servers have; ``device``: its default; ``memory``: help text."""
    default = 'cuda if there is one' if device == 'auto' else device
    parser.add_argument('--device', default=device, metavar='DEVICE',
                        help=f'device that computes: cpu, cuda or cuda:N (default: {default})')
    parser.add_argument('--threads', type=at_least_one, metavar='N',
                        help="computing threads (default: PyTorch's own choice)")
    parser.add_argument('--memory', type=at_least_one, metavar='MIB', help=memory)
    parser.add_argument('--directory', metavar='DIR',
                        help='folder of the weights that robots have sent (default: '
                             'fleet in $XDG_CACHE_HOME or ~/.cache)')
    parser.add_argument('--disk', type=int, metavar='MIB',
                        help='most disk for these weights, MiB (default: 16384)')
    add_access_options(parser)
    add_network_options(parser, without=['namespace'])


def server_arguments(options: argparse.Namespace, parameters: Mapping[str, Any],
                     namespace: str = '') -> list[str]:
    """Return the ROS arguments for the options of `add_server_options` and more parameters.

    ``parameters``: see `ros_arguments`. ``namespace``: that of the nodes; '': none.

    :raises SettingError: the namespace is invalid; the message names --name.
    """
    if namespace:
        from_flat(ReachConfig, {'namespace': f'/{namespace.strip("/")}'}, '--name: ')
    given = {**{name: getattr(options, name) for name in SERVERS},
             'security.key': options.key, 'security.open': options.open or None, **parameters}
    return [*ros_arguments(given), *(['-r', f'__ns:=/{namespace.strip("/")}'] if namespace else [])]


def ros_arguments(parameters: Mapping[str, Any]) -> list[str]:
    """Return the ROS arguments that give nodes these parameters, except those of None or ''."""
    # A text is quoted, because ROS 2 would read inf or 2024 as a number.
    return ['--ros-args', *(part for name, value in parameters.items() if value not in (None, '')
                            for part in ('-p', f'{name}:={json.dumps(value, default=str)}'))]


def given_network(options: argparse.Namespace) -> dict[str, Text]:
    """Return name of a network setting -> text, for the options that the user has given."""
    given = {knob.name: getattr(options, f'network.{knob.name}', None)
             for knob in knobs(ReachConfig)}
    return {name: Text(text) for name, text in given.items() if text is not None}


def chosen_network(options: argparse.Namespace, usual: ReachConfig | None = None) -> ReachConfig:
    """Return the network settings that the options give.

    :param usual: the settings that the options change; default: those of `ReachConfig`.
    :raises SettingError: a value is invalid; the message names the option.
    """
    return from_flat(ReachConfig, {**(flat(usual) if usual else {}), **given_network(options)},
                     '--')


def join_as_server(options: argparse.Namespace, name: str) -> None:
    """Call `join_network`, and say on stderr that the server ``name`` starts, which takes long."""
    join_network(options)
    print(f'{name} starts: some 5 s, to load PyTorch; then it says where it serves',
          file=sys.stderr, flush=True)


def join_network(options: argparse.Namespace, quiet: bool = False) -> ReachConfig:
    """Make this process and its child processes use the network that the options give.

    Print on stderr where the traffic goes. If ``quiet``, print it only if the traffic
    leaves this machine.

    :raises SettingError: a value is invalid; the message names the option.
    :raises FleetFileError: this machine lacks the given interface, or cannot resolve a peer.
    """
    network = chosen_network(options)
    os.environ.update(dds_environment(network))
    if not (quiet and is_loopback(network)):
        print(where_traffic_goes(network), file=sys.stderr, flush=True)
    return network
