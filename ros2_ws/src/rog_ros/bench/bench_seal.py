"""Measures what the key of a fleet costs in a push: the added time of robot and server together.

One worker pushes all rows of a model (17.4 M elements in 33,324 rows, codec onebit).
The worker side accumulates and encodes the gradient, and sends the chunks over DDS on
loopback. The server side applies each chunk to the master rows, and sends an
acknowledgement over DDS. Both sides run in this process, on one core.

Every second chunk and its acknowledgement are sealed: they are encrypted or carry a tag.
So other work on the machine disturbs sealed and unsealed chunks equally. The time of a
chunk lasts from its sending to the arrival of its acknowledgement. The cost of the key for
one chunk is the difference between the median times with and without the key. The bench
reports the cost for all chunks of a push, as a share of the time of a push without the key.
It prints one JSON line.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from fleet_link.key import new_key
from fleet_link.seal import Seal, Session
from fleet_ros.sealing import seal, unseal
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rog_core.codecs import get_codec
from rog_core.model.partition import RowPartition
from rog_core.protocol.messages import Chunk, Kind, Receipt, TransferId
from rog_core.transfer import plan as plans
from rog_core.transfer.link import RowLink
from rog_core.transfer.receiver import Receiver
from rog_core.transfer.sender import DONE, Sender
from rog_core.worker.accumulator import Accumulator
from rog_msgs.msg import RowAck, RowChunk, TransferEnd, TransferReceipt
from rog_ros import qos
from rog_ros.convert import from_ros, to_ros

REPEATS = 20


class Wire:
    """A publisher and a subscription for each message type; they connect this process to itself."""

    def __init__(self) -> None:
        rclpy.init()
        self.node, self.arrived = Node('bench_seal'), []
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self.publishers = {}
        for kind in (RowChunk, RowAck, TransferEnd, TransferReceipt):
            topic = f'bench_seal_{kind.__name__.lower()}'
            self.node.create_subscription(kind, topic, self.arrived.append, qos.CHUNK)
            self.publishers[kind] = self.node.create_publisher(kind, topic, qos.CHUNK)
        while not all(p.get_subscription_count() for p in self.publishers.values()):
            self.executor.spin_once(timeout_sec=0.1)


class Push:
    """Makes the pushes of one robot; does the work of the robot and of the server.

    ``whole``: CPU seconds of each push. ``ways``: two lists of times, without the key and with the
    key. Each time is the seconds from the sending of a chunk to the arrival of its acknowledgement.
    """

    def __init__(self, partition: RowPartition, chunk: int, wire: Wire, session: Session) -> None:
        self.partition, self.chunk, self.wire, self.number = partition, chunk, wire, 0
        self.session = session
        noise = np.random.default_rng(1)
        self.store = Accumulator(partition, np.zeros(partition.elements, np.float32))
        self.gradient = noise.standard_normal(partition.elements, np.float32)
        self.master = noise.standard_normal(partition.elements, np.float32)
        self.codec = get_codec('onebit')
        self.receiver = Receiver(partition, frozenset({Kind.PUSH}), 1, self.codec)
        self.whole: list[float] = []
        self.ways: tuple[list[float], list[float]] = [], []

    def run(self) -> int:
        """Make one push; return its number of chunks."""
        self.number += 1
        begin, chunks = time.process_time(), 0
        self.store.accumulate(self.gradient, 1e-3)
        transfer = TransferId(1, Kind.PUSH, self.number, self.number)
        link = RowLink(self.chunk, 0.004)
        link.expect(1e9, 1e-3)
        sender = Sender(transfer, self.partition, plans.everything(self.partition), self.codec,
                        self.store, link, 0.0)
        now = 0.0
        while sender.state != DONE:
            now += 1e-6
            for message in sender.poll(now):
                with_key = (chunks + self.number) % 2
                before = time.perf_counter()
                answer = self.carry(message, self.session if with_key else None)
                if answer is not None:
                    self.acknowledge(sender, answer, self.session if with_key else None, now)
                if isinstance(message, Chunk):
                    self.ways[with_key].append(time.perf_counter() - before)
                    chunks += 1
        self.whole.append(time.process_time() - begin)
        return chunks

    def carry(self, value: Any, session: Session | None) -> Any:
        arrived = self.over(value, session and session.to_server)
        if isinstance(arrived, Chunk):
            ack, rows = self.receiver.on_chunk(arrived, time.monotonic())
            assert rows is not None
            self.codec.add(self.partition, self.master, rows.ids, rows.data, -0.25)
            return ack
        closed = self.receiver.on_end(arrived)
        assert closed is not None
        return closed[0]

    def acknowledge(self, sender: Sender, value: Any, session: Session | None, now: float) -> None:
        arrived = self.over(value, session and session.to_robot)
        if isinstance(arrived, Receipt):
            sender.on_receipt(arrived, now)
        else:
            sender.on_ack(arrived, now)

    def over(self, value: Any, key: Seal | None) -> Any:
        """Send ``value`` over DDS to this process itself; return the value that arrives.

        :param key: seals the message and opens it; None: it is not sealed.
        """
        message = seal(key, to_ros(value))
        self.wire.publishers[type(message)].publish(message)
        while not self.wire.arrived:
            self.wire.executor.spin_once(timeout_sec=1.0)
        back = self.wire.arrived.pop()
        unseal(key, back)
        return from_ros(back)


def main() -> None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    from hot_path import model
    partition = model('onebit')
    wire = Wire()
    session = Session(new_key().of('robot1').secret, 3, 2)
    line: dict[str, Any] = {'bench': 'seal', 'elements': partition.elements,
                            'cryptography': version('cryptography')}
    for chunk in (60000, 14000, 1300):
        push = Push(partition, chunk, wire, session)
        push.run(), push.run()
        push.whole.clear(), push.ways[0].clear(), push.ways[1].clear()
        chunks = [push.run() for _ in range(REPEATS)][-1]
        without, with_key = map(statistics.median, push.ways)
        whole = statistics.median(push.whole) - chunks / 2 * (with_key - without)
        line[f'chunk_{chunk}'] = {
            'chunks': chunks, 'push_ms': round(1e3 * whole, 1),
            'chunk_us': round(1e6 * without, 1), 'key_us': round(1e6 * (with_key - without), 2),
            'cost_percent': round(100 * chunks * (with_key - without) / whole, 1)}
    print(json.dumps(line))


if __name__ == '__main__':
    sys.path.insert(0, str(Path(__file__).parents[2] / 'rog_core' / 'bench'))
    main()
