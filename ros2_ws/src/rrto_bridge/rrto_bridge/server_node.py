"""The server as a ROS 2 node."""

from __future__ import annotations

import re
import socket
from typing import Any

import torch
from fleet_ros.device import torch_device
from fleet_ros.parameters import declare
from rclpy.node import Node

from .discovery import wait_for_servers
from .errors import ConfigError
from .parameters import ServerSettings
from .server_shell import Server


class ServerNode(Node):
    """Serves programs; `parameters.ServerSettings` says what can be set."""

    def __init__(self, **options: Any) -> None:
        super().__init__('rrto_server', **options)
        s = declare(self, ServerSettings)
        if s.threads:
            torch.set_num_threads(s.threads)
        device = torch_device(s.device)
        name = s.name or re.sub(r'[^A-Za-z0-9]+', '_', socket.gethostname()).strip('_')
        if name in wait_for_servers(self, wanted=name):
            raise ConfigError(f'there is a server {name!r} in this DDS domain; choose another name')
        self.server = Server(self, name, device, s, s.shaped_link)
        self.get_logger().info(f'serving as {name} on {device}')

    def close(self) -> None:
        """Stop the threads."""
        self.server.close()
