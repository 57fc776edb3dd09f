"""`rog view`: show a live fleet, a recorded run or a rosbag2 recording in the browser."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    from fleet_ros.network_options import add_network_options

    parser = verbs.add_parser(
        'view', help='a page in the browser: a live fleet, a run or a recording',
        description='Serve a page with the fleets in this DDS domain, or with the run at PATH. '
                    'Ctrl+C ends the page, not the fleet.')
    parser.add_argument('path', type=Path, nargs='?', metavar='PATH',
                        help='directory of a run, or a rosbag2 recording (folder, .mcap or .db3); '
                             'default: the live fleet')
    parser.add_argument('--host', default='127.0.0.1', help='address to listen at (default: '
                        '%(default)s, reachable only from this machine; 0.0.0.0: all)')
    parser.add_argument('--port', type=_port, default=8765, metavar='N',
                        help='port to listen at (default: %(default)s; 0: any free port)')
    parser.add_argument('--key', default='', metavar='FILE',
                        help="the fleet's key, if it has one (default: FLEET_KEY); it proves the "
                             'statuses of the server and enables the buttons')
    add_network_options(parser)
    parser.set_defaults(run=_run)


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f'a port must be a number from 0 to 65535, got {text}')
    return int(text)


def _run(options: argparse.Namespace) -> int:
    from fleet_link.key import read_key
    from fleet_ros.exposure import key_file
    from fleet_ros.network_options import chosen_network, given_network, join_network
    from rog_core.errors import ConfigError

    recorded: Path | None = options.path
    if recorded is not None:
        unused = ['key'] * bool(options.key) + sorted({*given_network(options)} - {'namespace'})
        if unused:
            raise ConfigError(f'--{unused[0].replace("_", "-")}: it is for a live fleet; leave it '
                              f'out with {recorded}')
    path = '' if recorded is not None else key_file(options.key)
    key = read_key(path) if path else None
    print('rog: makes the page: some seconds', file=sys.stderr, flush=True)
    from fleet_ros.ending import leave_at_exit

    from .live import Live
    from .recorded import Recorded
    from .serve import serve

    if recorded is not None:
        serve(Recorded(recorded, chosen_network(options).namespace), options.host, options.port)
        return 0
    network = join_network(options, quiet=True)
    with Live(network.namespace, key) as live:
        serve(live, options.host, options.port)
    leave_at_exit(0)
    return 0
