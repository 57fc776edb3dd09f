"""Runs a node's callbacks on a separate thread, in parallel to the program."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node

from .ending import uninterrupted


@contextmanager
def until_shut_down(context: Context) -> Iterator[None]:
    """End the `with` block without an error if ``context`` is shut down while an executor spins."""
    try:
        yield
    # If the shutdown comes while the executor uses the context, rclpy raises RCLError, which is a
    # RuntimeError.
    except (ExternalShutdownException, RuntimeError):
        if context.ok():
            raise


class Executor(SingleThreadedExecutor):
    """An executor whose constructor a signal may interrupt, without an error when it is deleted."""

    _sigint_gc: Any = None    # read by `__del__`

    def __init__(self, *, context: Context | None = None) -> None:
        with uninterrupted():
            super().__init__(context=context)


class Spinning:
    """Runs the callbacks of ``node`` until `close` or a shutdown of its context."""

    def __init__(self, node: Node) -> None:
        self._context = node.context
        self._executor = Executor(context=node.context)
        self._executor.add_node(node)
        self._thread = threading.Thread(target=self._spin, name=node.get_name(), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread after the running callback has ended.

        Call this before the node is destroyed, and not from a callback.
        """
        # Shut down on the spinning thread itself, because rclpy's shutdown destroys objects for
        # which this thread might still be waiting.
        self._executor.create_task(self._executor.shutdown)
        self._thread.join()
        self._executor.shutdown()

    def _spin(self) -> None:
        with until_shut_down(self._context):
            self._executor.spin()
