"""The server as a ROS 2 node."""

from __future__ import annotations

import socket
from typing import Any

from fleet_ros.parameters import declare
from fleet_ros.serving import ServerNode as AnyServerNode

from ..protocol.names import graph_name
from .parameters import ServerSettings
from .shell import Server


class ServerNode(AnyServerNode):
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
        server = Server(self, name, settings)
        self.keep(server)
        self._serves = f'serving as {server.name} on {server.device}'

    def activate(self) -> None:
        """Accept programs."""
        super().activate()
        self.get_logger().info(self._serves)
