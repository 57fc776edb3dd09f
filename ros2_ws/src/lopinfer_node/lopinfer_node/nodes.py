"""`ros2 run lopinfer_node lopinfer_server` and `lopinfer_client`: the two nodes as processes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from fleet_ros.ending import Interruption
from fleet_ros.exposure import look_before
from fleet_ros.process import fail, run, spin_until
from fleet_ros.serving import Kind, serve

PACKAGES = ('lopinfer_node',)


def server_main(args: Sequence[str] | None = None) -> int:
    """Serve models until the process is stopped; return the exit code, 0 for a clean end."""
    return serve([SERVER], args)


def client_main(args: Sequence[str] | None = None) -> int:
    """Answer images with results until the process is stopped; return the exit code, 0 if clean."""
    return run(_build_client, _infer, args, PACKAGES,
               lambda given: look_before('lopinfer_client', '/', given),
               'lopinfer_node.parameters:ClientSettings')


def _build_server(**options: Any) -> Any:
    from .ros.server_node import ServerNode
    # The thread that computes needs Python for a moment after each operator. While messages arrive,
    # it would wait up to 5 ms for it, the default.
    sys.setswitchinterval(0.0005)
    return ServerNode(**options)


def _build_client() -> Any:
    from .ros.client_node import ClientNode
    return ClientNode()


def _infer(node: Any, interruption: Interruption) -> int:
    spin_until(node, lambda: bool(interruption or node.error), interruption)
    return fail(node.error) if node.error else 0


SERVER = Kind('lopinfer_server', PACKAGES, _build_server,
              'lopinfer_node.parameters:ServerSettings')
