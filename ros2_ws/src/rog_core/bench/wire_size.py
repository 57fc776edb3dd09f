"""Measures how many bytes one push of all rows of ConvMLP-M takes.

The importance of the rows is random. A real Sender and Receiver run over a link without loss. The
bench adds up the serialised (CDR) sizes of all messages: RowChunk, RowAck, TransferEnd and
TransferReceipt. It prints one JSON line. For comparison: the sign bits alone take 2.12 MB. The
published system takes 2.12 MB at best, and about 5 MB if the rows are scattered.
"""

from __future__ import annotations

import json

import numpy as np
from convmlp import convmlp_m
from rog_core.codecs import get_codec
from rog_core.methods import create
from rog_core.model.partition import partition_of
from rog_core.protocol.messages import Ack, Chunk, Command, End, Kind, Receipt, TransferId
from rog_core.protocol.states import DONE
from rog_core.transfer import plan as plans
from rog_core.transfer.link import MIN_CHUNK, RowLink
from rog_core.transfer.receiver import Receiver
from rog_core.transfer.sender import Sender
from rog_core.worker.accumulator import Accumulator

TARGETS = {'chunk_14000': 2.27e6, 'datagram_1200': 2.40e6, 'id_bytes_per_row': 1.2}

# Bytes of headers per datagram: IPv4 20, UDP 8, RTPS header 20, INFO_TS 12, DATA submessage 24. DDS
# divides messages that are longer than its maximum (14,720 bytes for Cyclone); all messages here
# are shorter. IP divides datagrams that are longer than the MTU.
RTPS_UDP, IP, MTU = 8 + 20 + 12 + 24, 20, 1500


def _aligned(size: int, to: int) -> int:
    return -(-size // to) * to


def cdr_size(message: Chunk | Ack | End | Receipt) -> int:
    """Return the serialised size of a message in bytes, including the 4-byte header.

    A message with a tag has an empty one, as in a fleet without a key.
    """
    size = _body(message)   # + 4: length field of the empty tag
    return size if isinstance(message, Chunk) else _aligned(size, 4) + 4


def _body(message: Chunk | Ack | End | Receipt) -> int:
    if isinstance(message, Chunk):  # fixed fields of 28 bytes, then ids and values
        ids = -(-(4 + message.ids.size) // 4) * 4
        return 4 + 28 + ids + 4 + message.values.size
    if isinstance(message, Ack):
        return 4 + 8 + 8 + 8 + 4
    if isinstance(message, End):
        command, size = message.command, 24 + 2 * 8 + 4
        if command != Command():
            # first the fixed fields, aligned as in the message; then the step's name and numbers
            size = _aligned(size + 2 * 4 + 4 + len(command.sync) + 1 + 1, 8) + 3 * 8 + 4 + 1
            size = _aligned(size, 8) + 8 + 1
            size = _aligned(size, 4) + 4 + len(command.step.name) + 1
            size = _aligned(size, 4) + 4 + 4 * len(command.step.integers())
            size += 4  # length field of the list of floats
            numbers = command.step.numbers()
            size = _aligned(size, 8) + 8 * len(numbers) if numbers else size
        return 4 + size + 4 + 4 * len(message.switched)
    return _aligned(4 + 8 + 4 + 4 + 4 + 4 + 4 + len(message.taken), 4) + 4


def on_ethernet(size: int) -> int:
    """Return how many bytes a message of ``size`` bytes takes on Ethernet.

    These include the RTPS and UDP headers, and one IP header for each IP fragment.
    """
    payload = size + RTPS_UDP
    return payload + IP * -(-payload // (MTU - IP))


def push(max_chunk: int, seed: int = 0) -> dict[str, float]:
    """Return the sizes of one push in chunks of at most ``max_chunk`` bytes of ids and values."""
    partition, codec, noise = partition_of(convmlp_m()), get_codec('onebit'), \
        np.random.default_rng(seed)
    store = Accumulator(partition, np.zeros(partition.elements, np.float32))
    store.accumulate(noise.standard_normal(partition.elements, np.float32), 1.0)
    rows = np.ones(partition.rows, bool)
    plan = plans.by_importance(partition, create('rsp:4').sending(), noise.random(partition.rows),
                               np.zeros(partition.rows, np.int64), rows, 1e9)
    link = RowLink(max_chunk, 0.004)
    link.expect(1e8, 1e-3)
    transfer = TransferId(1, Kind.PUSH, 1, 1)
    sender = Sender(transfer, partition, plan, codec, store, link, 0.0)
    taken: list[int] = []
    receiver = Receiver(partition, frozenset({Kind.PUSH}), 1, codec)
    messages: list[Chunk | Ack | End | Receipt] = []
    now = 0.0
    while sender.state != DONE:
        now += 1e-3
        for message in sender.poll(now):
            messages.append(message)
            if isinstance(message, Chunk):
                answer, arrived = receiver.on_chunk(message, now)
                assert arrived is not None
                taken.extend(arrived.ids)
                sender.on_ack(answer, now + 1e-4)
                messages.append(answer)
            else:
                closed = receiver.on_end(message)
                assert closed is not None
                messages.append(closed[0])
                sender.on_receipt(closed[0], now)
    assert len(taken) == len(set(taken)) == partition.segments
    chunks = [m for m in messages if isinstance(m, Chunk)]
    sizes = [cdr_size(m) for m in messages]
    return {'bytes': sum(sizes), 'chunks': len(chunks), 'largest_message': max(sizes),
            'chunk_bytes': sum(cdr_size(m) for m in chunks),
            'id_bytes_per_row': round(sum(m.ids.size for m in chunks) / partition.rows, 4),
            'with_rtps_udp_ip': sum(on_ethernet(size) for size in sizes)}


def main() -> None:
    partition = partition_of(convmlp_m())
    line = {'bench': 'wire_size', 'tensors': len(partition.parameters), 'rows': partition.rows,
            'elements': partition.elements, 'sign_bits_bytes': -(-partition.elements // 8),
            'chunk_14000': push(14000), 'datagram_1200': push(MIN_CHUNK), 'targets': TARGETS}
    print(json.dumps(line))


if __name__ == '__main__':
    main()
