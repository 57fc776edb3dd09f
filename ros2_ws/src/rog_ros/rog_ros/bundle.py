"""Puts small messages of transfers into a `Bundle`, and takes it apart."""

from __future__ import annotations

from typing import Any

from fleet_link.arrivals import MASK_BITS, WIRE
from fleet_ros.channel import Bundling
from rog_core.transfer.link import MIN_CHUNK
from rog_msgs.msg import Bundle, RowAck, RowChunk, TransferEnd, TransferReceipt

from .convert import size_bound

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


def bundling(sends: str, takes: str) -> Bundling:
    """Return how the messages of transfers share a datagram.

    ``sends``, ``takes``: topics of the bundles that are sent, and of those that come.
    """
    return Bundling(Bundle, sends, takes, ROOM, MOST, size_bound, join, split)
