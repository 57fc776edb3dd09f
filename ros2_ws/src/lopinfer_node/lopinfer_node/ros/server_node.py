"""The server as a ROS 2 node, which declares the parameters and prepares models at the start."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from fleet_ros.managed import ManagedNode
from fleet_ros.parameters import declare

from ..model import zoo
from ..model.pictures import traced_of_images
from ..parameters import ServerSettings
from .server_shell import Server, ServerOptions

DRAIN = 2.0  # maximum seconds that an ending node waits for requests in progress


class ServerNode(ManagedNode):
    """Serves models to robots; `parameters.ServerSettings` declares the parameters.

    An inactive server refuses new requests, but completes the requests in progress. A refused
    robot computes alone.
    """

    packages = ('lopinfer_node',)
    _ends_at = math.inf

    def __init__(self, **options: Any) -> None:
        super().__init__('lopinfer_server', ServerSettings, **options)

    def configure(self) -> None:
        """Prepare the models and declare topics; the server still refuses robots."""
        settings = declare(self, ServerSettings)
        models = settings.chosen_models()
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self.server = Server(self, ServerOptions(
            settings.make_directory(), settings.chosen_devices(), limits=settings,
            link=settings.shaped_link, recording=settings.open_recording(),
            access=settings.security))
        self.held.callback(self.server.close)
        self.server.pause(True)
        for name, weights in models:
            self.get_logger().info(f'preparing {name}')
            self.server.add(traced_of_images(name, zoo.IMAGE[2:], weights=weights))

    def activate(self) -> None:
        """Accept requests of robots."""
        self.server.pause(False)
        self.get_logger().info('serving')

    def deactivate(self) -> None:
        """Refuse new requests."""
        self.server.pause(True)

    def shutdown(self) -> None:
        """Refuse new requests, and let the process end when no request is in progress any more.

        Robots are told, so that they use another server. All this takes at most `DRAIN` seconds.
        """
        if self.configured:
            self.server.leave()
        self._ends_at = time.monotonic() + DRAIN * self.configured
        super().shutdown()

    @property
    def drained(self) -> bool:
        """Return whether the process may end; see `shutdown`."""
        return self.done and (time.monotonic() >= self._ends_at or not self.server.busy)
