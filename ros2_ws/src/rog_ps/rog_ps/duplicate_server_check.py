"""Looks for another parameter server in the same namespace, before and after this server starts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fleet_ros.spinning import Executor
from rclpy.node import Node
from rog_core.errors import ConfigError, shown
from rog_msgs.msg import FleetStatus
from rog_ros import qos
from rog_ros.parameters import SERVER
from rog_ros.servers import Others, gives_way, refusal

if TYPE_CHECKING:
    from .node import ParameterServerNode

SECONDS = 2.0  # seconds that are enough to find another server, even if one announcement is lost
_LEAST = 0.3   # minimum seconds for reading the messages that arrived during the imports


class DuplicateServerCheck:
    """Listens, before this server starts, for statuses of another server in its namespace.

    :param others: decides whether a status shows another server.
    """

    def __init__(self, others: Others) -> None:
        self._others = others
        self._until = time.monotonic() + SECONDS
        self._node = Node('duplicate_server_check', namespace=f'/{SERVER}')
        self._heard: list[Any] = []
        self._node.create_subscription(FleetStatus, 'fleet_status', self._heard.append, qos.STATUS)

    def close(self) -> None:
        """Listen until another server is found or the time is over; then destroy the node.

        Listen until `SECONDS` after this object was made, and for at least `_LEAST` seconds.

        :raises ConfigError: there is another server.
        """
        executor = Executor(context=self._node.context)
        executor.add_node(self._node)
        until = max(self._until, time.monotonic() + _LEAST)
        found = None
        while found is None and (left := until - time.monotonic()) > 0:
            executor.spin_once(timeout_sec=left)
            found = next((s for s in self._heard if self._others.shows(s, time.time())), None)
            self._heard.clear()
        executor.remove_node(self._node)
        place = self._node.get_namespace()
        if self._others.refused:
            self._node.get_logger().warning('a status of another parameter server does not count: '
                                            f'{self._others.refused}')
        self._node.destroy_node()
        if found is not None:
            raise ConfigError(refusal(found, place))


class DuplicateServerWatch:
    """Looks for a second server of the fleet while this server runs.

    If there are two servers, the server that started later ends.

    :param process: number of this server's process in its status messages.
    """

    def __init__(self, node: ParameterServerNode, others: Others, process: int) -> None:
        self._node, self._others, self._process = node, others, process
        self._born = time.monotonic()
        node.create_subscription(FleetStatus, 'fleet_status', self._on_status, qos.STATUS)

    def _on_status(self, message: Any) -> None:
        """Handle a status of a server in the namespace, which can be this server itself."""
        node, others = self._node, self._others
        if node.done:
            return
        others.refused = ''
        if not others.shows(message, time.time()):
            if others.refused:
                node.dropped['another server'] += 1
                node.get_logger().warning('dropped a status of another parameter server: '
                                          f'{others.refused}', throttle_duration_sec=5.0)
        elif gives_way((node.elapsed, node.statuses, self._process), message,
                       time.monotonic() - self._born):
            node.error, node.done = refusal(message, node.get_namespace()), True
        else:
            node.get_logger().error(
                f'there is a second parameter server at {node.get_namespace()}: '
                f'{shown(message.host, 80)}; robots stay with the one that has accepted them',
                throttle_duration_sec=5.0)
