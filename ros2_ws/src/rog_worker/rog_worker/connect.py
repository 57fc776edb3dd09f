"""Use ROG in your own training loop: replace the optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rclpy
import torch
from fleet_env.settings import changed
from fleet_ros.exposure import look_before
from fleet_ros.spinning import Spinning
from rclpy.parameter import Parameter
from rog_core.errors import ConfigError
from rog_core.protocol.config import SgdConfig, TransferConfig
from rog_core.worker.optimizer import RogOptimizer

from .node import WorkerNode


class Connection:
    """A worker node that spins on its own thread while the program computes."""

    def __init__(self, robot: str) -> None:
        self.node = WorkerNode(namespace=robot, parameter_overrides=[
            Parameter('autostart', value=True)])  # the program needs its settings now
        self._spinning = Spinning(self.node)

    def optimizer(self, model: torch.nn.Module, **options: Any) -> RogOptimizer:
        """Return the optimizer that trains ``model`` with the fleet; waits for the server.

        ``options``: ``data``, see `RogOptimizer`; and settings of the training that replace the
        node's parameters: lr, momentum, weight_decay, nesterov, granularity, codec.
        """
        node, data = self.node, options.pop('data', None)
        if 'lr' in options:
            options['learning_rate'] = options.pop('lr')
        settings = changed(node.settings, training=options)
        return RogOptimizer(model, node, robot=node.robot, incarnation=node.incarnation, data=data,
                            config=TransferConfig.of(settings), sgd=SgdConfig.of(settings))

    def report(self, loss: float = math.nan, accuracy: float = math.nan) -> None:
        """Report loss and accuracy; a value that is left out keeps its last report.

        The next status carries them to `rog status` and to the records of the run.

        :param loss: of the last batch.
        :param accuracy: of the present model, 0 to 1.
        :raises ConfigError: the accuracy is not from 0 to 1.
        """
        node, loss, accuracy = self.node, float(loss), float(accuracy)
        if not (math.isnan(accuracy) or 0 <= accuracy <= 1):
            raise ConfigError(f'accuracy is {accuracy:g}; it must be from 0 to 1, such as 0.92 for '
                              '92 %')
        if not math.isnan(loss):
            node.loss = loss
        if not math.isnan(accuracy):
            node.evaluation = node.machine.finished if node.machine else 0, accuracy

    def close(self) -> None:
        """Leave the fleet and release the node."""
        self._spinning.close()
        self.node.leave()
        self.node.destroy_node()


@contextmanager
def connect(robot: str) -> Iterator[Connection]:
    """Join the fleet of this DDS domain as ``robot``; initialise rclpy if needed."""
    own = not rclpy.ok()
    if own:
        look_before('worker', f'/{robot}')
        rclpy.init()
    connection = Connection(robot)
    try:
        yield connection
    finally:
        connection.close()
        if own:
            rclpy.try_shutdown()
