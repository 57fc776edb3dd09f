"""What the key of a fleet costs in a push: both nodes' work with it and without, alternately.

A worker's push of 17.4 M elements in 33,324 rows, codec onebit, all rows: the gradient is
accumulated and encoded, and its chunks travel over DDS on loopback to a subscription, which applies
them to the master rows and acknowledges them, each over DDS, too. Both sides are in this process,
on one core. Prints one JSON line, in seconds of the processor.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rog_core.accumulator import Accumulator
from rog_core.codecs import get_codec
from rog_core.messages import Kind, TransferId
from rog_core.partition import RowPartition
from rog_core.transfer import plan as plans
from rog_core.transfer.link import LinkEstimate
from rog_core.transfer.receiver import Receiver
from rog_core.transfer.sender import DONE, Sender
from rog_msgs.msg import RowAck, RowChunk, TransferEnd, TransferReceipt
from rog_ros import qos
from rog_ros.convert import from_ros, to_ros
from rog_ros.seal import Session, Side, new_key, sealed

REPEATS = 9


class Wire:
    """A topic of each type, to ourselves."""

    def __init__(self) -> None:
        rclpy.init()
        self.node, self.arrived = Node('bench_seal'), []
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self.publishers = {}
        for kind in (RowChunk, RowAck, TransferEnd, TransferReceipt):
            topic = f'bench_seal_{kind.__name__.lower()}'
            self.node.create_subscription(kind, topic, self.arrived.append, qos.CONTROL)
            self.publishers[kind] = self.node.create_publisher(kind, topic, qos.CONTROL)
        while not all(p.get_subscription_count() for p in self.publishers.values()):
            self.executor.spin_once(timeout_sec=0.1)


class Push:
    """Both sides of pushes of one robot; ``session``: the keys, None: none."""

    def __init__(self, partition: RowPartition, chunk: int, wire: Wire) -> None:
        self.partition, self.chunk, self.wire, self.number = partition, chunk, wire, 0
        noise = np.random.default_rng(1)
        self.store = Accumulator(partition, np.zeros(partition.elements, np.float32))
        self.gradient = noise.standard_normal(partition.elements, np.float32)
        self.master = noise.standard_normal(partition.elements, np.float32)
        self.codec = get_codec('onebit')
        self.receiver = Receiver(partition, frozenset({Kind.PUSH}), 1, self.codec)

    def run(self, session: Session | None) -> float:
        """One push; seconds of the processor."""
        self.number += 1
        begin = time.process_time()
        self.store.accumulate(self.gradient, 1e-3)
        transfer = TransferId(1, Kind.PUSH, self.number, self.number)
        link = LinkEstimate(self.chunk, 0.004, rate=1e9)
        sender = Sender(transfer, self.partition, plans.everything(self.partition), self.codec,
                        self.store, link, 0.0)
        now = 0.0
        while sender.state != DONE:
            now += 1e-6
            for message in sender.poll(now):
                answer = self.carry(message, session)
                if answer is not None:
                    self.acknowledge(sender, answer, session, now)
        return time.process_time() - begin

    def carry(self, value: Any, session: Session | None) -> Any:
        arrived = self.over(value, session and session.to_server)
        if hasattr(arrived, 'values'):
            ack, rows = self.receiver.on_chunk(arrived)
            assert rows is not None
            self.codec.add(self.partition, self.master, rows.ids, rows.data, -0.25)
            return ack
        closed = self.receiver.on_end(arrived)
        assert closed is not None
        return closed[0]

    def acknowledge(self, sender: Sender, value: Any, session: Session | None, now: float) -> None:
        arrived = self.over(value, session and session.to_robot)
        if hasattr(arrived, 'taken'):
            sender.on_receipt(arrived, now)
        else:
            sender.on_ack(arrived, now)

    def over(self, value: Any, key: Side | None) -> Any:
        """Send a value as both nodes do, and wait until it has arrived."""
        message = to_ros(value)
        self.wire.publishers[type(message)].publish(sealed(key, message))
        while not self.wire.arrived:
            self.wire.executor.spin_once(timeout_sec=1.0)
        back = self.wire.arrived.pop()
        if key is not None:
            key.check(back)
        return from_ros(back)


def main() -> None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    from hot_path import model
    partition = model('onebit')
    wire = Wire()
    session = Session(new_key().of('robot1'), 3, 2)
    line: dict[str, Any] = {'bench': 'seal', 'elements': partition.elements}
    for chunk in (60000, 14000, 1300):
        push = Push(partition, chunk, wire)
        push.run(None), push.run(session)
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(REPEATS):
            for with_key in (False, True):
                times[with_key].append(push.run(session if with_key else None))
        without, sealed_ms = (1e3 * statistics.median(times[k]) for k in (False, True))
        least, most = (1e3 * min(times[k]) for k in (False, True))
        line[f'chunk_{chunk}'] = {
            'push_ms': round(without, 1), 'push_with_key_ms': round(sealed_ms, 1),
            'cost_percent': round(100 * (sealed_ms / without - 1), 1),
            'cost_percent_of_the_fastest': round(100 * (most / least - 1), 1)}
    print(json.dumps(line))


if __name__ == '__main__':
    sys.path.insert(0, str(Path(__file__).parents[2] / 'rog_core' / 'bench'))
    main()
