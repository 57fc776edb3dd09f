"""Conversion between `Frame`, `SendFrame` and `SendAck` and the ROS messages of rrto_msgs."""

from __future__ import annotations

import array
from typing import Any

from rrto_msgs import msg

from .messages import SendAck, SendFrame
from .stream import Frame


def frame_of(message: Any) -> Frame:
    """Return the `Frame` that a ROS message contains."""
    return Frame(message.number, message.last, memoryview(message.data).cast('B'))


def to_ros(action: SendFrame | SendAck) -> Any:
    """Return the ROS message for a `SendFrame` or a `SendAck`."""
    if isinstance(action, SendAck):
        return msg.Ack(incarnation=action.incarnation, number=action.number, error=action.error)
    frame = action.frame
    data = array.array('B')
    data.frombytes(frame.data)   # faster than array('B', frame.data), which copies byte by byte
    return msg.Frame(incarnation=action.incarnation, number=frame.number, last=frame.last,
                     data=data)
