"""Finds the package that emulates the network of a fleet; robots do not need it."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from rog_core.errors import ConfigError


def emulation(name: str) -> Any:
    """Return a function of the package `fleet_emulation`.

    :param name: `check_rights`, which checks whether this user can emulate a network, or `fleet`,
        a context manager that yields the processes of a fleet in an emulated network.
    :raises ConfigError: the package is not installed.
    """
    found = {entry.name: entry for entry in entry_points(group='rog.emulation')}
    if name not in found:
        raise ConfigError('an emulated network needs the package fleet_emulation, which is not '
                          'installed here: pip install -e ros2_ws/src/fleet_emulation')
    return found[name].load()
