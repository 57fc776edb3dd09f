"""The `lopinfer` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fleet_env.errors import SettingError, TraceError

from ..errors import LopinferError
from . import bench, compare, demo, plan, profile, serve


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    parser = argparse.ArgumentParser(
        prog='lopinfer', description='Share one inference between a robot and a server.')
    verbs = parser.add_subparsers(dest='verb', required=True, metavar='VERB')
    for module in (demo, profile, plan, compare, serve, bench):
        module.add_to(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; errors of the user are one line and exit code 2."""
    options = make_parser().parse_args(arguments)
    try:
        return options.run(options)
    except (LopinferError, SettingError, TraceError, OSError) as error:
        print(f'lopinfer: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == '__main__':
    sys.exit(main())
