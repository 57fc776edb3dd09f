"""`rog key`: make the key of a fleet, or derive one robot's key from the fleet's key."""

from __future__ import annotations

import argparse
from pathlib import Path

from fleet_link.key import new_key, read_key, write_key
from rog_core.errors import ConfigError
from rog_ros.parameters import robot_name

from .option_types import place


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('key', help='make the key of a fleet, or of one robot of it')
    parser.add_argument('fleet', type=Path, metavar='FILE',
                        help="file of the fleet's key; created, unless --robot is given")
    parser.add_argument('--robot', metavar='NAME', help='write only the key of this robot, which '
                        'reveals no other key')
    parser.add_argument('--out', type=place, metavar='FILE',
                        help="file for the robot's key (default: NAME.key beside the fleet's)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.robot is None:
        if options.out is not None:
            raise ConfigError("--out: it is for a robot's key; give --robot NAME, or leave it out")
        write_key(options.fleet, new_key())
        print(f'wrote {options.fleet}; whoever has it can take part in the fleet and control it. '
              'Set security.key in the fleet file to it')
        return 0
    name = robot_name(options.robot)
    out = options.out or options.fleet.parent / f'{name.replace("/", "_")}.key'
    write_key(out, read_key(options.fleet).of(name))
    print(f'wrote {out}; copy only this key to {name}')
    return 0
