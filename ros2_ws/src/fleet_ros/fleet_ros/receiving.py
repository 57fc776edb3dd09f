"""A subscription that keeps up with chunks of rows.

An executor of rclpy handles one message of a subscription per iteration. An iteration costs more
time than the message, because it collects every entity of the nodes (bench/bench_receiving.py). The
events executor of `rclpy.experimental` is cheaper, but lacks guard conditions, which alarms need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.exceptions import InvalidHandle
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription


def subscribe(node: Node, kind: Any, topic: str, callback: Callable[[Any], None],
              profile: QoSProfile) -> Subscription:
    """Create a subscription that passes on all waiting messages each time it wakes.

    Each time it passes on at most ``profile.depth`` messages, so that the node's other callbacks
    can run.
    """
    def on_message(message: Any) -> None:
        callback(message)
        for _ in range(profile.depth - 1):
            try:
                with subscription.handle:
                    taken = subscription.handle.take_message(kind, False)
            except InvalidHandle:  # the callback has destroyed the subscription
                return
            if taken is None:
                return
            callback(taken[0])

    subscription = node.create_subscription(kind, topic, on_message, profile)
    return subscription
