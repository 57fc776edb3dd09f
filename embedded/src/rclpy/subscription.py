"""Subscriptions."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

from rclpy import _dds
from rclpy._reader import ReaderEntity
from rclpy.publisher import endpoint_data
from rclpy.qos import QoSProfile, to_dds


def _takes_info(callback: Callable[..., Any]) -> bool:
    """Whether the callback wants (message, info) and not just the message."""
    try:
        inspect.signature(callback).bind(object())
    except TypeError:
        pass
    except ValueError:
        return False  # a builtin without a signature
    else:
        return False
    try:
        inspect.signature(callback).bind(object(), object())
    except TypeError:
        raise RuntimeError(
            "Subscription.__init__(): callback should be either be callable with one argument "
            "(to get only the message) or two (to get message and message info)"
        ) from None
    return True


class Subscription(ReaderEntity):
    """Receives messages of a topic. Made by Node.create_subscription."""

    def __init__(
        self,
        participant: int,
        dds_topic: str,
        msg_type: Any,
        topic: str,
        callback: Callable[..., Any],
        callback_group: Any,
        qos: QoSProfile,
        raw: bool,
    ) -> None:
        self._with_info = _takes_info(callback)
        type_name, user_data = endpoint_data(msg_type)
        handle = _dds.create_topic(participant, dds_topic, type_name)
        try:
            reader = _dds.create_reader(participant, handle, to_dds(qos, user_data, False))
        finally:
            _dds.delete(handle)
        super().__init__(reader, qos)
        self._callback = callback
        self.callback_group = callback_group
        self.msg_type = msg_type
        self.topic = topic
        self.raw = raw
        self.qos_profile = qos
        self._gid = _dds.guid(reader)

    @property
    def handle(self) -> Subscription:
        """The subscription itself: there is no other handle."""
        return self

    @property
    def topic_name(self) -> str:
        """The topic's fully qualified name."""
        return self.topic

    @property
    def callback(self) -> Callable[..., Any]:
        """What is called with each message."""
        return self._callback

    @callback.setter
    def callback(self, value: Callable[..., Any]) -> None:
        self._with_info = _takes_info(value)
        self._callback = value

    def _invoke(self, sample: tuple[bytes, Any]) -> Any:
        data, info = sample
        message: Any = data
        if not self.raw:
            message = self._decode(self.msg_type, data, self.topic)
            if message is None:
                return None
        if not self._with_info:
            return self._callback(message)
        details = {
            "source_timestamp": info.source_timestamp,
            "received_timestamp": time.time_ns(),
            "publication_sequence_number": None,
            "reception_sequence_number": None,
        }
        return self._callback(message, details)

    def get_publisher_count(self) -> int:
        """Return the number of publishers that are matched."""
        return _dds.matched_writers(self._reader)

    def destroy(self) -> None:
        """Delete it; use Node.destroy_subscription."""
        if not self._destroyed:
            self._destroyed = True
            _dds.delete(self._reader)
