"""`rog key`: make the key of a fleet, or from it that of one robot."""

from __future__ import annotations

import argparse
from pathlib import Path

from rog_ros.parameters import robot_name
from rog_ros.seal import new_key, read_key, write_key

from .option_types import place


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('key', help='make the key of a fleet, or of one robot of it')
    parser.add_argument('fleet', type=Path, metavar='FILE',
                        help="the fleet's key; made, unless --robot is given")
    parser.add_argument('--robot', metavar='NAME', help='write the key of this robot only, which '
                        'reveals no other')
    parser.add_argument('--out', type=place, metavar='FILE',
                        help="file for the robot's key (default: NAME.key beside the fleet's)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.robot is None:
        write_key(options.fleet, new_key())
        print(f'wrote {options.fleet}; whoever has it can take part in the fleet and control it. '
              'Name it in the fleet file: security.key')
        return 0
    name = robot_name(options.robot)
    out = options.out or options.fleet.parent / f'{name.replace("/", "_")}.key'
    write_key(out, read_key(options.fleet).of(name))
    print(f'wrote {out}; copy it to {name}, and nothing else')
    return 0
