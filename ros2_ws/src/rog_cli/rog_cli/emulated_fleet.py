"""The processes of a fleet in an emulated network, each in its namespace."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .emulated_network import EmulatedNetwork, without_shaping
from .processes import FleetProcesses

JOIN_LIMIT = 30.0  # s after the first robot has joined: the links become slow without the others


class EmulatedFleet(FleetProcesses):
    """Starts server and robots in the namespaces of a network, whose links are real to them."""

    def __init__(self, network: EmulatedNetwork, out: Path, names: Iterable[str],
                 resume: bool = False) -> None:
        super().__init__(without_shaping(network.fleet), out, names, resume)
        self.network = network

    def place(self, name: str) -> AbstractContextManager[object]:
        """Return the namespace of ``server`` or of a robot."""
        return self.network.inside(name)

    def follow(self, status: Any) -> None:
        """Let the traces begin as soon as all robots train, as in virtual time."""
        if self.network.began or status is None:
            return
        training = {robot.robot for robot in status.robots if robot.state != 'joining'}
        if training >= set(self.network.robots) or status.elapsed > JOIN_LIMIT:
            self.network.begin()
