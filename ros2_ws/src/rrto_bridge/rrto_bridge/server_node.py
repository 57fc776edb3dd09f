"""The server as a ROS 2 node."""

from __future__ import annotations

import socket
from typing import Any

from fleet_ros.parameters import declare
from rclpy.node import Node

from .discovery import wait_for_servers
from .errors import ConfigError
from .names import graph_name
from .parameters import ServerSettings
from .server_shell import Server


class ServerNode(Node):
    """Serves programs; `parameters.ServerSettings` says what can be set."""

    def __init__(self, **options: Any) -> None:
        super().__init__('rrto_server', **options)
        settings = declare(self, ServerSettings)
        settings.shaped_link()    # a trace that can not be read is an error now
        name = graph_name(settings.name or socket.gethostname())
        if name in wait_for_servers(self, wanted=name):
            raise ConfigError(f'there is a server {name!r} in this DDS domain; choose another name')
        self.server = Server(self, name, settings)
        self.get_logger().info(f'serving as {name} on {self.server.device}')

    def close(self) -> None:
        """End the programs' processes."""
        self.server.close()
