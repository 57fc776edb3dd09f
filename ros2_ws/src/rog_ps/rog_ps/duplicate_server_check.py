"""Looks for another parameter server in the same namespace, before and after this server starts.

A server that loads its code listens meanwhile. For a server that a launcher forks with its code
loaded, the launcher lets `python -m rog_ps.duplicate_server_check`, with the server's arguments,
listen while the code is loaded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fleet_link.key import read_key
from fleet_ros.exposure import key_file, look_before
from fleet_ros.process import run
from fleet_ros.spinning import Executor
from rclpy.node import Node
from rog_core.errors import ConfigError, shown
from rog_msgs.msg import FleetStatus
from rog_ros import qos
from rog_ros.parameters import SERVER
from rog_ros.servers import Others, gives_way, refusal
from rog_ros.signature import Signature

from .directory import check_directory, run_in

SECONDS = 2.0  # seconds that are enough to find another server, even if one announcement is lost
_LEAST = 0.3   # minimum seconds for reading the messages that arrived during the imports
# Environment variable of a server's process: its launcher has rehearsed the method, and looked for
# another server.
CHECKED = 'ROG_CHECKED'


class DuplicateServerCheck(Node):
    """Listens, before a server starts, for statuses of another server in its namespace.

    The constructor checks the server's out directory, its checkpoint and its key. A fault raises an
    error there, before the imports, which take seconds.
    """

    def __init__(self) -> None:
        self._others = _others()
        self._until = time.monotonic() + SECONDS
        super().__init__('duplicate_server_check', namespace=f'/{SERVER}')
        self._heard: list[Any] = []
        self.create_subscription(FleetStatus, 'fleet_status', self._heard.append, qos.STATUS)

    def listen(self) -> None:
        """Listen until another server is found or the time is over.

        Listen until `SECONDS` after this object was made, and for at least `_LEAST` seconds.

        :raises ConfigError: there is another server.
        """
        executor = Executor(context=self.context)
        executor.add_node(self)
        until = max(self._until, time.monotonic() + _LEAST)
        found = None
        while found is None and (left := until - time.monotonic()) > 0:
            executor.spin_once(timeout_sec=left)
            found = next((s for s in self._heard if self._others.shows(s, time.time())), None)
            self._heard.clear()
        executor.remove_node(self)
        if self._others.refused:
            self.get_logger().warning('a status of another parameter server does not count: '
                                      f'{self._others.refused}')
        if found is not None:
            raise ConfigError(refusal(found, self.get_namespace()))


def _others() -> Others:
    """Read the server's parameters, check its directory, and return who judges statuses for it."""
    node = Node('parameter_server', namespace=f'/{SERVER}', start_parameter_services=False,
                enable_rosout=False)
    try:
        out = node.declare_parameter('out', '').value
        resume = node.declare_parameter('resume', False).value
        key = key_file(node.declare_parameter('security.key', '').value)
    finally:
        node.destroy_node()
    if out:
        check_directory(Path(out), resume)
    return Others(Signature(read_key(key)) if key else None,
                  run_in(Path(out)) if out and resume else 0)


def look(arguments: Sequence[str] | None) -> None:
    """Refuse, before a server's process joins DDS, to leave this machine without a key."""
    look_before('parameter_server', f'/{SERVER}', arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Look for another server of the fleet; return 0 if there is none."""
    def listened() -> Node:
        check = DuplicateServerCheck()
        check.listen()
        return check

    return run(listened, lambda node, interruption: 0, arguments,
               ('rog_core', 'rog_ros', 'rog_ps'), look)


class DuplicateServerWatch:
    """Looks for a second server of the fleet while this server runs.

    If there are two servers, the server that started later ends.

    :param process: number of this server's process in its status messages.
    :param namespace: namespace of this server.
    :param standing: returns the seconds of training and the number of statuses of this server;
        None: it has ended.
    :param dropped: called with the reason why a status does not count.
    :param give_way: called with the reason why this server must end.
    :param log: logger of the node.
    """

    def __init__(self, others: Others, process: int, namespace: str,
                 standing: Callable[[], tuple[float, int] | None],
                 dropped: Callable[[str], None], give_way: Callable[[str], None], log: Any
                 ) -> None:
        self._others, self._process, self._namespace = others, process, namespace
        self._standing, self._dropped, self._give_way, self._log = standing, dropped, give_way, log
        self._born = time.monotonic()

    def on_status(self, message: Any) -> None:
        """Handle a status of a server in the namespace, which can be this server itself."""
        others, standing = self._others, self._standing()
        if standing is None:
            return
        others.refused = ''
        if not others.shows(message, time.time()):
            if others.refused:
                self._dropped('dropped a status of another parameter server: ' + others.refused)
        elif gives_way((*standing, self._process), message, time.monotonic() - self._born):
            self._give_way(refusal(message, self._namespace))
        else:
            self._log.error(
                f'there is a second parameter server at {self._namespace}: '
                f'{shown(message.host, 80)}; robots stay with the one that has accepted them',
                throttle_duration_sec=5.0)


if __name__ == '__main__':
    sys.exit(main())
