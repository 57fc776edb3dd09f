"""The server as a ROS 2 node."""

from __future__ import annotations

import socket
from typing import Any

from fleet_ros.managed import ManagedNode
from fleet_ros.parameters import declare

from ..protocol.names import graph_name
from .parameters import ServerSettings
from .shell import Server


class ServerNode(ManagedNode):
    """Serves programs, with the parameters of `parameters.ServerSettings`.

    While the node is inactive, it refuses new programs; connected programs continue.
    """

    packages = ('rrto_bridge',)

    def __init__(self, **options: Any) -> None:
        super().__init__('rrto_server', ServerSettings, **options)

    def configure(self) -> None:
        """Start the server's processes, which load PyTorch.

        The server does not accept programs yet.
        """
        settings = declare(self, ServerSettings)
        settings.shaped_link()    # raises an error now if the link's trace file cannot be read
        name = graph_name(settings.name or socket.gethostname())
        self.server = Server(self, name, settings)
        self.held.callback(self.server.close)
        self.server.pause(True)

    def activate(self) -> None:
        """Accept programs."""
        self.server.pause(False)
        self.get_logger().info(f'serving as {self.server.name} on {self.server.device}')

    def deactivate(self) -> None:
        """Refuse new programs."""
        self.server.pause(True)
