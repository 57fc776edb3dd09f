"""`rrto run -- python app.py`: a program whose 'cuda' is a server's."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..settings import MODES, ON_LOSS, Settings

START_LIMIT = 60.0   # seconds in which a server on this machine has to be there


def add_parser(verbs: Any) -> None:
    """Declare the verb."""
    parser = verbs.add_parser('run', help='run a program whose "cuda" is a server\'s',
                              usage='rrto run [OPTION ...] -- COMMAND ...')
    parser.add_argument('--mode', choices=MODES, default='replay',
                        help='how calls travel (default: %(default)s)')
    parser.add_argument('--server', default='', metavar='NAME',
                        help='name of the server; without it one is looked for, and if there is '
                             'none, started on this machine')
    parser.add_argument('--on-loss', choices=ON_LOSS, default='error',
                        help='when the server is lost: end with an error, or go on on this machine')
    parser.add_argument('--namespace', default='', help="namespace of the program's node")
    parser.add_argument('--link-trace', default='',
                        help='emulate a link: indoor, outdoor or a file')
    parser.add_argument('--link-rate', type=float, default=0.0, help='emulate a link, Mbit/s')
    parser.add_argument('--link-latency', type=float, default=0.0,
                        help='delay of the emulated link per direction, s')
    parser.add_argument('--link-epoch', type=float, default=0.0,
                        help='wall-clock time at which the trace begins, s')
    parser.add_argument('command', nargs=argparse.REMAINDER, metavar='COMMAND')
    parser.set_defaults(call=call)


def call(options: Any) -> int:
    """Run the verb; becomes the program where it can."""
    command = options.command[1:] if options.command[:1] == ['--'] else options.command
    if not command:
        print('rrto: no command; write rrto run -- python app.py', file=sys.stderr)
        return 2
    if not shutil.which(command[0]):  # said before a server is looked for, or started
        print(f'rrto: {command[0]}: there is no such program, or it may not be executed',
              file=sys.stderr)
        return 127
    settings = Settings(**{name: getattr(options, name) for name in vars(Settings())})
    if settings.server or find(1.0):
        environment = program_environment(settings)
        try:
            os.execvpe(command[0], command, environment)
        except OSError as error:
            print(f'rrto: {command[0]}: {error.strerror}', file=sys.stderr)
            return 127
    with own_server() as name:
        print(f'rrto: no server was found; {name} was started on this machine', file=sys.stderr)
        return run(command, program_environment(settings, name))


def program_environment(settings: Settings, server: str = '') -> dict[str, str]:
    """The environment in which a program gets the device."""
    ours = str(Path(__file__).parents[1] / 'bootstrap')
    rest = os.environ.get('PYTHONPATH')
    found = {**settings.to_environment(), 'PYTHONPATH': ours + (os.pathsep + rest if rest else ''),
             'CUDA_VISIBLE_DEVICES': ''}
    if server:
        found['RRTO_SERVER'] = server
    return {**os.environ, **found}


def find(limit: float, wanted: str = '') -> str:
    """Name of a server (of this one, if given) that is found within `limit` seconds, or ''."""
    import rclpy
    from rclpy.context import Context
    from rclpy.node import Node
    from rclpy.signals import SignalHandlerOptions

    from ..discovery import find_server
    from ..errors import ConfigError
    context = Context()
    rclpy.init(args=[], context=context, signal_handler_options=SignalHandlerOptions.NO)
    node = Node(f'rrto_run_{os.getpid()}', context=context)
    try:
        return find_server(node, limit, wanted)
    except ConfigError:
        return ''
    finally:
        node.destroy_node()
        context.try_shutdown()


@contextlib.contextmanager
def own_server(**parameters: float | str) -> Iterator[str]:
    """A server on this machine for as long as this lasts; yields its name."""
    name = f'local_{os.getpid()}'
    settings = [part for key, value in {'name': name, **parameters}.items()
                for part in ('-p', f'{key}:={value}')]
    process = subprocess.Popen(
        [sys.executable, '-m', 'rrto_bridge.nodes', '--ros-args', *settings, '--log-level',
         'error'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        start_new_session=True)
    # A session of its own: Ctrl+C is the program's business.
    try:
        if not find(START_LIMIT, name):
            raise SystemExit('rrto: the server that was started on this machine is not found')
        yield name
    finally:
        process.terminate()
        process.wait()


def run(command: list[str], environment: dict[str, str]) -> int:
    """Run a program to its end and return its exit code, or die of the signal that it died of."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(command, env=environment,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    except OSError as error:
        print(f'rrto: {command[0]}: {error.strerror}', file=sys.stderr)
        return 127
    signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    code = process.wait()
    return code if code >= 0 else 128 - code
