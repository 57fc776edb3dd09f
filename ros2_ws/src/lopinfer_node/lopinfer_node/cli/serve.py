"""`lopinfer serve`: run a server for robots until Ctrl+C."""

from __future__ import annotations

import argparse

from fleet_ros.network_options import add_server_options, join_as_server, server_arguments

from ..nodes import server_main


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('serve', help='run the server until Ctrl+C')
    add_models(parser)
    parser.add_argument('--name', default='lopinfer', metavar='NAMESPACE',
                        help='namespace of the server, by which robots name it (default: lopinfer)')
    add_server_options(parser, 'auto', 'most memory for models and open requests, MiB (default: '
                                       '4096)')
    parser.set_defaults(run=_run)


def add_models(parser: argparse.ArgumentParser) -> None:
    """Declare the options for the models that the server loads at start."""
    parser.add_argument('--models', default='', metavar='A,B,...',
                        help='models to load at start; robots send other models')
    parser.add_argument('--weights', default='', metavar='PATH,...',
                        help="weights of these models, in their order: folders of a fleet's run, "
                             'or files of a state_dict (default: their own)')
    parser.add_argument('--follow', default='', metavar='NAMESPACE',
                        help='namespace of a fleet, such as /rog, whose model robots follow: the '
                             'server fetches its versions, so robots need not send them')


def _run(options: argparse.Namespace) -> int:
    join_as_server(options, "LOPInfer's server")
    return server_main(server_arguments(
        options, {'models': options.models, 'weights': options.weights, 'follow': options.follow},
        options.name))
