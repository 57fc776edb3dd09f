"""Conversion between the frames and acknowledgements of this package and ROS messages."""

from __future__ import annotations

from typing import Any

from fleet_ros.channel import Topics
from fleet_ros.sealing import octets
from rrto_msgs import msg

from . import qos
from .messages import SendAck, SendFrame
from .stream import Ack, Frame


def frame_of(message: Any) -> Frame:
    """Return the `Frame` that a ROS message contains."""
    return Frame(message.packet, message.number, message.last, memoryview(message.data).cast('B'))


def ack_of(message: Any) -> Ack:
    """Return the `Ack` that a ROS message contains."""
    return Ack(message.packet, message.mask, message.arrived, message.held, message.number,
               message.limit)


def to_ros(action: SendFrame | SendAck) -> Any:
    """Return the ROS message for a `SendFrame` or a `SendAck`."""
    if isinstance(action, SendAck):
        if (ack := action.ack) is None:
            return msg.Ack(incarnation=action.incarnation, error=action.error)
        return msg.Ack(incarnation=action.incarnation, packet=ack.packet, mask=ack.mask,
                       arrived=ack.arrived, held=ack.held, number=ack.number, limit=ack.limit,
                       error=action.error)
    frame = action.frame
    return msg.Frame(incarnation=action.incarnation, packet=frame.packet, number=frame.number,
                     last=frame.last, data=octets(frame.data))


def _payload(action: SendFrame | SendAck) -> int:
    return len(action.frame.data) if isinstance(action, SendFrame) else 0


PROGRAM = Topics({SendFrame: (msg.Frame, 'up'), SendAck: (msg.Ack, 'down_ack')},
                 {msg.Frame: 'down', msg.Ack: 'up_ack'}, to_ros, _payload, qos.STREAM)
SERVER = Topics({SendFrame: (msg.Frame, 'down'), SendAck: (msg.Ack, 'up_ack')},
                {msg.Frame: 'up', msg.Ack: 'down_ack'}, to_ros, _payload, qos.STREAM)
