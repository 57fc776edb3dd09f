"""`ros2 run rog_ps parameter_server`: the fleet's parameter server."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import rclpy
import torch
from fleet_env.errors import RecordError
from rog_core.errors import RogError
from rog_ros.process import fail, init, spin_until
from rog_tasks.errors import TaskError

from .checkpoint import CheckpointError
from .node import ParameterServerNode


def main(args: Sequence[str] | None = None) -> int:
    """Run the node until its time is over or it is stopped; the exit code is 0 for a clean end."""
    torch.set_num_threads(1)
    init(args)
    try:
        node = ParameterServerNode()
    except (ValueError, RogError, TaskError, CheckpointError, RecordError) as error:
        rclpy.try_shutdown()
        return fail(str(error))
    spin_until(node, lambda: node.done, lambda: node.request_stop('interrupted'))
    node.destroy_node()
    rclpy.try_shutdown()
    return 0


if __name__ == '__main__':
    sys.exit(main())
