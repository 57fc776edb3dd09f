"""`rog control`: stop a running fleet, save it, or change its method; proved by its key."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rclpy
from fleet_ros.spinning import Spinning
from rclpy.node import Node
from rog_core.errors import RogError
from rog_msgs.msg import FleetStatus
from rog_msgs.srv import SaveCheckpoint, SetSync, Stop
from rog_ros import qos
from rog_ros.seal import Key, Signature, read_key, sealed


class ControlError(RogError):
    """The server has not done what it was asked for; the text says why."""


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('control', help='stop a running fleet, save it, change its method')
    sub = parser.add_subparsers(dest='action', required=True, metavar='ACTION')
    stop = sub.add_parser('stop', help='end the run in order')
    stop.set_defaults(call=lambda options: ('stop', Stop, {}))
    save = sub.add_parser('save', help='write a checkpoint')
    save.add_argument('name', nargs='?', default='', metavar='NAME',
                      help="folder below saved/ in the run's directory (default: the run's own)")
    save.set_defaults(call=lambda options: ('save_checkpoint', SaveCheckpoint,
                                            {'name': options.name}))
    sync = sub.add_parser('sync', help='change the synchronisation method')
    sync.add_argument('method', metavar='METHOD', help='for example rsp:4')
    sync.set_defaults(call=lambda options: ('set_sync', SetSync, {'sync': options.method}))
    for one in (stop, save, sync):
        one.add_argument('--key', type=Path, metavar='FILE', help="the fleet's key, if it has one")
        one.add_argument('--timeout', type=float, default=10.0, metavar='S',
                         help='seconds to wait for the server (default: %(default)s)')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    key = None if options.key is None else read_key(options.key)
    rclpy.init()
    node = Node('rog_control')
    spinning = Spinning(node)
    try:
        print(_call(node, key, options.call(options), time.monotonic() + options.timeout))
        return 0
    finally:
        spinning.close()
        node.destroy_node()
        rclpy.try_shutdown()


def _call(node: Node, key: Key | None, call: tuple[str, Any, dict[str, str]], end: float) -> str:
    """Call a service of the server, given as (name, type, fields), and return its answer."""
    service, kind, values = call
    control, proves = key and key.control(), key and Signature(key).proves
    heard: list[Any] = []
    unproved: list[Any] = []

    def on_status(status: Any) -> None:
        (heard if proves is None or proves(status) else unproved)[:] = [status]

    node.create_subscription(FleetStatus, '/rog/fleet_status', on_status, qos.STATUS)
    client = node.create_client(kind, f'/rog/{service}')
    _until(lambda: heard and client.service_is_ready(), end,
           lambda: 'the status of the parameter server is not proved by this key' if unproved
           else 'no parameter server is there')
    request = kind.Request(server=heard[-1].incarnation, time=time.time_ns(), **values)
    future = client.call_async(sealed(control, request))
    _until(future.done, end, lambda: 'the parameter server does not answer')
    answer = future.result()
    if not answer.success:
        raise ControlError(answer.message)
    return str(answer.message)


def _until(condition: Callable[[], Any], end: float, otherwise: Callable[[], str]) -> None:
    while not condition():
        if time.monotonic() >= end:
            raise ControlError(otherwise())
        time.sleep(0.02)
