"""Command-line options that say where traffic goes, for commands without a fleet file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection

from fleet_env.fleet import ReachConfig
from fleet_env.settings import Text, from_flat, knobs

from .dds_profiles import is_loopback
from .environment import dds_environment, where_traffic_goes


def add_network_options(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """Add --interface, --domain-id, --peers and --namespace, except those of ``without``."""
    group = parser.add_argument_group('network')
    for knob in knobs(ReachConfig):
        if knob.name not in without:
            group.add_argument('--' + knob.name.replace('_', '-'), dest=f'network.{knob.name}',
                               metavar='X', help=knob.help.replace('%', '%%'))


def chosen_network(options: argparse.Namespace) -> ReachConfig:
    """Return the network settings of the options.

    :raises SettingError: names the option.
    """
    given = {knob.name: getattr(options, f'network.{knob.name}', None)
             for knob in knobs(ReachConfig)}
    return from_flat(ReachConfig, {name: Text(text) for name, text in given.items()
                                   if text is not None}, '--')


def join_network(options: argparse.Namespace, quiet: bool = False) -> ReachConfig:
    """Make this process and its children use the network of the options.

    The function prints the network on stderr; if ``quiet``, only when traffic leaves this machine.

    :raises SettingError: names the option.
    :raises FleetFileError: when this machine has no such interface.
    """
    network = chosen_network(options)
    os.environ.update(dds_environment(network))
    if not (quiet and is_loopback(network)):
        print(where_traffic_goes(network), file=sys.stderr, flush=True)
    return network
