"""The `rog` command."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points

from fleet_env.command import begin_process, command_parser, os_error_text
from fleet_env.errors import RecordError, SettingError, TraceError, VersionError
from fleet_link.errors import KeyFileError
from rog_core.errors import RogError
from rog_tasks.errors import TaskError

VERBS = ('fleet', 'status', 'control', 'key', 'doctor', 'sim', 'compare', 'plot',
         'models', 'trace')
# Other packages add more verbs. Maps each of these verbs to the folder of its package in a
# checkout.
ELSEWHERE = {'chaos': 'ros2_ws/src/fleet_emulation', 'view': 'ros2_ws/src/rog_view',
             'study': 'studies', 'calibrate': 'studies'}


def make_parser(wanted: str = '') -> argparse.ArgumentParser:
    """Return the parser of the verb ``wanted``, or of all verbs if there is no such verb.

    A verb's imports may take seconds, so the modules of other verbs are not imported. Other
    packages add verbs with entry points of the group ``rog.verbs``. Each entry point has the name
    of its verb, and refers to a function like ``add_to`` in this package's modules.
    """
    parser = command_parser('rog', 'Train one model on a team of robots over bad Wi-Fi.')
    verbs = parser.add_subparsers(dest='verb', required=True, metavar='VERB')
    # If both a wheel and a checkout are installed, each verb has two entry points. The dict keeps
    # only one of them; the order of the file system decides which.
    others = {found.name: found for found in entry_points(group='rog.verbs')}
    names = [*VERBS, *sorted(others)]
    for name in [wanted] if wanted in names else names:
        add_to = others[name].load() if name in others else \
            import_module(f'rog_cli.commands.{name}').add_to
        add_to(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb of `rog`; see `run_verb`."""
    name = next(iter(sys.argv[1:] if arguments is None else arguments), '')
    if name in ELSEWHERE and name not in entry_points(group='rog.verbs').names:
        print(f'rog: the package with the verb {name} is not installed here: '
              f'pip install -e {ELSEWHERE[name]}', file=sys.stderr)
        return 2
    return run_verb('rog', lambda: make_parser(name), arguments)


def run_verb(command: str, make: Callable[[], argparse.ArgumentParser],
             arguments: Sequence[str] | None) -> int:
    """Run one verb; after an error of the user, print one line on stderr and return 2.

    ``make()`` returns the parser of the command.
    """
    _open_what_is_closed()
    if arguments is None:
        begin_process()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may not support all characters
            stream.reconfigure(errors='backslashreplace')
    try:
        return _run(command, make().parse_args(arguments))
    except BrokenPipeError:  # the program that reads the output, such as `head`, has ended
        # send the output that is still in the buffer to the null device
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE
    except (SettingError, TraceError, RecordError, VersionError, TaskError, KeyFileError,
            RogError) as error:
        print(f'{command}: {error}', file=sys.stderr)
        return 2
    except OSError as error:  # a file or directory that the user has named cannot be used
        print(f'{command}: {os_error_text(error)}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _open_what_is_closed() -> None:
    """Open stdin, stdout and stderr on the null device if the process was started without them.

    Otherwise the next file or socket that is opened would receive the output, and `sys.stdout`
    would be None.
    """
    for number, name in enumerate(('stdin', 'stdout', 'stderr')):
        try:
            os.fstat(number)
        except OSError:
            # the new file gets the lowest free number, which is ``number``
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, 'r' if name == 'stdin' else 'w', closefd=False))


def _run(command: str, options: argparse.Namespace) -> int:
    try:
        code: int = options.run(options)
    except SystemExit as error:  # raised by a task or method; exit code 0 would look like success
        # ``code`` is lost where the exception came from another process, its text is not
        print(f'{command}: the task or method called sys.exit({error}); it must not end the '
              'program', file=sys.stderr)
        return 1
    return code


if __name__ == '__main__':
    sys.exit(main())
