"""`rrto status`: show the servers in this DDS domain and the programs that use them."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

from fleet_ros.ending import limit_leaving
from fleet_ros.network_options import add_network_options, join_network

SECONDS = 1.0   # time in seconds for which the command waits for further servers


def add_parser(verbs: Any) -> None:
    """Declare the verb."""
    parser = verbs.add_parser('status', help='show the servers and their programs')
    add_network_options(parser, without=['namespace'])
    parser.set_defaults(call=call)


def call(options: Any) -> int:
    """Run the verb."""
    join_network(options, quiet=True)
    import rclpy
    from fleet_ros import qos
    from rclpy.node import Node
    from rclpy.signals import SignalHandlerOptions
    from rrto_msgs import msg

    from ..protocol.discovery import LIMIT, servers
    # Do not install rclpy's signal handlers: with them, Ctrl+C would raise rclpy's own error below.
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    node = Node('rrto_status')
    heard: dict[str, Any] = {}
    known: set[str] = set()
    begin, said = time.monotonic(), False
    end, alone = begin + LIMIT, True
    while (now := time.monotonic()) < end:
        if alone and not said and now > begin + SECONDS:
            said = True
            print(f'rrto: waiting for a server, at most {LIMIT:g} s', file=sys.stderr, flush=True)
        for name in set(servers(node)) - known:
            known.add(name)
            node.create_subscription(msg.ServerStatus, f'/rrto/{name}/status',
                                     partial(heard.__setitem__, name), qos.STATUS)
        rclpy.spin_once(node, timeout_sec=0.1)
        if alone and heard:
            end, alone = time.monotonic() + SECONDS, False
    for status in heard.values():
        print(f'{status.server}: {status.device}, busy {status.busy:.0%}, '
              f'{status.messages} messages, {status.weights / 2**20:.0f} MiB of weights kept')
        for program, memory in zip(status.programs, status.memory, strict=True):
            print(f'  {program}: {memory / 2**20:.0f} MiB')
    if not heard:
        print(f'no server in DDS domain {node.context.get_domain_id()}; rrto serve starts one, '
              'rog doctor checks the network')
    limit_leaving()
    node.destroy_node()
    rclpy.try_shutdown()
    return 0 if heard else 1
