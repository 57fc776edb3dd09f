"""Subscriptions that keep up with bursts of messages, such as the chunks of a transfer.

An executor of rclpy handles one message of a subscription per iteration. Each iteration collects
every entity of the nodes, which takes more time than handling the message
(bench/bench_receiving.py). The events executor of `rclpy.experimental` is cheaper, but lacks the
guard conditions that `fleet_ros.alarm` needs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.exceptions import InvalidHandle
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription

WAIT = 1_000_000_000  # nanoseconds between two checks whether the context is still valid


def subscribe(node: Node, kind: Any, topic: str, callback: Callable[[Any], None],
              profile: QoSProfile) -> Subscription:
    """Create a subscription that handles many waiting messages in one iteration of the executor.

    An iteration passes at most ``profile.depth`` messages to ``callback``, so that the node's
    other callbacks can run.
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


class Receiving:
    """Receives the messages of some topics of a node in a separate thread, until `close`.

    The thread waits only for the subscriptions to these topics. So a message costs less
    time than in an executor, which looks at all entities of its nodes whenever it wakes.

    :param topics: topic -> (type, callback). The callbacks run in this thread, one at a
        time. An error in a callback ends the thread.
    """

    def __init__(self, node: Node, topics: Mapping[str, tuple[Any, Callable[[Any], None]]],
                 profile: QoSProfile) -> None:
        self._node, self._end = node, False
        self._guard = rclpy_implementation.GuardCondition(node.context.handle)
        self._subscriptions = {
            node.create_subscription(kind, topic, callback, profile, callback_group=_Apart()): kind
            for topic, (kind, callback) in topics.items()}
        self._thread = threading.Thread(target=self._receive, name='receiving', daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread after the running callback; do not call this from a callback."""
        self._end = True
        with self._guard:
            self._guard.trigger_guard_condition()
        self._thread.join()
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._guard.destroy_when_not_in_use()

    def _receive(self) -> None:
        handles = [subscription.handle for subscription in self._subscriptions]
        with ExitStack() as used:
            for handle in (*handles, self._guard):
                used.enter_context(handle)
            waiting = rclpy_implementation.WaitSet(
                len(handles), 1, 0, 0, 0, 0, self._node.context.handle)
            used.enter_context(waiting)
            while not self._end:
                waiting.clear_entities()
                for handle in handles:
                    waiting.add_subscription(handle)
                waiting.add_guard_condition(self._guard)
                waiting.wait(WAIT)
                for subscription, kind in self._subscriptions.items():
                    take = subscription.handle.take_message
                    while not self._end and (taken := take(kind, False)) is not None:
                        subscription.callback(taken[0])


class _Apart(CallbackGroup):
    """A callback group that keeps its entities out of the executors of their node."""

    def can_execute(self, entity: Any) -> bool:
        return False

    def beginning_execution(self, entity: Any) -> bool:
        return False

    def ending_execution(self, entity: Any) -> None:
        pass
