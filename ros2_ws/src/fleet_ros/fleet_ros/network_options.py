"""The options by which a command gets its network settings if it reads no fleet file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection

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


def add_access_options(parser: argparse.ArgumentParser) -> None:
    """Add --key and --open."""
    parser.add_argument('--key', default='', metavar='FILE',
                        help="key file: the team's own for a server, or the robot's (rog key; "
                             f'default: {FLEET_KEY} of the environment, else no key)')
    parser.add_argument('--open', action='store_true',
                        help='allow traffic beyond this machine without a key; this trusts '
                             'everybody on the network')


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
