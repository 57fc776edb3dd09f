"""The topics of transfers, of both sides."""

from fleet_ros.channel import Topics
from rog_core.protocol.messages import Ack, Chunk, End, Receipt
from rog_msgs.msg import RowAck, RowChunk, TransferEnd, TransferReceipt

from .bundle import bundling
from .convert import payload_bytes, to_ros
from .qos import CHUNK


def _topics(sends: str, takes: str) -> Topics:
    """Return the topics of the side that ``sends`` rows on one topic and ``takes`` them on another.

    The topics of all other messages have the name of the rows' topic in front.
    """
    return Topics(
        {Chunk: (RowChunk, sends), End: (TransferEnd, f'{sends}_end'),
         Ack: (RowAck, f'{takes}_ack'), Receipt: (TransferReceipt, f'{takes}_receipt')},
        {RowChunk: takes, TransferEnd: f'{takes}_end', RowAck: f'{sends}_ack',
         TransferReceipt: f'{sends}_receipt'}, to_ros, payload_bytes, CHUNK,
        bundling(f'{sends}_bundle', f'{takes}_bundle'))


WORKER, SERVER = _topics('push', 'pull'), _topics('pull', 'push')
