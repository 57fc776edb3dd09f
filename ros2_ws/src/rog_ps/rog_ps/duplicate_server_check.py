"""Looks for another parameter server in the same namespace, before this server is built."""

from __future__ import annotations

import time
from typing import Any

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rog_core.errors import ConfigError
from rog_msgs.msg import FleetStatus
from rog_ros import qos
from rog_ros.parameters import SERVER
from rog_ros.servers import Others, refusal

SECONDS = 2.0  # seconds that are enough to find another server, even if one announcement is lost
_LEAST = 0.3   # least time, s, to read the messages that arrived during the imports


class DuplicateServerCheck:
    """Listens in the namespace of the future server; ``others`` decides which statuses count."""

    def __init__(self, others: Others) -> None:
        self._others = others
        self._until = time.monotonic() + SECONDS
        self._node = Node('duplicate_server_check', namespace=f'/{SERVER}')
        self._heard: list[Any] = []
        self._node.create_subscription(FleetStatus, 'fleet_status', self._heard.append, qos.STATUS)

    def close(self) -> None:
        """Listen until `SECONDS` have passed since the start or another server is found; then stop.

        :raises ConfigError: there is another server.
        """
        executor = SingleThreadedExecutor(context=self._node.context)
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
