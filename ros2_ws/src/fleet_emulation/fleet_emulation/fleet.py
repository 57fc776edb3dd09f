"""Runs the processes of a fleet in an emulated network, each in its own network namespace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from fleet_env.settings.base import changed
from fleet_env.settings.fleet import FleetConfig
from fleet_ros.environment import dds_environment
from rog_cli.launching.processes import FleetProcesses

from .network import INTERFACE, SERVER, EmulatedNetwork, without_shaping

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
        """Start the traces when all robots have joined, or `JOIN_LIMIT` seconds after the first."""
        if self.network.began or status is None:
            return
        training = {robot.robot for robot in status.robots if robot.state != 'joining'}
        if training >= set(self.network.robots) or status.elapsed > JOIN_LIMIT:
            self.network.begin()


@contextmanager
def emulated_fleet(fleet: FleetConfig, out: Path, names: Iterable[str], resume: bool = False
                   ) -> Iterator[EmulatedFleet]:
    """Set up an emulated network, yield the fleet's processes in it, and remove the network.

    :param fleet, out, names, resume: see `FleetProcesses`.
    :raises NetworkError: the network cannot be set up.
    """
    with EmulatedNetwork(fleet, out) as network:
        yield EmulatedFleet(network, out, names, resume)
