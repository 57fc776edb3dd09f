"""Use ROG from a training loop of one's own: replace the optimizer."""

from __future__ import annotations

import dataclasses
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

        ``options``: ``data``, see `RogOptimizer`; and lr, momentum, weight_decay, nesterov,
        granularity and codec, where they are to differ from the parameters of the node.
        """
        node, data = self.node, options.pop('data', None)
        if 'lr' in options:
            options['learning_rate'] = options.pop('lr')
        sgd, config = ({f.name for f in dataclasses.fields(c)} for c in (node.sgd, node.transfer))
        if unknown := sorted(options.keys() - sgd - config):
            raise TypeError(f'optimizer() takes no {", ".join(unknown)}')
        return RogOptimizer(
            model, node, robot=node.robot, incarnation=node.incarnation, data=data,
            config=dataclasses.replace(node.transfer, **{
                name: value for name, value in options.items() if name in config}),
            sgd=dataclasses.replace(node.sgd, **{
                name: value for name, value in options.items() if name in sgd}))

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
