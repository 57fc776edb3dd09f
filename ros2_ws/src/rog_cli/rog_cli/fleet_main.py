"""The `fleet` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from fleet_env.command import command_parser

from .main import run_verb


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    parser = command_parser('fleet', 'One machine with a GPU for all robots of a team.')
    verbs = parser.add_subparsers(dest='verb', required=True, metavar='VERB')
    import_module('rog_cli.commands.serve').add_to(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; see `run_verb`."""
    return run_verb('fleet', make_parser, arguments)


if __name__ == '__main__':
    sys.exit(main())
