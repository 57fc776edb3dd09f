"""`ros2 run rog_worker worker`: one robot of the fleet."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence

import rclpy
import torch
from rog_core.errors import RogError
from rog_core.worker import STOPPED
from rog_ros.process import fail, init, spin_until
from rog_tasks.errors import TaskError

from .node import WorkerNode
from .training import train

LINGER = 1.0  # seconds in which the last receipt is repeated if it is asked for again


def main(args: Sequence[str] | None = None) -> int:
    """Run the node until the run is over; the exit code is 0 for a clean end."""
    torch.set_num_threads(1)
    init(args)
    try:
        node = WorkerNode()
    except (ValueError, RogError) as error:
        rclpy.try_shutdown()
        return fail(str(error))
    stop = threading.Event()
    finished = threading.Event()

    def compute() -> None:
        try:
            train(node, stop)
        except (RogError, TaskError) as error:
            node.error = str(error)
        except Exception as error:
            node.error = f'the task failed: {type(error).__name__}: {error}'
            raise
        finally:
            finished.set()

    def interrupt() -> None:
        stop.set()
        node.leave()

    thread = threading.Thread(target=compute, name='training', daemon=True)
    thread.start()
    spin_until(node, finished.is_set, interrupt)
    node.report(state=STOPPED)
    if not stop.is_set() and not node.error:
        until = time.monotonic() + LINGER
        spin_until(node, lambda: time.monotonic() >= until, lambda: None)
    if node.error:
        node.get_logger().fatal(node.error)
    node.destroy_node()
    rclpy.try_shutdown()
    return 1 if node.error else 0


if __name__ == '__main__':
    sys.exit(main())
