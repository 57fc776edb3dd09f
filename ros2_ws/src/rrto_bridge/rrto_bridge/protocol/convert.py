"""Conversion between the frames and acknowledgements of this package and ROS messages."""

from __future__ import annotations

from typing import Any

from fleet_msgs import msg
from fleet_ros.channel import Topics
from fleet_ros.frames import ack_to_ros, frame_to_ros

from . import qos
from .messages import SendAck, SendFrame


def to_ros(action: SendFrame | SendAck) -> Any:
    """Return the ROS message for a `SendFrame` or a `SendAck`."""
    if isinstance(action, SendAck):
        return ack_to_ros(action.ack, action.incarnation, action.error)
    return frame_to_ros(action.frame, action.incarnation)


def _payload(action: SendFrame | SendAck) -> int:
    return len(action.frame.data) if isinstance(action, SendFrame) else 0


PROGRAM = Topics({SendFrame: (msg.Frame, 'up'), SendAck: (msg.FrameAck, 'down_ack')},
                 {msg.Frame: 'down', msg.FrameAck: 'up_ack'}, to_ros, _payload, qos.STREAM)
SERVER = Topics({SendFrame: (msg.Frame, 'down'), SendAck: (msg.FrameAck, 'up_ack')},
                {msg.Frame: 'up', msg.FrameAck: 'down_ack'}, to_ros, _payload, qos.STREAM)
