"""Runs the processes of a fleet in an emulated network, each in its own network namespace."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fleet_env.settings import changed
from fleet_ros.environment import dds_environment

from .emulated_network import INTERFACE, SERVER, EmulatedNetwork, without_shaping
from .processes import FleetProcesses

# The traces begin at most this many seconds after the first robot has joined, even if other
# robots have not joined.
JOIN_LIMIT = 30.0


class EmulatedFleet(FleetProcesses):
    """Starts the server and the robots in network namespaces.

    For these processes, emulated links look like real links.
    """

    apart = True

    def __init__(self, network: EmulatedNetwork, out: Path, names: Iterable[str],
                 resume: bool = False) -> None:
        super().__init__(without_shaping(network.fleet), out, names, resume)
        self.network = network

    def place(self, name: str) -> AbstractContextManager[object]:
        """Return a context that enters the network namespace of the server or of a robot."""
        return self.network.inside(name)

    def reach(self, name: str) -> dict[str, str]:
        """Return the environment variables that a process needs for DDS in its namespace."""
        with self.place(name):
            return dds_environment(changed(self.fleet.network, interface=INTERFACE),
                                   robot=name != SERVER)

    def follow(self, status: Any) -> None:
        """Start the traces when all robots have joined, or after `JOIN_LIMIT` seconds."""
        if self.network.began or status is None:
            return
        training = {robot.robot for robot in status.robots if robot.state != 'joining'}
        if training >= set(self.network.robots) or status.elapsed > JOIN_LIMIT:
            self.network.begin()
