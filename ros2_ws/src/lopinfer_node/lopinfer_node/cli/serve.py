"""`lopinfer serve`: run a server for robots until Ctrl+C."""

from __future__ import annotations

import argparse

from fleet_env.command import at_least_one
from fleet_ros.network_options import add_access_options, add_network_options, join_network

from ..nodes import server_main
from .choice import add_device


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('serve', help='run the server until Ctrl+C')
    parser.add_argument('--models', default='', metavar='A,B,...',
                        help='models to load at start; robots send other models')
    parser.add_argument('--weights', default='', metavar='PATH,...',
                        help="weights of these models, in their order: folders of a fleet's run, "
                             'or files of a state_dict (default: their own)')
    add_device(parser)
    parser.add_argument('--threads', type=at_least_one, metavar='N',
                        help="computing threads (default: PyTorch's own choice)")
    parser.add_argument('--memory', type=at_least_one, metavar='MIB',
                        help='most memory for models and open requests, MiB (default: 4096)')
    parser.add_argument('--name', default='lopinfer', metavar='NAMESPACE',
                        help='namespace of the server, by which robots name it (default: lopinfer)')
    add_access_options(parser)
    add_network_options(parser, without=['namespace'])
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    join_network(options)
    parameters = {'models': options.models, 'weights': options.weights, 'device': options.device,
                  'threads': options.threads or 0, 'memory': options.memory or 0,
                  'security.key': options.key, 'security.open': options.open}
    arguments = ['--ros-args', '-r', f'__ns:=/{options.name.strip("/")}']
    for name, value in parameters.items():
        if value:
            arguments += ['-p', f'{name}:={value}']
    return server_main(arguments)
