"""`ros2 run fleet_policy policy`: run a policy on a robot."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from fleet_ros.ending import Interruption
from fleet_ros.exposure import look_before
from fleet_ros.process import run, spin_until

PACKAGES = ('fleet_policy', 'lopinfer_node', 'rog_tasks')


def main(args: Sequence[str] | None = None) -> int:
    """Run the node until it is stopped; the exit code is 0 for a clean end."""
    return run(_build, _serve, args, PACKAGES, lambda given: look_before('policy', '/', given),
               'fleet_policy.parameters:PolicySettings')


def _build() -> Any:
    print("the policy's node starts: some 5 s, to load PyTorch and the policy", file=sys.stderr,
          flush=True)
    from .node import PolicyNode
    return PolicyNode()


def _serve(node: Any, interruption: Interruption) -> int:
    spin_until(node, lambda: node.done, interruption, node.interrupt)
    return 0


if __name__ == '__main__':
    sys.exit(main())
