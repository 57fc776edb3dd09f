"""Use ROG from a training loop of one's own: replace the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rclpy
import torch
from fleet_ros.spinning import Spinning
from rog_core.optimizer import RogOptimizer

from .node import WorkerNode


class Connection:
    """A worker node that spins on its own thread while the program computes."""

    def __init__(self, robot: str) -> None:
        self.node = WorkerNode(namespace=robot)
        self._spinning = Spinning(self.node)

    def optimizer(self, model: torch.nn.Module, **options: Any) -> RogOptimizer:
        """Return the optimizer that trains ``model`` with the fleet; waits for the server.

        ``options`` are those of `RogOptimizer`: lr, momentum, weight_decay, granularity, codec.
        """
        return RogOptimizer(model, self.node, robot=self.node.robot,
                            incarnation=self.node.incarnation, **options)

    def close(self) -> None:
        """Leave the fleet and release the node."""
        self._spinning.close()
        self.node.leave()
        self.node.destroy_node()


@contextmanager
def connect(robot: str) -> Iterator[Connection]:
    """Join the fleet of this DDS domain as ``robot``; initialises rclpy if nobody has."""
    own = not rclpy.ok()
    if own:
        rclpy.init()
    connection = Connection(robot)
    try:
        yield connection
    finally:
        connection.close()
        if own:
            rclpy.try_shutdown()
