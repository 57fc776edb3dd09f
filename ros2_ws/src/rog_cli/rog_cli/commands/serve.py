"""`fleet serve`: LOPInfer's server and RRTO's as one process, which all robots of a team share."""

from __future__ import annotations

import argparse
from dataclasses import replace

from fleet_env.errors import SettingError
from fleet_ros.network_options import (
    add_server_options,
    join_network,
    ros_arguments,
    server_arguments,
)
from lopinfer_node.cli.serve import add_models
from rrto_bridge.protocol.names import is_graph_name

NAME = 'lopinfer'    # namespace in which robots look for LOPInfer's server by default


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('serve', help='serve all robots until Ctrl+C')
    parser.add_argument('--name', default='', metavar='NAME',
                        help='name by which robots find the server: server:=/NAME (LOPInfer, '
                             'policies), --server NAME (RRTO); default: where they look without '
                             f'one, /{NAME} and any')
    add_models(parser)
    parser.add_argument('--programs', type=int, metavar='N', help='most programs of RRTO at a time')
    add_server_options(parser, 'auto', 'most memory of LOPInfer, and of each program of RRTO, MiB '
                                       '(default: 4096)')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.name and not is_graph_name(options.name):
        raise SettingError('--name must begin with a letter and have letters, digits and single '
                           f"underscores, got '{options.name}'")
    join_network(options)
    from fleet_ros.serving import serve
    from lopinfer_node.nodes import SERVER as LOPINFER
    from rrto_bridge.server.main import SERVER as RRTO

    # RRTO's comes first: it starts a process before this one uses a GPU.
    return serve([
        replace(RRTO, arguments=ros_arguments({'name': options.name,
                                               'programs': options.programs})),
        replace(LOPINFER, arguments=ros_arguments({'models': options.models,
                                                   'weights': options.weights}))],
        ['fleet', *server_arguments(options, {}, options.name or NAME)])
