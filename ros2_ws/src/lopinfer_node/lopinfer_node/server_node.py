"""The server as a ROS 2 node: parameters, and the models that it has ready."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from fleet_ros.link import shaped_link
from fleet_ros.parameters import declare
from rclpy.node import Node

from . import zoo
from .model import trace
from .parameters import SERVER, recording
from .server import Limits
from .server_shell import Server, ServerOptions


class ServerNode(Node):
    """Serves models to robots; `parameters.SERVER` says what can be set."""

    error = ''

    def __init__(self, **options: Any) -> None:
        super().__init__('lopinfer_server', **options)
        settings = declare(self, SERVER)
        if settings.threads:
            torch.set_num_threads(settings.threads)
        torch.empty(0, device=settings.device)  # says at once if there is none
        folder = Path(settings.directory or '~/.cache/lopinfer').expanduser()
        limits = Limits(settings.clients, lease=settings.lease, uploads=settings.uploads)
        self.server = Server(self, ServerOptions(folder, settings.device, limits=limits,
                                                 link=lambda: shaped_link(settings),
                                                 recording=recording(settings)))
        for name in filter(None, settings.models.split(',')):
            self.get_logger().info(f'preparing {name}')
            self.server.add(trace(zoo.load(name.strip()), torch.zeros(zoo.IMAGE)))
        self.get_logger().info('serving')

    def close(self) -> None:
        """Stop the threads."""
        self.server.close()
