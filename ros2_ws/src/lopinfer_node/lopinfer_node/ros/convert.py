"""Convert between the values of the protocol and the messages of lopinfer_msgs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fleet_ros.channel import Topics
from fleet_ros.sealing import octets
from lopinfer_msgs import msg, srv

from .. import qos
from ..runtime.services import OpenReply, OpenRequest, PlansRequest
from ..runtime.wire import Ack, Piece

_PIECE = ('incarnation', 'plan', 'packet', 'request', 'transfer', 'part', 'parts', 'bin', 'busy',
          'within', 'size', 'check')
_ACK = ('incarnation', 'packet', 'mask', 'arrived', 'status', 'rate', 'wait')


def to_ros(value: Piece | Ack) -> Any:
    """Convert a `Piece` or an `Ack` to a ROS message."""
    if isinstance(value, Ack):
        return msg.Ack(**{name: getattr(value, name) for name in _ACK})
    return msg.Piece(data=octets(value.data),
                     **{name: getattr(value, name) for name in _PIECE})


def piece_of(message: Any) -> Piece:
    """Convert a ROS message to a `Piece`."""
    return Piece(data=memoryview(message.data),
                 **{name: getattr(message, name) for name in _PIECE})


def ack_of(message: Any) -> Ack:
    """Convert a ROS message to an `Ack`."""
    return Ack(**{name: getattr(message, name) for name in _ACK})


def payload(value: Piece | Ack) -> int:
    """Return the bytes that a value takes on the emulated link."""
    return len(value.data) if isinstance(value, Piece) else 0


CLIENT = Topics({Piece: (msg.Piece, 'up'), Ack: (msg.Ack, 'down_ack')},
                {msg.Piece: 'down', msg.Ack: 'up_ack'}, to_ros, payload, qos.PIECE)
SERVER = Topics({Piece: (msg.Piece, 'down'), Ack: (msg.Ack, 'up_ack')},
                {msg.Piece: 'up', msg.Ack: 'down_ack'}, to_ros, payload, qos.PIECE)


def value_of(message: Any) -> Piece | Ack:
    """Convert a ROS message to a `Piece` or an `Ack`."""
    return piece_of(message) if isinstance(message, msg.Piece) else ack_of(message)


def open_to_ros(request: OpenRequest) -> Any:
    """Convert an `OpenRequest` to a request of the ROS service `Open`."""
    return srv.Open.Request(
        protocol=request.protocol, client=request.client, incarnation=request.incarnation,
        model=request.model, digest=request.digest, names=list(request.names),
        hashes=array('Q', request.hashes))


def open_of(message: Any) -> OpenRequest:
    """Convert a request of the ROS service `Open` to an `OpenRequest`."""
    return OpenRequest(message.protocol, message.client, message.incarnation, message.model,
                       message.digest, list(message.names), list(message.hashes))


def reply_to_ros(reply: OpenReply, message: Any) -> Any:
    """Fill ``message``, a response of the ROS service `Open`, with an `OpenReply`; return it."""
    message.status, message.reason = reply.status, reply.reason
    message.incarnation, message.planned = reply.incarnation, reply.planned
    message.fixed = array('d', reply.fixed.tobytes())
    message.per_share = array('d', reply.per_share.tobytes())
    return message


def reply_of(message: Any) -> OpenReply:
    """Convert a response of the ROS service `Open` to an `OpenReply`."""
    return OpenReply(message.status, message.reason, message.incarnation, message.planned,
                     np.array(message.fixed, np.float64), np.array(message.per_share, np.float64))


def plans_to_ros(request: PlansRequest) -> Any:
    """Convert a `PlansRequest` to a request of the ROS service `SetPlans`."""
    return srv.SetPlans.Request(
        client=request.client, incarnation=request.incarnation, digest=request.digest,
        bins=octets(request.bins), own=array('i', request.own.tobytes()))


def plans_of(message: Any) -> PlansRequest:
    """Convert a request of the ROS service `SetPlans` to a `PlansRequest`."""
    return PlansRequest(message.client, message.incarnation, message.digest, bytes(message.bins),
                        np.array(message.own, np.int32))


def result_message(outputs: Sequence[torch.Tensor], header: Any, latency: float, shared: bool
                   ) -> Any:
    """Return the ROS message of a model's outputs; all tensors are converted to float32."""
    message = msg.Result(header=header, latency=latency, offloaded=shared)
    message.outputs = [msg.Tensor(shape=array('I', t.shape),
                                  values=array('f', t.float().contiguous().numpy().tobytes()))
                       for t in (o.detach().cpu() for o in outputs)]
    return message
