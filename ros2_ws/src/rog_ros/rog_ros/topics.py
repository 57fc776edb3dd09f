"""The topics of transfers, of both sides."""

from fleet_ros.channel import Topics
from rog_core.protocol.messages import Ack, Chunk, End, Receipt
from rog_msgs.msg import RowAck, RowChunk, TransferEnd, TransferReceipt

from .bundle import bundling
from .convert import payload_bytes, to_ros
from .qos import CHUNK

WORKER = Topics(
    {Chunk: (RowChunk, 'push'), End: (TransferEnd, 'push_end'), Ack: (RowAck, 'pull_ack'),
     Receipt: (TransferReceipt, 'pull_receipt')},
    {RowChunk: 'pull', TransferEnd: 'pull_end', RowAck: 'push_ack',
     TransferReceipt: 'push_receipt'}, to_ros, payload_bytes, CHUNK,
    bundling('push_bundle', 'pull_bundle'))
SERVER = Topics(
    {Chunk: (RowChunk, 'pull'), End: (TransferEnd, 'pull_end'), Ack: (RowAck, 'push_ack'),
     Receipt: (TransferReceipt, 'push_receipt')},
    {RowChunk: 'push', TransferEnd: 'push_end', RowAck: 'pull_ack',
     TransferReceipt: 'pull_receipt'}, to_ros, payload_bytes, CHUNK,
    bundling('pull_bundle', 'push_bundle'))
