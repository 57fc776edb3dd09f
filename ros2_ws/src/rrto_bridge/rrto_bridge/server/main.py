"""`ros2 run rrto_bridge rrto_server`: the server node as a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleet_ros.serving import Kind, serve


def server_main(args: Sequence[str] | None = None) -> int:
    """Serve programs until stopped; return 0 for a clean end."""
    return serve([SERVER], args)


def _build_server(**options: Any) -> Any:
    from .node import ServerNode
    return ServerNode(**options)


SERVER = Kind('rrto_server', ('rrto_bridge',), _build_server,
              'rrto_bridge.server.parameters:ServerSettings')

if __name__ == '__main__':
    raise SystemExit(server_main())
