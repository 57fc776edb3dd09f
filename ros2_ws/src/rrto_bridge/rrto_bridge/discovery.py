"""Which servers there are on the graph."""

from __future__ import annotations

import re
import time

from rclpy.node import Node

from .errors import ConfigError
from .names import graph_name

LIMIT = 3.0   # seconds in which a server answers if there is one


def servers(node: Node) -> list[str]:
    """Names of the servers that `node` knows of by now."""
    # A service's name is on the graph as soon as somebody asks for it, so its status counts.
    names = (re.fullmatch(r'/rrto/(\w+)/open', n) for n, _ in node.get_service_names_and_types())
    return sorted(found[1] for found in names
                  if found and node.count_publishers(f'/rrto/{found[1]}/status'))


def wait_for_servers(node: Node, limit: float = 1.0, wanted: str = '', without: str = ''
                     ) -> list[str]:
    """Names of the servers as soon as there is one (or `wanted`), at the latest after `limit` s."""
    end = time.monotonic() + limit
    while True:
        names = [name for name in servers(node) if name != without]
        if (names if not wanted else wanted in names) or time.monotonic() > end:
            return names
        time.sleep(0.02)


def find_server(node: Node, limit: float = LIMIT, wanted: str = '', without: str = '') -> str:
    """Name of a server in the DDS domain, of any or of one; raises ConfigError if none is found.

    ``without``: a name that does not count.
    """
    wanted = graph_name(wanted) if wanted else ''
    names = [n for n in wait_for_servers(node, limit, wanted, without) if wanted in ('', n)]
    if names:
        return names[0]
    name = f' {wanted!r}' if wanted else ''
    raise ConfigError(f'there is no server{name} in this DDS domain; start one with `rrto serve`')
