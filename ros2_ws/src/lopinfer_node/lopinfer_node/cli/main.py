"""The `lopinfer` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from fleet_env.command import begin_process, command_parser, os_error_text
from fleet_env.errors import PackageError, SettingError, TraceError
from fleet_link.errors import KeyFileError

from ..errors import LopinferError

VERBS = ('demo', 'profile', 'plan', 'compare', 'serve', 'bench')


def make_parser(wanted: str = '') -> argparse.ArgumentParser:
    """Return a parser for the verb ``wanted``, or for all verbs if ``wanted`` is unknown.

    A parser for one verb does not import the other verbs, because these imports may take seconds.
    """
    parser = command_parser('lopinfer', 'Share one inference between a robot and a server.')
    verbs = parser.add_subparsers(dest='verb', required=True, metavar='VERB')
    for name in [wanted] if wanted in VERBS else VERBS:
        import_module(f'lopinfer_node.cli.{name}').add_to(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code.

    An error that is the user's fault is printed as one line; the exit code is then 2.
    """
    if arguments is None:
        begin_process()
    name = next(iter(sys.argv[1:] if arguments is None else arguments), '')
    try:
        options = make_parser(name).parse_args(arguments)
        return options.run(options)
    except (LopinferError, PackageError, SettingError, TraceError, KeyFileError) as error:
        print(f'lopinfer: {error}', file=sys.stderr)
        return 2
    except OSError as error:  # an error of a file or directory that the user named
        print(f'lopinfer: {os_error_text(error)}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if arguments is None:   # Python would wait for threads that compile or search for plans
            from fleet_ros.ending import leave
            leave(130)
        return 130


if __name__ == '__main__':
    sys.exit(main())
