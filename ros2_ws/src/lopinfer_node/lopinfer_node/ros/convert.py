"""Between the values of the protocol and the messages of lopinfer_msgs."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from lopinfer_msgs import msg, srv

from ..runtime.services import OpenReply, OpenRequest, PlansRequest
from ..runtime.wire import Ack, Buffer, Piece

_PIECE = ('incarnation', 'plan', 'packet', 'request', 'transfer', 'part', 'parts', 'bin', 'busy',
          'check')
_ACK = ('incarnation', 'packet', 'mask', 'arrived', 'status', 'rate')


def byte_array(data: Buffer) -> array[int]:
    """Return bytes in the type that rclpy does not check element by element."""
    made = array('B')
    made.frombytes(data)
    return made


def to_ros(value: Piece | Ack) -> Any:
    """Message of a piece or an acknowledgement."""
    if isinstance(value, Ack):
        return msg.Ack(**{name: getattr(value, name) for name in _ACK})
    return msg.Piece(data=byte_array(value.data),
                     **{name: getattr(value, name) for name in _PIECE})


def piece_of(message: Any) -> Piece:
    """Piece of a message."""
    return Piece(data=memoryview(message.data),
                 **{name: getattr(message, name) for name in _PIECE})


def ack_of(message: Any) -> Ack:
    """Acknowledgement of a message."""
    return Ack(**{name: getattr(message, name) for name in _ACK})


def open_to_ros(request: OpenRequest) -> Any:
    """Request of the open service."""
    return srv.Open.Request(
        protocol=request.protocol, client=request.client, incarnation=request.incarnation,
        model=request.model, digest=request.digest, names=list(request.names),
        hashes=array('Q', request.hashes))


def open_of(message: Any) -> OpenRequest:
    """What a request of the open service says."""
    return OpenRequest(message.protocol, message.client, message.incarnation, message.model,
                       message.digest, list(message.names), list(message.hashes))


def reply_to_ros(reply: OpenReply, message: Any) -> Any:
    """Fill the answer of the open service."""
    message.status, message.reason = reply.status, reply.reason
    message.incarnation, message.planned = reply.incarnation, reply.planned
    message.fixed = array('d', reply.fixed.tobytes())
    message.per_share = array('d', reply.per_share.tobytes())
    return message


def reply_of(message: Any) -> OpenReply:
    """What an answer of the open service says."""
    return OpenReply(message.status, message.reason, message.incarnation, message.planned,
                     np.array(message.fixed, np.float64), np.array(message.per_share, np.float64))


def plans_to_ros(request: PlansRequest) -> Any:
    """Request of the set_plans service."""
    return srv.SetPlans.Request(
        client=request.client, incarnation=request.incarnation, digest=request.digest,
        bins=byte_array(request.bins), own=array('i', request.own.tobytes()))


def plans_of(message: Any) -> PlansRequest:
    """What a request of the set_plans service says."""
    return PlansRequest(message.client, message.incarnation, message.digest, bytes(message.bins),
                        np.array(message.own, np.int32))
