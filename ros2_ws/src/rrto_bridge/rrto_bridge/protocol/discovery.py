"""Discovery of the servers in the DDS domain."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from rclpy.node import Node

from .errors import ConfigError
from .names import graph_name, is_private

LIMIT = 5.0   # seconds within which a running server is discovered


def servers(node: Node) -> list[str]:
    """Return the names of the servers that `node` has discovered."""
    # Clients of the service `open` also make the service's name visible. Therefore check for
    # a publisher of the status: only a server has one.
    names = (re.fullmatch(r'/rrto/(\w+)/open', n) for n, _ in node.get_service_names_and_types())
    return sorted(found[1] for found in names
                  if found and node.count_publishers(f'/rrto/{found[1]}/status'))


def usable(node: Node, named: str = '') -> list[str]:
    """Return the servers that every program may use, and the one that is `named`.

    A server that `rrto run` has started ends with its program, so it is for this program alone.
    """
    return [name for name in servers(node) if name == named or not is_private(name)]


def wait_for_servers(node: Node, limit: float = 1.0, wanted: str = '') -> list[str]:
    """Wait at most `limit` seconds for a server; return the names of all usable servers found.

    `wanted`: name of the server to wait for; '': any server.
    """
    end = time.monotonic() + limit
    while True:
        names = usable(node, wanted)
        if (names if not wanted else wanted in names) or time.monotonic() > end:
            return names
        time.sleep(0.02)


def first_of(node: Node, goes_on: Callable[[], bool], own: str) -> str:
    """Return the server that is seen first: the `own`, which is starting, or another one.

    A server that runs already is seen before one that is starting, however busy the machine is, so
    there is no other limit. Return '' if none is seen when `goes_on` has become False.
    """
    while True:
        last = not goes_on()
        names = usable(node, own)
        if own in names:
            return own
        if names or last:
            return names[0] if names else ''
        time.sleep(0.02)


def find_server(node: Node, limit: float = LIMIT, wanted: str = '') -> str:
    """Return the name of a server in the DDS domain; raises ConfigError if none is found.

    ``wanted``: name that the server must have; '': any name.
    """
    wanted = graph_name(wanted) if wanted else ''
    names = [n for n in wait_for_servers(node, limit, wanted) if wanted in ('', n)]
    if names:
        return names[0]
    name = f' {wanted!r}' if wanted else ''
    raise ConfigError(f'there is no server{name} in DDS domain {node.context.get_domain_id()}; '
                      'start one with `rrto serve`, and let `rog doctor` check the network')
