"""`ros2 run rog_worker worker`: one robot of the fleet."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from fleet_ros.ending import Interruption
from fleet_ros.exposure import look_before
from fleet_ros.process import fail, run, spin_until

LINGER = 1.0  # s in which the last receipt is repeated, or a gradient may still be computed


def main(args: Sequence[str] | None = None) -> int:
    """Run the node until the run is over; the exit code is 0 for a clean end."""
    return run(_build, _serve, args, ('rog_core', 'rog_tasks', 'rog_ros', 'rog_worker'),
               lambda given: look_before('worker', '/', given))


def _build() -> Any:
    import torch
    from rog_core.warm_up import warm_up

    from .node import WorkerNode

    torch.set_num_threads(1)
    node = WorkerNode()
    warm_up()  # once the robot has joined, compiling would hold up its heartbeat
    return node


def _serve(node: Any, interruption: Interruption) -> int:
    from rog_core.errors import RogError
    from rog_tasks.errors import TaskError

    from .training import train

    stop = threading.Event()
    finished = threading.Event()

    def compute() -> None:
        try:
            train(node, stop)
        except (RogError, TaskError) as error:
            node.error = str(error)
        except Exception as error:
            node.error = f'the task failed: {type(error).__name__}: {error}'
            if not stop.is_set():  # else the node may be gone, which is what went wrong
                raise
        finally:
            finished.set()

    leave_at = math.inf

    def interrupt() -> None:
        nonlocal leave_at
        leave_at = time.monotonic() + LINGER
        stop.set()
        node.leave()

    threading.Thread(target=compute, name='training', daemon=True).start()
    spin_until(node, lambda: finished.is_set() or time.monotonic() >= leave_at, interruption,
               interrupt)
    node.report(state='stopped')
    if not stop.is_set() and not node.error:
        until = time.monotonic() + LINGER
        spin_until(node, lambda: time.monotonic() >= until, interruption)
    error = '' if stop.is_set() else node.error
    return fail(error) if error else 0


if __name__ == '__main__':
    sys.exit(main())
