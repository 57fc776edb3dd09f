"""Use ROG in your own training loop, by replacing its optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import fleet_ros  # noqa: F401  # before rclpy: it checks the shared memory
import rclpy
import torch
from fleet_env.settings.base import changed
from fleet_ros.ending import ended_by_signals, signals_held
from fleet_ros.environment import refuse_false_security
from fleet_ros.exposure import look_before
from fleet_ros.refusal import without_traceback
from fleet_ros.spinning import Spinning
from rclpy.parameter import Parameter
from rclpy.signals import SignalHandlerOptions
from rog_core.errors import ConfigError
from rog_core.protocol.config import SgdConfig, TransferConfig
from rog_core.worker.optimizer import RogOptimizer
from rog_ros.parameters import robot_name

from .node import NoServerError, WorkerNode

__all__ = ['Connection', 'NoServerError', 'connect']


class Connection:
    """A worker node that spins on its own thread while the program computes."""

    def __init__(self, robot: str) -> None:
        self.node = WorkerNode(namespace=robot, parameter_overrides=[
            # configure the node now, because `optimizer` needs its settings
            Parameter('autostart', value=True)])
        self._spinning = Spinning(self.node)

    def optimizer(self, model: torch.nn.Module, **options: Any) -> RogOptimizer:
        """Wait for the server; return the optimizer that trains ``model`` with the fleet.

        :param options: ``data``, see `RogOptimizer`; and training settings that replace the node's
            parameters: lr, momentum, weight_decay, nesterov, granularity, codec.
        :raises NoServerError: no server has accepted this robot within `connect`'s ``timeout``.
        :raises ConfigError: a setting is not allowed, or the server refuses this robot or model.
        """
        node, data = self.node, options.pop('data', None)
        if node.machine is not None and node.machine.server:
            raise ConfigError('a connection makes one optimizer, and this one has made it: leave '
                              'the fleet (the end of `with connect(...)`), and connect again')
        if 'lr' in options:
            options['learning_rate'] = options.pop('lr')
        settings = changed(node.settings, training=options)
        made = RogOptimizer(model, node, robot=node.robot, incarnation=node.incarnation, data=data,
                            config=TransferConfig.of(settings), sgd=SgdConfig.of(settings))
        if node.error:
            raise ConfigError(f'{node.robot} cannot join the fleet: {node.error}')
        return made

    def report(self, loss: float = math.nan, accuracy: float = math.nan) -> None:
        """Report loss and accuracy; an omitted value stays as it was last reported.

        The next status carries the values to `rog status` and to the records of the run.

        :param loss: loss of the last batch.
        :param accuracy: accuracy of the present model, 0 to 1.
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
        if self.node.context.ok():
            self.node.reports.wait_until_heard()
        self.node.destroy_node()


@contextmanager
def connect(robot: str, timeout: float | None = None) -> Iterator[Connection]:
    """Connect to the fleet of this DDS domain as ``robot``; if necessary, also initialise rclpy.

    The robot joins the fleet when the program calls `Connection.optimizer`.

    If this function initialises rclpy, it also handles signals: Ctrl+C raises KeyboardInterrupt and
    SIGTERM raises SystemExit, wherever the program waits. The robot then leaves the fleet in an
    orderly way, and no traceback is printed. If the program has initialised rclpy itself, it keeps
    its own handling of signals. When the program shuts rclpy down, waiting calls return and the
    optimizer is `stopped`.

    :param timeout: seconds for which `Connection.optimizer` waits for a server; None: for ever.
    :raises ConfigError: ``timeout`` is not a time, or ``robot`` cannot be a robot's name.
    :raises SettingError: messages could leave this machine, but the fleet has no key.
    :raises FleetFileError: SROS 2 is asked for, and this Fast DDS was built without it.
    """
    if timeout is not None and not 0 <= timeout < math.inf:
        raise ConfigError(f'timeout must be a number of seconds of at least 0, or None to wait for '
                          f'ever, got {timeout}')
    for part in robot.strip('/').split('/'):
        robot_name(part)
    with ExitStack() as held:
        if not rclpy.ok():
            held.enter_context(ended_by_signals())
            with without_traceback('rog'):
                refuse_false_security()
                look_before('worker', f'/{robot}')
            rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
            held.callback(rclpy.try_shutdown)
        with signals_held():
            connection = Connection(robot)
            held.callback(connection.close)
        if timeout is not None:
            connection.node.patience = timeout
        yield connection
