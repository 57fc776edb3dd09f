"""`rog control`: stop a running fleet, save it, or change its method.

If the fleet has a key, each call is sealed with this key.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from typing import Any

from fleet_link.key import Key, read_key
from fleet_link.seal import Caller
from fleet_ros.exposure import key_file
from fleet_ros.network_options import add_network_options, join_network
from fleet_ros.sealing import ServiceClient
from rog_core.errors import RogError, shown
from rog_msgs.srv import PinModel, SaveCheckpoint, SetSync, Stop
from rog_ros.parameters import SERVER

from ..display.view import Monitor, place
from .option_types import seconds

SERVICES: dict[str, Any] = {'stop': Stop, 'save_checkpoint': SaveCheckpoint, 'set_sync': SetSync,
                            'pin_model': PinModel}
SILENT_SERVER = 'the parameter server does not answer'
HELP = 'rog doctor checks the network'
QUIET = 1.0   # seconds after which a wait is said
UNPROVED = ('; an answer was dropped that this key does not prove: somebody else offers its '
            'services, or it has another version')


class ControlError(RogError):
    """The server refused a request; the message says why."""


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('control',
                              help='stop a running fleet, save it, or change its method')
    sub = parser.add_subparsers(dest='action', required=True, metavar='ACTION')
    stop = sub.add_parser('stop', help='end the run and write its results')
    stop.set_defaults(call=lambda options: ('stop', {}))
    save = sub.add_parser('save', help='write a checkpoint')
    save.add_argument('name', nargs='?', default='', metavar='NAME',
                      help="folder in saved/ of the run's directory (default: the run's directory)")
    save.set_defaults(call=lambda options: ('save_checkpoint', {'name': options.name}))
    sync = sub.add_parser('sync', help='change the synchronisation method')
    sync.add_argument('method', metavar='METHOD', help='for example rsp:4')
    sync.set_defaults(call=lambda options: ('set_sync', {'sync': options.method}))
    for one in (stop, save, sync):
        add_options(one)
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a verb that calls a service of the server."""
    parser.add_argument('--key', default='', metavar='FILE', help="the fleet's key, if it has one "
                        '(default: FLEET_KEY)')
    parser.add_argument('--timeout', type=seconds, default=10.0, metavar='S',
                        help='seconds to wait for the server (default: %(default)s)')
    add_network_options(parser)


def run(options: argparse.Namespace) -> int:
    """Call the service that ``options.call`` names, and print the answer."""
    path = key_file(options.key)
    key = read_key(path) if path else None
    with Monitor(join_network(options, quiet=True).namespace, key) as monitor:
        controls = Controls(monitor, key)
        wait = _Wait(monitor, options.timeout)
        while reason := controls.unable():
            wait.for_more(reason)
        service, values = options.call(options)
        future = controls.call(service, **values)
        while not future.done():
            wait.for_more(controls.silence)
        print(answer(future))
    return 0


class _Wait:
    """Waits for the server, at most ``limit`` seconds in all, and says so after `QUIET`."""

    def __init__(self, monitor: Monitor, limit: float) -> None:
        self._monitor, self._limit, self._begin = monitor, limit, time.monotonic()
        self._said = False

    def for_more(self, otherwise: str) -> None:
        """Receive messages for a moment; if no time is left, raise `ControlError` ``otherwise``."""
        waited = time.monotonic() - self._begin
        if waited >= self._limit:
            raise ControlError(otherwise)
        if waited > QUIET and not self._said:
            self._said = True
            print(f'rog: waiting for the parameter server in {place(self._monitor.namespace)}, at '
                  f'most {self._limit:g} s', file=sys.stderr, flush=True)
        self._monitor.spin(0.02)


class Controls:
    """Calls the control services of a server; ``monitor`` receives the statuses of this server.

    The calls do not block.

    :param key: key of the fleet, if it has one.
    """

    def __init__(self, monitor: Monitor, key: Key | None = None) -> None:
        self._monitor = monitor
        self.silence = SILENT_SERVER  # text of the error if no answer comes
        caller = key and Caller(key.control(), '', secrets.randbits(63))
        self._clients = {
            service: ServiceClient(monitor.node, kind, f'{monitor.namespace}/{SERVER}/{service}',
                                   caller, self._on_unproved)
            for service, kind in SERVICES.items()}

    def unable(self) -> str:
        """Return why no service can be called now; empty if services can be called."""
        if self._monitor.fleet is None and self._monitor.unproved:
            return 'the status of the parameter server is not proved by this key'
        if self._monitor.fleet is None:
            return f'there is no parameter server at {self._monitor.namespace}/{SERVER}; {HELP}'
        ready = all(client.service_is_ready() for client in self._clients.values())
        return '' if ready else f'the services of the parameter server were not found; {HELP}'

    def call(self, service: str, **values: Any) -> Any:
        """Call one of `SERVICES`; return the future of its answer, which :func:`answer` reads.

        If the fleet has a key, the future ignores every answer that is not sealed with this key, or
        that belongs to another call.
        """
        self.silence = SILENT_SERVER
        return self._clients[service].call_async(SERVICES[service].Request(**values))

    def _on_unproved(self, reason: str) -> None:
        self.silence = SILENT_SERVER + UNPROVED


def answer(future: Any) -> str:
    """Return the answer of the server; raise `ControlError` if it refused."""
    response = future.result()
    if not response.success:
        raise ControlError(shown(response.message))
    return shown(response.message)
