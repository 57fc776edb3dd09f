"""The server as a ROS 2 node: parameters, and the models that it has ready."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from fleet_ros.device import torch_device
from fleet_ros.parameters import declare
from rclpy.node import Node

from ..model import zoo
from ..model.pictures import traced_of_images
from ..parameters import ServerSettings
from .server_shell import Server, ServerOptions


class ServerNode(Node):
    """Serves models to robots; `parameters.ServerSettings` says what can be set."""

    error = ''

    def __init__(self, **options: Any) -> None:
        super().__init__('lopinfer_server', **options)
        settings = declare(self, ServerSettings)
        if settings.threads:
            torch.set_num_threads(settings.threads)
        folder = Path(settings.directory or '~/.cache/lopinfer').expanduser()
        self.server = Server(self, ServerOptions(
            folder, str(torch_device(settings.device)), limits=settings, link=settings.shaped_link,
            recording=settings.open_recording()))
        for name in filter(None, settings.models.split(',')):
            self.get_logger().info(f'preparing {name}')
            self.server.add(traced_of_images(name.strip(), zoo.IMAGE[2:]))
        self.get_logger().info('serving')

    def close(self) -> None:
        """Stop the threads."""
        self.server.close()
