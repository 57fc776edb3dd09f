"""A subscription that keeps up with chunks of rows.

An executor of rclpy takes one message a turn, and spends most of the time on the turns: it collects
every entity of its nodes for each (bench/bench_receiving.py). The events executor of
`rclpy.experimental` has cheaper turns, but no guard conditions, by which our alarms ring.
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
    """Create a subscription that, once woken, passes on every message that has arrived.

    At most as many as the profile is deep, so that the node's other callbacks get their turn.
    """
    def on_message(message: Any) -> None:
        callback(message)
        for _ in range(profile.depth - 1):
            try:
                with subscription.handle:
                    taken = subscription.handle.take_message(kind, False)
            except InvalidHandle:  # the callback has destroyed it
                return
            if taken is None:
                return
            callback(taken[0])

    subscription = node.create_subscription(kind, topic, on_message, profile)
    return subscription
