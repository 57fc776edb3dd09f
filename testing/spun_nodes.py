"""Nodes that run in the process of a test; the test spins them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rclpy
from fleet_testing import eventually, free_domain
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node


class SpunNodes:
    """Nodes in one context and one DDS domain: ``domain``, or by default a free domain."""

    def __init__(self, domain: int | None = None) -> None:
        self.domain = free_domain() if domain is None else domain
        self.context = Context()
        rclpy.init(args=[], context=self.context, domain_id=self.domain)
        self.executor = SingleThreadedExecutor(context=self.context)

    def add(self, node: Any) -> Any:
        """Add a node, which must use `context`, and spin it from now on; return the node."""
        self.executor.add_node(node)
        return node

    def node(self, name: str, **options: Any) -> Any:
        """Create a plain `rclpy` node and add it; return the node."""
        return self.add(Node(name, context=self.context, **options))

    def spin(self, seconds: float = 0.05) -> None:
        """Handle one event; ``seconds``: maximum time to wait for it."""
        self.executor.spin_once(timeout_sec=seconds)

    def until(self, condition: Callable[[], Any],
              what: Callable[[], str] = lambda: 'the condition') -> None:
        """Spin until the condition holds; see `fleet_testing.eventually`."""
        eventually(condition, what, self.spin)

    def close(self) -> None:
        """Destroy the nodes and their context."""
        for node in list(self.executor.get_nodes()):
            node.destroy_node()
        self.executor.shutdown()
        self.context.try_shutdown()

    def __enter__(self) -> SpunNodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
