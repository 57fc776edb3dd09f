"""The server as a ROS 2 node, which declares the parameters and prepares models at the start."""

from __future__ import annotations

from typing import Any

import torch
from fleet_ros.parameters import declare
from fleet_ros.serving import ServerNode as AnyServerNode

from ..model import zoo
from ..model.pictures import traced_of_images
from ..parameters import ServerSettings
from .server_shell import Server, ServerOptions


class ServerNode(AnyServerNode):
    """Serves models to robots; `parameters.ServerSettings` declares the parameters.

    A robot that the server refuses computes alone.
    """

    packages = ('lopinfer_node',)

    def __init__(self, **options: Any) -> None:
        super().__init__('lopinfer_server', ServerSettings, **options)

    def configure(self) -> None:
        """Prepare the models and declare topics; the server still refuses robots."""
        settings = declare(self, ServerSettings)
        models = settings.chosen_models()
        if settings.threads:
            torch.set_num_threads(settings.threads)
        server = Server(self, ServerOptions(
            settings.make_directory(), settings.chosen_devices(), limits=settings,
            link=settings.shaped_link, recording=settings.open_recording(),
            access=settings.security))
        self.keep(server)
        for name, weights in models:
            self.get_logger().info(f'preparing {name}')
            server.add(traced_of_images(name, zoo.IMAGE[2:], weights=weights))

    def activate(self) -> None:
        """Accept requests of robots."""
        super().activate()
        self.get_logger().info(f'serving in {self.get_namespace()}')
