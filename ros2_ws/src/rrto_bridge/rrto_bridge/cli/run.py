"""`rrto run -- python app.py`: run a program whose device 'cuda' is the GPU of a server."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory
from typing import Any

from fleet_env.command import how_it_ended
from fleet_env.errors import FleetEnvError
from fleet_env.settings.base import Text, changed, from_flat, knobs
from fleet_link.errors import KeyFileError
from fleet_ros.ending import launched
from fleet_ros.exposure import team_key
from fleet_ros.network_options import add_network_options, join_network
from fleet_ros.own_gpu import HIDES_ALL, OWN_VISIBLE, VISIBLE

from ..client.settings import NONE_HERE, START_LIMIT, STARTING, Settings
from ..program import children
from ..protocol.names import private_name

STOP_LIMIT = 30.0    # seconds after which a server that was told to stop is killed
AT_ONCE = 0.3        # maximum time in seconds to search for a server before the program starts


def add_parser(verbs: Any) -> None:
    """Declare the verb."""
    parser = verbs.add_parser('run', help='run a program whose "cuda" is a server\'s',
                              usage='rrto run [OPTION ...] -- COMMAND ...')
    for knob in knobs(Settings):
        short = ['--key'] * (knob.name == 'security.key')
        parser.add_argument(*short, '--' + re.sub('[._]', '-', knob.name), dest=knob.name,
                            metavar='X',
                            help=knob.help.replace('%', '%%'))
    parser.add_argument('--open', dest='security.open', action='store_const', const='true',
                        help='the same as --security-open true')
    add_network_options(parser, without=['namespace'])  # `Settings` has the namespace option
    parser.add_argument('command', nargs=argparse.REMAINDER, metavar='COMMAND',
                        help='the program and its arguments')
    parser.set_defaults(call=call)


def call(options: Any) -> int:
    """Run the verb; if a server is found at once, this process becomes the program."""
    command = options.command[1:] if options.command[:1] == ['--'] else options.command
    if not command:
        print('rrto: no command given: write rrto run -- python app.py', file=sys.stderr)
        return 2
    # Check the command before the slow search for a server.
    if not shutil.which(command[0]):
        print(f'rrto: {command[0]}: there is no such program, or it is not executable',
              file=sys.stderr)
        return 127
    try:
        settings = from_flat(Settings, {key: Text(text) for key, text in vars(options).items()
                                        if isinstance(text, str)}, '--')
        settings.shaped_link()
        if settings.security.key:   # the program may change its folder
            settings = changed(settings, security={'key': os.path.abspath(settings.security.key)})
        join_network(options, quiet=True)
        team_key(settings.security)   # refuses the network before anything joins it
    except (FleetEnvError, KeyFileError) as error:
        print(f'rrto: {error}', file=sys.stderr)
        return 2
    if settings.server:
        return become(command, settings)
    from ..protocol.discovery import first_of, wait_for_servers
    # To save time, start a server now, while the search for a running server continues.
    access: dict[str, str] = {}
    if settings.security.key:
        access['security.key'] = settings.security.key
    if settings.security.open:
        access['security.open'] = 'true'
    with server_process(**access) as (name, process), contextlib.ExitStack() as search:
        node = search.enter_context(in_domain())
        if wait_for_servers(node, AT_ONCE):
            process.kill()
            process.wait()
            search.close()
            return become(command, settings)
        print(f'rrto: no server was found; starting {name} on this machine takes some seconds',
              file=sys.stderr, flush=True)
        command, environment = for_program(command, changed(settings, server=name))

        def look(program: subprocess.Popen[bytes]) -> None:
            found = first_of(node, lambda: program.poll() is None and process.poll() is None, name)
            search.close()
            if found and found != name:
                print(f'rrto: now {found} was found; it is used instead', file=sys.stderr)
                process.kill()

        return run(command, {**environment, STARTING: str(process.pid)}, look)


def become(command: list[str], settings: Settings) -> int:
    """Replace this process by the program; if that fails, return the exit code."""
    command, environment = for_program(command, settings)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f'rrto: {command[0]}: {error.strerror}', file=sys.stderr)
        return 127


def for_program(command: list[str], settings: Settings) -> tuple[list[str], dict[str, str]]:
    """Return the command and environment that make a server's GPU the device of a program."""
    if os.environ.get(VISIBLE) in HIDES_ALL:
        print(f'rrto: {VISIBLE}={os.environ[VISIBLE]} does not hide the device of a server: start '
              'the program without `rrto run` to compute on the CPU', file=sys.stderr)
    environment = {**os.environ, **settings.to_environment(), VISIBLE: NONE_HERE}
    if os.environ.get(VISIBLE, NONE_HERE) != NONE_HERE:
        environment[OWN_VISIBLE] = os.environ[VISIBLE]
    return children.adapted(command, environment, environment)


@contextlib.contextmanager
def in_domain() -> Iterator[Any]:
    """Return a context with a node that discovers servers."""
    import rclpy
    from rclpy.context import Context
    from rclpy.node import Node
    from rclpy.signals import SignalHandlerOptions
    context = Context()
    rclpy.init(args=[], context=context, signal_handler_options=SignalHandlerOptions.NO)
    node = Node(f'rrto_run_{os.getpid()}', context=context)
    try:
        yield node
    finally:
        node.destroy_node()
        context.try_shutdown()


@contextlib.contextmanager
def own_server(**parameters: float | str) -> Iterator[str]:
    """Return a context in which a server runs on this machine.

    The context begins when the server is found, and yields the name of the server.
    """
    from ..protocol.discovery import servers
    with server_process(**parameters) as (name, process):
        end = time.monotonic() + START_LIMIT
        with in_domain() as node:
            while name not in servers(node):
                if (code := process.poll()) is not None:
                    raise SystemExit('rrto: the server started on this machine '
                                     f'{how_it_ended(code)}; see its output above')
                if time.monotonic() > end:
                    raise SystemExit('rrto: the server started on this machine was not found '
                                     f'within {START_LIMIT:g} s')
                time.sleep(0.02)
        yield name


@contextlib.contextmanager
def server_process(**parameters: float | str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Return a context in which a server runs on this machine.

    The context yields the name and the process of the server.
    """
    name = private_name()
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        settings = [part for key, value in {'name': name, 'directory': folder,
                                            **parameters}.items()
                    for part in ('-p', f'{key}:={value}')]
        process = subprocess.Popen(
            [sys.executable, '-m', 'rrto_bridge.server.main', '--ros-args', *settings,
             '--log-level', 'error'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            start_new_session=True, env={**os.environ, **launched()})
        # The server runs in its own POSIX session, so Ctrl+C reaches only the program.
        try:
            yield name, process
        finally:
            process.terminate()
            try:
                process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):   # it may hang in the kernel
                    process.wait(STOP_LIMIT)


def run(command: list[str], environment: dict[str, str],
        beside: Callable[[subprocess.Popen[bytes]], None] = lambda program: None) -> int:
    """Run a program to its end, and call `beside` with its process after its start.

    Return the program's exit code as a shell does: 128 + n after signal n.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(command, env=environment,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    except OSError as error:
        print(f'rrto: {command[0]}: {error.strerror}', file=sys.stderr)
        return 127
    signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    beside(process)
    code = process.wait()
    return code if code >= 0 else 128 - code
