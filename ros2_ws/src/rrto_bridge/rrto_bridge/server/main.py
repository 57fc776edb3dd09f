"""`ros2 run rrto_bridge rrto_server`: the server node as a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleet_ros.ending import Interruption
from fleet_ros.exposure import look_before
from fleet_ros.process import run, spin_until


def server_main(args: Sequence[str] | None = None) -> int:
    """Serve programs until stopped; return 0 for a clean end."""
    return run(_build_server, _serve, args, ('rrto_bridge',),
               lambda given: look_before('rrto_server', '/', given),
               'rrto_bridge.server.parameters:ServerSettings')


def _build_server() -> Any:
    from .node import ServerNode
    return ServerNode()


def _serve(node: Any, interruption: Interruption) -> int:
    stopped: list[bool] = []
    spin_until(node, lambda: bool(stopped or node.done), interruption,
               lambda: stopped.append(True))
    return 0


if __name__ == '__main__':
    raise SystemExit(server_main())
