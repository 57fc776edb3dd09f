"""The server as a ROS 2 node, which declares the parameters and prepares models at the start."""

from __future__ import annotations

from typing import Any

import torch
from fleet_env.durable import finite
from fleet_models.fetch import Fetched
from fleet_models.reader import Reader, ReaderOptions
from fleet_ros.parameters import declare
from fleet_ros.serving import ServerNode as AnyServerNode

from ..errors import ModelError
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

        if settings.follow:
            self._follow(server, settings)

    def _follow(self, server: Server, settings: ServerSettings) -> None:
        """Keep the weights of each version that a fleet offers."""
        said: dict[str, Any] = {'version': None, 'reason': ''}

        def take(fetched: Fetched) -> None:
            version = fetched.announcement.version
            try:
                server.store.keep_weights(fetched.content)
                said.update(version=version.number, accuracy=version.accuracy, reason='')
            except (ModelError, OSError) as error:
                said['reason'] = f'version {version.number} cannot be kept: {error}'
                self.get_logger().error(said['reason'])
        robot = self.get_namespace().strip('/') or 'lopinfer'
        reader = Reader(ReaderOptions(settings.follow, robot, settings.security),
                        lambda what: '', take, lambda: finite(said))
        self.held.callback(reader.close)

    def activate(self) -> None:
        """Accept requests of robots."""
        super().activate()
        self.get_logger().info(f'serving in {self.get_namespace()}')
