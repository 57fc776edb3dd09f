"""Converts messages of rog_msgs to values of `rog_core.protocol.messages`, and back."""

from __future__ import annotations

import array
import re
from typing import Any

import numpy as np
from fleet_ros.sealing import octets
from rog_core.errors import RemoteProtocolError, shown
from rog_core.model.partition import Role
from rog_core.protocol.messages import (
    HEADER_BYTES,
    Ack,
    Chunk,
    Command,
    End,
    Kind,
    Receipt,
    RegisterRequest,
    RegisterResponse,
    Sending,
    TransferId,
)
from rog_core.protocol.steps import step_of
from rog_msgs import msg
from rog_msgs.msg import RowAck, RowChunk, TransferEnd, TransferReceipt
from rog_msgs.srv import Register

MAX_PARAMETERS = 1 << 16  # maximum number of parameters of the model in a registration
MAX_NAME = 256            # maximum characters of a name in a registration
LONGEST = 200             # maximum characters of a received method name, which statuses repeat
_SHAPE = re.compile(r'([0-9]{1,12}(x[0-9]{1,12}){0,15})?')
NOTHING = Command()
FIXED = 48  # maximum bytes of any message of a transfer but for what grows, with all padding
STATUS_BYTES = 300  # bytes that a robot's status (its heartbeat) takes on the air


def _uint8(field: Any) -> np.ndarray:
    return np.frombuffer(memoryview(field), np.uint8)


def _transfer(message: Any) -> TransferId:
    try:
        kind = Kind(message.kind)
    except ValueError:
        raise RemoteProtocolError(f'message has kind {message.kind}, which this version does not '
                                  'know') from None
    return TransferId(message.incarnation, kind, message.iteration, message.attempt)


def _identity(transfer: TransferId) -> dict[str, int]:
    return {'incarnation': transfer.incarnation, 'kind': int(transfer.kind),
            'iteration': transfer.iteration, 'attempt': transfer.attempt}


def to_ros(message: Chunk | Ack | End | Receipt) -> Any:
    """Return ``message`` as a message of rog_msgs, without a seal."""
    if isinstance(message, Ack):
        return RowAck(incarnation=message.incarnation, mask=message.mask, arrived=message.arrived,
                      packet=message.packet)
    identity = _identity(message.transfer)
    if isinstance(message, Chunk):
        return RowChunk(**identity, sequence=message.sequence, packet=message.packet,
                        codec=message.codec, segments=message.segments, ids=octets(message.ids),
                        values=octets(message.values))
    if isinstance(message, Receipt):
        return TransferReceipt(**identity, chunks=message.chunks, taken=octets(message.taken),
                               refused=message.refused)
    command = [_command_to_ros(message.command)] if _says(message.command) else []
    return TransferEnd(
        **identity, chunks=message.chunks, whole=message.whole, switched=list(message.switched),
        duration=float(message.duration), mta_duration=float(message.mta_duration),
        command=command)


def _says(command: Command) -> bool:
    """Return whether a command differs from that of a push, which says nothing."""
    return command != NOTHING or command.step.integers() != NOTHING.step.integers()


def _command_to_ros(command: Command) -> Any:
    sending, step = command.sending, command.step
    return msg.Command(
        mta_time=float(command.mta_time), next_iteration=command.next_iteration,
        staleness=int(command.staleness), patience=float(command.patience), sync=command.sync,
        stop=command.stop, minimum=float(sending.minimum), threshold=sending.threshold,
        by_importance=sending.by_importance, mta=float(sending.mta), ahead=bool(command.ahead),
        step=step.name, step_integers=list(step.integers()), step_numbers=list(step.numbers()))


def _command(message: Any) -> Command:
    sending = Sending(message.minimum, message.threshold, message.by_importance, message.mta)
    step = step_of(message.step, message.step_integers, message.step_numbers)
    return Command(message.next_iteration, message.mta_time, message.staleness,
                   shown(message.sync, LONGEST), message.stop, message.patience, sending,
                   message.ahead, step)


def from_ros(message: Any) -> Chunk | Ack | End | Receipt:
    """Return a message of rog_msgs as a value of rog_core.

    :raises RemoteProtocolError: the kind of the transfer is unknown, or its step is unknown or
        malformed.
    """
    if isinstance(message, RowAck):
        return Ack(message.packet, message.mask, message.arrived, message.incarnation)
    transfer = _transfer(message)
    if isinstance(message, RowChunk):
        return Chunk(transfer, message.sequence, message.codec, message.segments,
                     _uint8(message.ids), _uint8(message.values), message.packet)
    if isinstance(message, TransferReceipt):
        return Receipt(transfer, message.chunks, bytes(memoryview(message.taken)), message.refused)
    command = _command(message.command[0]) if message.command else Command()
    return End(transfer, message.chunks, message.duration, message.mta_duration, command,
               message.whole, tuple(message.switched))


