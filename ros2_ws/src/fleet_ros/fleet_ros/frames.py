"""Conversion between the packets of a `fleet_link.session.Session` and ROS messages."""

from __future__ import annotations

from functools import partial
from typing import Any

from fleet_link.session import End, Packet
from fleet_link.stream import Ack, Frame
from fleet_msgs.msg import Frame as FrameMessage
from fleet_msgs.msg import FrameAck as AckMessage

from .channel import Topics
from .qos import STREAM
from .sealing import octets


def topics(is_server: bool, incarnation: int) -> Topics:
    """Return what one side of the session ``incarnation`` sends and takes."""
    ours, theirs = ('down', 'up') if is_server else ('up', 'down')
    acks = AckMessage, f'{theirs}_ack'
    return Topics({Frame: (FrameMessage, ours), Ack: acks, End: acks},
                  {FrameMessage: theirs, AckMessage: f'{ours}_ack'},
                  partial(to_ros, incarnation), _payload, STREAM)


def packet_of(message: Any) -> Packet:
    """Return the packet that a ROS message contains."""
    if isinstance(message, FrameMessage):
        return Frame(message.packet, message.number, message.last,
                     memoryview(message.data).cast('B'))
    if message.error:
        return End(message.error)
    return Ack(message.packet, message.mask, message.arrived, message.held, message.number,
               message.limit)


def to_ros(incarnation: int, packet: Packet) -> Any:
    """Return the ROS message for a packet of the session ``incarnation``."""
    if isinstance(packet, Frame):
        return FrameMessage(incarnation=incarnation, packet=packet.packet, number=packet.number,
                            last=packet.last, data=octets(packet.data))
    if isinstance(packet, End):
        return AckMessage(incarnation=incarnation, error=packet.reason)
    return AckMessage(incarnation=incarnation, packet=packet.packet, mask=packet.mask,
                      arrived=packet.arrived, held=packet.held, number=packet.number,
                      limit=packet.limit)


def _payload(packet: Packet) -> int:
    return len(packet.data) if isinstance(packet, Frame) else 0
