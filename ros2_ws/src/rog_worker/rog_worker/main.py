"""`ros2 run rog_worker worker`: one robot of the fleet."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from fleet_ros.ending import FAREWELL, Interruption, importing

with importing():
    from fleet_ros.exposure import look_before
    from fleet_ros.process import fail, run, spin_until


def main(args: Sequence[str] | None = None) -> int:
    """Run the node until the run is over; return 0 if it ended without error."""
    return run(_build, _serve, args, ('rog_core', 'rog_tasks', 'rog_ros', 'rog_worker'),
               lambda given: look_before('worker', '/', given),
               'rog_ros.parameters:WorkerSettings')


def _build() -> Any:
    import torch
    from rog_core.warm_up import warm_up

    from .training import RobotNode

    torch.set_num_threads(1)
    node = RobotNode()
    warm_up()  # compile now: after the robot has joined, compiling would delay the heartbeat
    return node


def _serve(node: Any, interruption: Interruption) -> int:
    leave_at, asked = math.inf, False

    def interrupt() -> None:
        nonlocal leave_at, asked
        leave_at, asked = time.monotonic() + FAREWELL * node.configured, True
        node.shutdown()

    def ended() -> bool:
        if node.done and not asked:  # the node was shut down by a call, not by a signal
            interrupt()
        return node.has_trained or time.monotonic() >= leave_at

    spin_until(node, ended, interruption, interrupt)
    if node.configured:
        node.report(state='stopped')
        node.reports.wait_until_heard()
    if not asked and not node.error:
        until = time.monotonic() + FAREWELL
        spin_until(node, lambda: time.monotonic() >= until, interruption)
    return fail(node.error) if node.error and not asked else 0


if __name__ == '__main__':
    sys.exit(main())
