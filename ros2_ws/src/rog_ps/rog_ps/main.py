"""`ros2 run rog_ps parameter_server`: the fleet's parameter server."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from fleet_ros.ending import Interruption, importing

with importing():
    from fleet_ros.process import fail, run, spin_until

    from .duplicate_server_check import CHECKED, DuplicateServerCheck, look


def main(args: Sequence[str] | None = None) -> int:
    """Run the node until the run is over or is stopped; return 0 if it ended without error."""
    return run(_build, _serve, args, ('rog_core', 'rog_tasks', 'rog_ros', 'rog_ps'),
               look, 'rog_ros.parameters:ServerSettings')


def _build() -> Any:
    # Listen for other servers while the imports run: DDS needs about as long to find a server
    # as the imports take.
    check = None if CHECKED in os.environ else DuplicateServerCheck()
    import torch
    from rog_core.warm_up import warm_up

    from .node import ParameterServerNode

    if check is not None:
        check.listen()
        check.destroy_node()
    torch.set_num_threads(1)
    node = ParameterServerNode()
    # compile now: during a later compilation, waiting robots would consider the server dead
    warm_up()
    return node


def _serve(node: Any, interruption: Interruption) -> int:
    spin_until(node, lambda: node.done, interruption, node.interrupt)
    node.finish()  # needed if the user ended the node before the robots were ready
    node.say_last()
    return fail(node.error) if node.error else 0


if __name__ == '__main__':
    sys.exit(main())
