"""The `rrto` command."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from fleet_env.command import begin_process, command_parser, os_error_text
from fleet_env.errors import PackageError, SettingError
from fleet_ros.ending import end_with_launcher

from . import bench, demo, run, serve, status


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    parser = command_parser('rrto', 'Run an unmodified PyTorch program on the GPU of a server.')
    verbs = parser.add_subparsers(dest='verb', required=True, metavar='VERB')
    for module in (run, serve, status, demo, bench):
        module.add_parser(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    if arguments is None:
        begin_process()
    try:
        options = make_parser().parse_args(arguments)
        end_with_launcher()
        # On SIGTERM, exit through Python's cleanup, which also stops a server that this command
        # started.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        return int(options.call(options))
    except (PackageError, SettingError) as error:
        print(f'rrto: {error}', file=sys.stderr)
        return 2
    except OSError as error:   # such as a full disk
        print(f'rrto: {os_error_text(error)}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        from fleet_ros.process import explained, is_users  # loads rclpy, which takes long
        if not is_users(error, ('rrto_bridge',)):
            raise
        print(f'rrto: {explained(error, ("rrto_bridge",))}', file=sys.stderr)
        return 2


if __name__ == '__main__':
    sys.exit(main())
