"""Publishers."""

from __future__ import annotations

from typing import Any

from rclpy import _dds
from rclpy._message import wire_type
from rclpy.duration import Duration
from rclpy.exceptions import InvalidHandle
from rclpy.qos import QoSProfile, to_dds


def endpoint_data(cls: Any, extra: str = "") -> tuple[str, bytes]:
    """Return the DDS type name of a message class and USER_DATA for its readers and writers."""
    type_name, type_hash = wire_type(cls)
    return type_name, f"{extra}typehash={type_hash};".encode()


class Publisher:
    """Publishes messages on a topic. Made by Node.create_publisher."""

    def __init__(
        self, participant: int, dds_topic: str, msg_type: Any, topic: str, qos: QoSProfile
    ) -> None:
        type_name, user_data = endpoint_data(msg_type)
        dds_topic_handle = _dds.create_topic(participant, dds_topic, type_name)
        try:
            self._writer = _dds.create_writer(
                participant, dds_topic_handle, to_dds(qos, user_data, True)
            )
        finally:
            _dds.delete(dds_topic_handle)
        self.msg_type = msg_type
        self.topic = topic
        self.qos_profile = qos
        self._serialize = msg_type._SERIALIZE
        self._destroyed = False
        self._gid = _dds.guid(self._writer)

    @property
    def handle(self) -> Publisher:
        """The publisher itself: there is no other handle."""
        return self

    @property
    def topic_name(self) -> str:
        """The topic's fully qualified name."""
        return self.topic

    def publish(self, msg: Any) -> None:
        """Publish a message, or its serialised bytes.

        :raises TypeError: when it is neither
        """
        if isinstance(msg, self.msg_type):
            data = self._serialize(msg)
        elif isinstance(msg, bytes):
            data = msg
        else:
            raise TypeError(f"Expected {self.msg_type}, got {type(msg)}")
        code = _dds.write(self._writer, data)
        if code < 0:
            if self._destroyed:
                raise InvalidHandle("cannot use Destroyable because destruction was requested")
            raise _dds.DdsError(
                f"Failed to publish on {self.topic}: {_dds.error_text(code)} "
                "(is the context shut down?)"
            )

    def get_subscription_count(self) -> int:
        """Return the number of subscriptions that receive what is published here."""
        return _dds.matched_readers(self._writer)

    def wait_for_all_acked(self, timeout: Duration | None = None) -> bool:
        """Wait until all reliable subscriptions have all messages; False after the timeout."""
        limit = _dds.INFINITE if timeout is None else timeout.nanoseconds
        return _dds.wait_for_acks(self._writer, limit if limit >= 0 else _dds.INFINITE)

    def assert_liveliness(self) -> None:
        """Do nothing: whoever publishes is alive (only needed with MANUAL_BY_TOPIC)."""

    def destroy(self) -> None:
        """Delete it; use Node.destroy_publisher."""
        if not self._destroyed:
            self._destroyed = True
            _dds.delete(self._writer)
