"""`fleet serve`: LOPInfer's server and RRTO's as one process, which all robots of a team share."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from fleet_env.command import at_least_one
from fleet_env.errors import SettingError
from fleet_env.settings.base import knobs
from fleet_env.settings.fleet import ROBOT, ReachConfig
from fleet_ros.network_options import (
    SERVERS,
    add_server_options,
    chosen_network,
    join_as_server,
    ros_arguments,
    server_arguments,
)
from lopinfer_node.cli.serve import add_models
from rog_core.errors import shown
from rrto_bridge.protocol.names import is_graph_name

from ..launching import replicas

LONGEST = ROBOT['max_length']
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
    parser.add_argument('--ray', metavar='ADDRESS',
                        help='run the servers in this cluster of Ray (HOST:PORT, auto, or local: '
                             'this machine alone), each with a GPU of its own, or with --device '
                             'cpu without one; Ray starts them again if they fail')
    parser.add_argument('--replicas', type=at_least_one, metavar='N',
                        help='with --ray, number of servers, which are called NAME1 to NAMEN '
                             '(default: 1)')
    add_server_options(parser, 'auto', 'most memory of LOPInfer, and of each program of RRTO, MiB '
                                       '(default: 4096)')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.name and (not is_graph_name(options.name) or len(options.name) > LONGEST):
        raise SettingError('--name must be like edge1: letters a to z, digits and single '
                           'underscores, first a letter, at the end no underscore, at most 64 '
                           f'characters, got {shown(options.name, 80)!r}')
    if options.ray:
        return _in_cluster(options)
    if options.replicas:
        raise SettingError('--replicas needs --ray: without it there is one server')
    join_as_server(options, 'the server of LOPInfer and RRTO')
    from fleet_ros.serving import serve
    from lopinfer_node.nodes import SERVER as LOPINFER
    from rrto_bridge.server.main import SERVER as RRTO

    # RRTO's comes first: it starts a process before this one uses a GPU.
    return serve([
        replace(RRTO, arguments=ros_arguments({'name': options.name,
                                               'programs': options.programs})),
        replace(LOPINFER, arguments=ros_arguments({'models': options.models,
                                                   'weights': options.weights,
                                                   'follow': options.follow}))],
        ['fleet', *server_arguments(options, {}, options.name or NAME)])


def _in_cluster(options: argparse.Namespace) -> int:
    devices = {'auto': 'cuda', 'cuda': 'cuda', 'cpu': 'cpu'}
    if options.device not in devices:
        raise SettingError(f'--device must be cuda or cpu with --ray, which chooses the GPU, got '
                           f'{options.device}')
    chosen_network(options)     # raises an error now if a value is invalid
    given = {'device': devices[options.device],
             'key': options.key and Path(options.key).resolve(),
             **{name: getattr(options, name) for name in (
                 'models', 'weights', 'follow', 'programs', *SERVERS[1:])},
             **{knob.name.replace('_', '-'): getattr(options, f'network.{knob.name}', None)
                for knob in knobs(ReachConfig)}}
    arguments = [word for name, value in given.items() if value not in (None, '')
                 for word in (f'--{name}', str(value))] + ['--open'] * options.open
    names = [f'{options.name or NAME}{k + 1}' for k in range(options.replicas or 1)]
    return replicas.serve(options.ray, names, arguments, int(given['device'] == 'cuda'))
