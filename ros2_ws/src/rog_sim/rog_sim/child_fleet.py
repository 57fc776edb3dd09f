"""Contains `ChildFleet`: a child fleet that acts as a robot of its parent fleet in virtual time.

See `Upstream`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from fleet_env.records.run_recorder import RobotReport
from rog_core.protocol.config import TransferConfig
from rog_core.protocol.messages import Action, Compute
from rog_core.server.server import Server
from rog_core.upstream import Upstream, step_above, worker_above

from .robot import Robot, on_the_air


class ChildFleet:
    """A child fleet with the interface of a `Robot`, for the simulation of the parent fleet.

    The power of the child fleet's server is not counted.

    :param name: name of the child fleet as a robot of the parent fleet.
    :param server, robots: server and robots of the child fleet.
    :param config: settings of the transfers in the parent fleet.
    """

    dropped_until = 0.0  # seconds; a child fleet never drops out
    left = False        # a child fleet never leaves

    def __init__(self, name: str, server: Server, robots: Mapping[str, Robot | ChildFleet],
                 config: TransferConfig, incarnation: int) -> None:
        self.name, self._server, self._robots = name, server, robots
        self.machine = worker_above(server, name, incarnation, config)
        self.store = self.machine.accumulator
        self._upstream = Upstream(server, self.machine)

    def go_on(self, order: Compute) -> None:
        """Carry out an order of the parent's server."""
        self._upstream.go_on(order)

    def account(self, now: float) -> list[Action]:
        """Return the actions of the child fleet's worker in the parent fleet.

        The list is empty if no push is due.
        """
        return step_above(self._upstream, now)

    @property
    def loss(self) -> float:
        """Return the mean loss of the robots; NaN if no robot has a loss."""
        return self._mean('loss')

    def _mean(self, name: str) -> float:
        known = [value for robot in self._robots.values()
                 if not math.isnan(value := getattr(robot, name))]
        return float(np.mean(known)) if known else math.nan

    def report(self, now: float, link_rate: float, state: str = '') -> RobotReport:
        """Return the status of the child fleet.

        Its accuracy is the mean of its robots' accuracies.
        """
        accuracy = self._mean('accuracy')
        return RobotReport(self.name, self.machine.incarnation, loss=self.loss, accuracy=accuracy,
                           evaluated_at=0 if math.isnan(accuracy) else self.machine.finished,
                           link_rate=link_rate, **on_the_air(self.machine, now, state))

    def before(self, message: Any) -> None:
        """Do nothing, because no process computes on this model while the message changes it."""

    def settle(self, now: float) -> None:
        """Do nothing, because the server's energy is not counted."""
