"""Conversion between the packets of a `fleet_link.stream.Stream` and ROS messages."""

from __future__ import annotations

from typing import Any

from fleet_link.stream import Ack, Frame
from fleet_msgs.msg import Frame as FrameMessage
from fleet_msgs.msg import FrameAck as AckMessage

from .sealing import octets


def frame_of(message: Any) -> Frame:
    """Return the `Frame` that a ROS message contains."""
    return Frame(message.packet, message.number, message.last, memoryview(message.data).cast('B'))


def ack_of(message: Any) -> Ack:
    """Return the `Ack` that a ROS message contains."""
    return Ack(message.packet, message.mask, message.arrived, message.held, message.number,
               message.limit)


def frame_to_ros(frame: Frame, incarnation: int) -> Any:
    """Return the ROS message for a frame of the session ``incarnation``."""
    return FrameMessage(incarnation=incarnation, packet=frame.packet, number=frame.number,
                        last=frame.last, data=octets(frame.data))


def ack_to_ros(ack: Ack | None, incarnation: int, error: str = '') -> Any:
    """Return the ROS message for an acknowledgement; ``error``: the session is over, and why."""
    if ack is None:
        return AckMessage(incarnation=incarnation, error=error)
    return AckMessage(incarnation=incarnation, packet=ack.packet, mask=ack.mask,
                      arrived=ack.arrived, held=ack.held, number=ack.number, limit=ack.limit,
                      error=error)
