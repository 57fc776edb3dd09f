"""The server as a ROS 2 node."""

from __future__ import annotations

import socket
from typing import Any

from fleet_ros.managed import ManagedNode
from fleet_ros.parameters import declare

from .names import graph_name
from .parameters import ServerSettings
from .server_shell import Server


class ServerNode(ManagedNode):
    """Serves programs; `parameters.ServerSettings` says what can be set.

    While it is not active it refuses new programs; those that are connected go on.
    """

    packages = ('rrto_bridge',)

    def __init__(self, **options: Any) -> None:
        super().__init__('rrto_server', ServerSettings, **options)

    def configure(self) -> None:
        """Have PyTorch ready and declare topics; programs are refused yet."""
        settings = declare(self, ServerSettings)
        settings.shaped_link()    # a trace that can not be read is an error now
        name = graph_name(settings.name or socket.gethostname())
        self.server = Server(self, name, settings)
        self.held.callback(self.server.close)
        self.server.pause(True)

    def activate(self) -> None:
        """Serve."""
        self.server.pause(False)
        self.get_logger().info(f'serving as {self.server.name} on {self.server.device}')

    def deactivate(self) -> None:
        """Refuse new programs."""
        self.server.pause(True)
