"""The server as a ROS 2 node."""

from __future__ import annotations

import re
import socket
from typing import Any

import torch
from fleet_ros.link import shaped_link
from fleet_ros.parameters import declare
from rclpy.node import Node

from .discovery import wait_for_servers
from .errors import ConfigError
from .parameters import SERVER
from .server import Limits
from .server_shell import Server


class ServerNode(Node):
    """Serves programs; `parameters.SERVER` says what can be set."""

    def __init__(self, **options: Any) -> None:
        super().__init__('rrto_server', **options)
        s = declare(self, SERVER)
        if s.threads:
            torch.set_num_threads(s.threads)
        device = torch.device(s.device or ('cuda' if torch.cuda.is_available() else 'cpu'))
        name = s.name or re.sub(r'[^A-Za-z0-9]+', '_', socket.gethostname()).strip('_')
        if name in wait_for_servers(self, wanted=name):
            raise ConfigError(f'there is a server {name!r} in this DDS domain; choose another name')
        limits = Limits(s.programs, s.memory << 20, s.lease)
        self.server = Server(self, name, device, limits, s.weights << 20, lambda: shaped_link(s))
        self.get_logger().info(f'serving as {name} on {device}')

    def close(self) -> None:
        """Stop the threads."""
        self.server.close()
