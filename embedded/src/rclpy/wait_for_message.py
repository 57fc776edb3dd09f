"""Wait for one message, without a subscription of one's own."""

from __future__ import annotations

import time
from typing import Any

from rclpy import _dds
from rclpy.qos import QoSProfile


def wait_for_message(
    msg_type: Any,
    node: Any,
    topic: str,
    *,
    qos_profile: QoSProfile | int = 1,
    time_to_wait: float = -1,
) -> tuple[bool, Any]:
    """Return (True, message), or (False, None) after the time or a shutdown. Needs no executor.

    :param qos_profile: a profile, or a history depth
    :param time_to_wait: seconds, for ever when negative
    """
    end = None if time_to_wait < 0 else time.monotonic() + time_to_wait
    # No executor knows this subscription, so none takes the message away.
    try:
        subscription = node._subscribe(msg_type, topic, lambda _: None, qos_profile, None, False)
    except _dds.DdsError:
        if node.context.ok():
            raise
        return False, None  # the context was shut down at this moment
    waiter = _dds.WaitSet()
    node.context.on_shutdown(waiter.wake)
    try:
        alive = waiter.attach(subscription._reader, 1)
        while alive and node.context.ok():
            subscription._fresh = True
            while subscription._fill():
                data, _ = subscription._pending.popleft()
                message = subscription._decode(msg_type, data, topic)
                if message is not None:
                    return True, message
            left = _dds.INFINITE if end is None else int((end - time.monotonic()) * 1e9)
            if left <= 0:
                break
            waiter.wait(left)
            _dds.take_status(subscription._reader, _dds.DATA_AVAILABLE)
        return False, None
    finally:
        waiter.close()
        node._unsubscribe(subscription)
