"""Messages as bytes, as rosbag2 and raw subscriptions have them."""

from __future__ import annotations

from typing import Any, TypeVar

from rclpy._message import Message

MessageT = TypeVar("MessageT")


def serialize_message(message: Any) -> bytes:
    """Return a message as CDR with its encapsulation header."""
    if not isinstance(message, Message):
        raise TypeError(f"no message: {message!r}")
    return message._SERIALIZE(message)


def deserialize_message(serialized_message: bytes, message_type: type[MessageT]) -> MessageT:
    """Return the message that CDR bytes contain.

    :raises ValueError: when they contain no message of this type
    """
    return message_type._DESERIALIZE(bytes(serialized_message))  # type: ignore[attr-defined]
