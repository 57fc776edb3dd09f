"""Run a node's callbacks on a separate thread beside the program."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node


@contextmanager
def until_shut_down(context: Context) -> Iterator[None]:
    """Leave the block quietly when the context is shut down while an executor spins in it."""
    try:
        yield
    # RCLError, a RuntimeError, if the shutdown comes while the executor uses the context.
    except (ExternalShutdownException, RuntimeError):
        if context.ok():
            raise


class Spinning:
    """Runs the callbacks of ``node`` until `close`, or until its context is shut down."""

    def __init__(self, node: Node) -> None:
        self._context = node.context
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(node)
        self._thread = threading.Thread(target=self._spin, name=node.get_name(), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, after the running callback has ended. Call this before the node is destroyed.

        Do not call this from a callback.
        """
        # rclpy's shutdown destroys objects that a spin in another thread waits on.
        self._executor.create_task(self._executor.shutdown)
        self._thread.join()
        self._executor.shutdown()

    def _spin(self) -> None:
        with until_shut_down(self._context):
            self._executor.spin()