def size_bound(message: Any) -> int:
    """Return at least the bytes that a sealed message of a transfer takes in a `Bundle`."""
    if isinstance(message, RowChunk):
        return FIXED + len(message.ids) + len(message.values)
    size = FIXED + len(message.tag)
    if isinstance(message, TransferReceipt):
        return size + len(message.taken)
    if isinstance(message, TransferEnd):
        return size + 16 + 4 * len(message.switched) + sum(map(_command_bound, message.command))
    return size


def _command_bound(command: Any) -> int:
    return 96 + 4 * len(command.sync) + len(command.step) + 4 * len(command.step_integers) \
        + 8 * len(command.step_numbers)


def payload_bytes(message: Chunk | Ack | End | Receipt | RegisterRequest) -> int:
    """Return the size of a message on the air in bytes, without the bytes that DDS and UDP add."""
    if isinstance(message, RegisterRequest):
        return STATUS_BYTES + sum(16 + len(name) for name, _, _ in message.parameters)
    if isinstance(message, Chunk):
        return HEADER_BYTES + message.ids.size + message.values.size
    return HEADER_BYTES + (len(message.taken) if isinstance(message, Receipt) else 0)


def request_to_ros(request: RegisterRequest) -> Any:
    """Return the service request of a registration."""
    message = Register.Request(
        protocol=request.protocol, number=request.number, robot=request.robot,
        incarnation=request.incarnation, iteration=request.iteration, attempt=request.attempt,
        granularity=request.granularity, codec=request.codec, digest=request.digest,
        names=[n for n, _, _ in request.parameters],
        shapes=['x'.join(map(str, shape)) for _, shape, _ in request.parameters],
        roles=array.array('B', [role for _, _, role in request.parameters]))
    if request.pull is not None:
        message.pull = to_ros(request.pull)
    return message


def request_from_ros(request: Any) -> RegisterRequest:
    """Return a service request as a registration.

    :raises RemoteProtocolError: the request is malformed.
    """
    if len(request.names) > MAX_PARAMETERS:
        raise RemoteProtocolError(f'registration must name at most {MAX_PARAMETERS} parameters, '
                                  f'got {len(request.names)}')
    for text in (request.robot, request.codec, request.granularity, request.digest,
                 *request.names):
        if len(text) > MAX_NAME:
            raise RemoteProtocolError('names in a registration must have at most '
                                      f'{MAX_NAME} characters, got {len(text)}')
    if not len(request.names) == len(request.shapes) == len(request.roles):
        raise RemoteProtocolError('registration must give one shape and one role for each '
                                  f'parameter, got {len(request.shapes)} shapes and '
                                  f'{len(request.roles)} roles for {len(request.names)}')
    if not set(request.roles) <= set(Role):
        raise RemoteProtocolError(f'roles in a registration must be {min(Role)} to {max(Role)}, '
                                  f'got {max(request.roles)}')
    if not all(_SHAPE.fullmatch(shape) for shape in request.shapes):
        raise RemoteProtocolError('registration has a shape that is not numbers joined by x, or is '
                                  'too large')
    shapes = [tuple(map(int, s.split('x'))) if s else () for s in request.shapes]
    return RegisterRequest(request.robot, request.incarnation, request.iteration, request.attempt,
                           request.granularity, request.codec, request.digest,
                           tuple(zip(request.names, shapes, map(int, request.roles), strict=True)),
                           request.protocol,
                           request.number, _receipt(request.pull))


def _receipt(message: Any) -> Receipt | None:
    receipt = from_ros(message) if message.chunks else None
    assert receipt is None or isinstance(receipt, Receipt)
    return receipt


def response_to_ros(response: RegisterResponse, message: Any) -> Any:
    """Copy a registration's answer into the service response ``message``; return ``message``."""
    message.accepted, message.reason = response.accepted, response.reason
    message.retry, message.incarnation = response.retry, response.incarnation
    message.iteration, message.attempt = response.iteration, response.attempt
    message.sync, message.over = response.sync, response.over
    if response.push is not None:
        message.push = to_ros(response.push)
    return message


def response_from_ros(message: Any) -> RegisterResponse:
    """Return a service response as the answer to a registration.

    :raises RemoteProtocolError: the receipt in the response has an unknown kind of transfer.
    """
    return RegisterResponse(message.accepted, message.reason, message.retry, message.incarnation,
                            message.iteration, message.attempt, shown(message.sync, LONGEST),
                            _receipt(message.push), message.over)
