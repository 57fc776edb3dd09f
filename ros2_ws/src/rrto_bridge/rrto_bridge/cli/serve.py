"""`rrto serve`: the server node."""

from __future__ import annotations

from typing import Any

from fleet_ros.network_options import add_server_options, join_as_server, server_arguments


def add_parser(verbs: Any) -> None:
    """Declare the verb."""
    parser = verbs.add_parser('serve', help='serve programs with this machine\'s GPU')
    parser.add_argument('--name', help='name of the server (default: the machine\'s)')
    parser.add_argument('--programs', type=int, help='most programs at a time')
    parser.add_argument('--lease', type=float, metavar='SECONDS',
                        help='silence after which a program is dropped')
    parser.add_argument('--share', choices=('auto', 'always', 'never'),
                        help='whether one process computes what programs do alike (default: auto, '
                             'on a GPU)')
    add_server_options(parser, 'auto', 'most memory of one program, MiB')
    parser.set_defaults(call=call)


def call(options: Any) -> int:
    """Run the verb."""
    join_as_server(options, "RRTO's server")
    from ..server.main import server_main
    return server_main(['rrto_server', *server_arguments(
        options, {name: getattr(options, name) for name in (
            'name', 'programs', 'lease', 'share')})])
