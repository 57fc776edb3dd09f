"""`rog status`: show a live table of a fleet in this DDS domain, from any machine."""

from __future__ import annotations

import argparse

from fleet_ros.ending import Interruption
from fleet_ros.network_options import add_network_options, join_network

from ..display.view import Monitor, show
from .option_types import seconds


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('status', help='show a live table of the fleet, on any machine')
    parser.add_argument('--once', action='store_true',
                        help='print the table once, when each robot has sent a status, or 3 s '
                        'after the first')
    parser.add_argument('--policies', action='store_true',
                        help="also show what policies' nodes do, with or without a fleet, and the "
                        "bytes of an inference; takes about 1 kB/s of each robot's link")
    parser.add_argument('--timeout', type=seconds, default=10.0, metavar='S',
                        help='seconds to wait for a fleet (default: 10)')
    add_network_options(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    network = join_network(options, quiet=True)
    interruption = Interruption()
    try:
        with interruption.raised(), Monitor(
                network.namespace, policies=options.policies) as monitor:
            return show(monitor, options.once, options.timeout, options.policies)
    except KeyboardInterrupt:
        return 128 + interruption.number
