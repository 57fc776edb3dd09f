"""`rrto serve`: the server node."""

from __future__ import annotations

from typing import Any

from fleet_ros.network_options import add_access_options, add_network_options, join_network


def add_parser(verbs: Any) -> None:
    """Declare the verb."""
    parser = verbs.add_parser('serve', help='serve programs with this machine\'s GPU')
    parser.add_argument('--name', help='name of the server (default: the machine\'s)')
    parser.add_argument('--device', help='cpu, cuda or cuda:N (default: cuda if there is one)')
    parser.add_argument('--memory', type=int, metavar='MIB', help='most memory of one program, MiB')
    parser.add_argument('--programs', type=int, help='most programs at a time')
    parser.add_argument('--lease', type=float, metavar='SECONDS',
                        help='silence after which a program is dropped')
    parser.add_argument('--threads', type=int, help='computing threads')
    add_access_options(parser)
    add_network_options(parser, without=['namespace'])
    parser.set_defaults(call=call)


def call(options: Any) -> int:
    """Run the verb."""
    join_network(options)
    from ..server.main import server_main
    given = [(k, getattr(options, k))
             for k in ('name', 'device', 'memory', 'programs', 'lease', 'threads')]
    given += [('security.key', options.key or None), ('security.open', options.open or None)]
    arguments = [part for key, value in given if value is not None
                 for part in ('-p', f'{key}:={value}')]
    return server_main(['rrto_server', '--ros-args', *arguments])
