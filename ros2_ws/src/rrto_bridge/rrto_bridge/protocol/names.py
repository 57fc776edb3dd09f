"""Creates and checks the names that client and server use on the ROS graph."""

from __future__ import annotations

import os
import re

MAX_NAME = 100

# A part of a topic name must not begin with a digit or contain two underscores in a row.
_NAME = re.compile(r'[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*')


def graph_name(text: str) -> str:
    """Turn any name into a valid graph name: '3f2a-1' gives 'n3f2a_1'.

    A valid name stays unchanged.
    """
    name = re.sub(r'[^A-Za-z0-9]+', '_', text).strip('_')[:MAX_NAME].rstrip('_')
    return name if name[:1].isalpha() else f'n{name}'[:MAX_NAME]


def is_graph_name(name: str) -> bool:
    """Return whether `graph_name` leaves the name unchanged."""
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def private_name() -> str:
    """Return the name of a server that only this process's program uses."""
    return f'local_{os.getpid()}'


def is_private(name: str) -> bool:
    """Return whether `private_name` returns such names."""
    return re.fullmatch(r'local_\d+', name) is not None
