"""Transfers of rows between a robot and the server: their topics, bundles and messages.

A `Bundle` carries several small messages in one datagram.
"""

from __future__ import annotations

import time
import zlib
from typing import Any

from fleet_link.arrivals import MASK_BITS, WIRE
from fleet_ros.channel import Bundling, Topics
from rog_core.arrays import Array, to_host
from rog_core.errors import RemoteProtocolError, StaleMessageError
from rog_core.protocol.messages import Ack, Action, Chunk, End, Receipt, TransferId
from rog_core.server.server import Server
from rog_core.shell import handler
from rog_core.transfer.link import MIN_CHUNK
from rog_core.worker.worker import Worker
from rog_msgs.msg import Bundle, RowAck, RowChunk, TransferEnd, TransferReceipt

from .convert import from_ros, payload_bytes, size_bound, to_ros
from .qos import CHUNK

# Type of a message -> its field, in the order in which a receiver handles them. An end comes after
# the chunks that it covers, and rows after the receipt that allows them.
FIELDS = {RowAck: 'acks', TransferReceipt: 'receipts', RowChunk: 'chunks', TransferEnd: 'ends'}
# Maximum bytes of the messages in a bundle, which has 24 of its own: a chunk of `MIN_CHUNK`, its
# header and its seal take as much.
ROOM = MIN_CHUNK + 32
MOST = 16   # maximum number of messages in a bundle; the bound of each field


def join(messages: list[Any]) -> Bundle:
    """Return a bundle of messages, without acknowledgements that another one repeats.

    So the chunks of a bundle are acknowledged together. They arrive at the same time, and the
    times of two acknowledgements would look like a very fast link.
    """
    parts: dict[str, list[Any]] = {name: [] for name in FIELDS.values()}
    for message in messages:
        parts[FIELDS[type(message)]].append(message)
    parts['acks'] = [ack for ack in parts['acks']
                     if not any(_repeats(other, ack) for other in parts['acks'])]
    return Bundle(**parts)


def _repeats(other: Any, ack: Any) -> bool:
    older = (other.packet - ack.packet) % WIRE
    return other.incarnation == ack.incarnation and 0 < older <= MASK_BITS \
        and bool(other.mask >> older - 1 & 1)


def split(bundle: Any) -> list[Any]:
    """Return the messages of a bundle in the order in which they must be handled."""
    return [message for name in FIELDS.values() for message in getattr(bundle, name)]


def _topics(sends: str, takes: str) -> Topics:
    """Return the topics of the side that ``sends`` rows on one topic and ``takes`` them on another.

    The topics of all other messages have the name of the rows' topic in front.
    """
    return Topics(
        {Chunk: (RowChunk, sends), End: (TransferEnd, f'{sends}_end'),
         Ack: (RowAck, f'{takes}_ack'), Receipt: (TransferReceipt, f'{takes}_receipt')},
        {RowChunk: takes, TransferEnd: f'{takes}_end', RowAck: f'{sends}_ack',
         TransferReceipt: f'{sends}_receipt'}, to_ros, payload_bytes, CHUNK,
        Bundling(Bundle, f'{sends}_bundle', f'{takes}_bundle', ROOM, MOST, size_bound, join, split))


WORKER, SERVER = _topics('push', 'pull'), _topics('pull', 'push')


def receive(machine: Worker | Server, message: Any, logger: Any, peer: str
            ) -> list[Action] | None:
    """Pass a message of a transfer to the state machine; return the machine's actions.

    Return None if the message was refused; this is logged. A message from before a restart is
    expected, so it is dropped without a log line, and the result is an empty list.

    :param peer: sender of the message: a robot's name, or ``the server``.
    """
    try:
        value = from_ros(message)
        who = (peer,) if isinstance(machine, Server) else ()
        return handler(machine, value)(*who, value, time.monotonic())
    except StaleMessageError:
        return []
    except RemoteProtocolError as error:
        logger.warning(f'dropped a message of {peer}: {error}', throttle_duration_sec=5.0)
        return None


def checksum_of(transfer: TransferId, rows: Array) -> str:
    """Return the line that robot and server log at the end of a pull (`training.checksums`).

    The line holds a checksum of the rows of the robot, which must be equal on both sides.

    :param rows: at the robot, its own rows; at the server, the mirror of the robot.
    """
    name = f'{transfer.incarnation:x}/{transfer.kind}/{transfer.iteration}/{transfer.attempt}'
    return f'checksum of {name}: {zlib.crc32(to_host(rows).tobytes()):08x}'
