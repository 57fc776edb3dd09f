"""Chunks from one process to another: our publisher and subscription beside plain DDS.

    python embedded/bench/chunk_path.py [--seconds 3]

Prints one JSON line: messages/s and MB/s of RowChunk messages with 1.3 KB and 32 KB of values,
through rclpy (a message made, published, received in a callback of a spinning executor) and, in the
same run, through cyclonedds' ddspy_write and ddspy_take with ready bytes; and the ratio. Both ways
keep a window of chunks open, as the transport does: only what arrived is counted.
It runs with a sourced ROS 2, too (then without the plain DDS figures unless cyclonedds is there).
"""

from __future__ import annotations

import argparse
import array
import json
import os
import subprocess
import sys
import time

SIZES = (1300, 32768)
# Data that overtakes discovery is recovered by heartbeats, which dominate a short run.
SETTLE = 0.5
MAX_WINDOW, ACK_EVERY = 512, 16


def window(size):
    """Chunks on the way: below the 500 kB at which Cyclone throttles a reliable writer."""
    return min(MAX_WINDOW, 400_000 // size)


def rclpy_node(name):
    import rclpy
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.node import Node
    from rclpy.qos import QoSProfile

    rclpy.init(args=[])
    node = Node(name, start_parameter_services=False, enable_rosout=False)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    return rclpy, node, executor, QoSProfile(depth=2 * MAX_WINDOW)


def rclpy_receive():
    from rog_msgs.msg import RowChunk
    from std_msgs.msg import UInt64

    rclpy, node, executor, qos = rclpy_node("bench_receiver")
    acks = node.create_publisher(UInt64, "bench_ack", qos)
    state = {"count": 0, "sum": 0}

    def on_chunk(message):
        state["count"] += 1
        state["sum"] += len(message.values)
        if message.kind == 2:
            executor.shutdown(timeout_sec=0)
        if state["count"] % ACK_EVERY == 0:
            acks.publish(UInt64(data=state["count"]))

    node.create_subscription(RowChunk, "bench_chunk", on_chunk, qos)
    executor.spin()
    acks.wait_for_all_acked()
    rclpy.shutdown()


def rclpy_send(size, seconds):
    from rog_msgs.msg import RowChunk
    from std_msgs.msg import UInt64

    rclpy, node, executor, qos = rclpy_node("bench_sender")
    publisher = node.create_publisher(RowChunk, "bench_chunk", qos)
    acked = [0]
    node.create_subscription(UInt64, "bench_ack", lambda m: acked.__setitem__(0, m.data), qos)
    receiver = spawn("rclpy-receive")
    acks = node.resolve_topic_name("bench_ack")
    while not (publisher.get_subscription_count() and node.count_publishers(acks)):
        executor.spin_once(timeout_sec=0.01)
    time.sleep(SETTLE)
    ids, values = array.array("B", bytes(20)), array.array("B", bytes(size))
    sent, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(ACK_EVERY):
            publisher.publish(
                RowChunk(incarnation=1, iteration=1, sequence=sent, ids=ids, values=values)
            )
            sent += 1
        executor.spin_once(timeout_sec=0)
        while sent - acked[0] > window(size):
            executor.spin_once()
    while acked[0] < sent:
        executor.spin_once()
    elapsed = time.perf_counter() - start
    publisher.publish(RowChunk(kind=2))
    receiver.wait(30)
    rclpy.shutdown()
    return sent / elapsed


class Raw:
    """One reader, one writer, plain CDR."""

    def __init__(self, write_topic, read_topic):
        from cyclonedds._clayer import ddspy_take, ddspy_write
        from cyclonedds.core import InstanceState, ReadCondition, SampleState, ViewState, WaitSet
        from cyclonedds.domain import DomainParticipant
        from cyclonedds.idl import make_idl_struct
        from cyclonedds.idl.types import uint8
        from cyclonedds.pub import DataWriter
        from cyclonedds.qos import Policy, Qos
        from cyclonedds.sub import DataReader
        from cyclonedds.topic import Topic

        kind = make_idl_struct("Bytes", "bench.Bytes", {"bytes": uint8})
        qos = Qos(
            Policy.Reliability.Reliable(max_blocking_time=10**12),
            Policy.History.KeepLast(2 * MAX_WINDOW),
            Policy.DataRepresentation(use_cdrv0_representation=True),
        )
        self.participant = DomainParticipant(int(os.environ.get("ROS_DOMAIN_ID", "0")))
        self.writer = DataWriter(self.participant, Topic(self.participant, write_topic, kind), qos)
        self.reader = DataReader(self.participant, Topic(self.participant, read_topic, kind), qos)
        self.mask = ViewState.Any | InstanceState.Any | SampleState.Any
        self.waitset = WaitSet(self.participant)
        self.condition = ReadCondition(self.reader, self.mask)
        self.waitset.attach(self.condition)
        self._write, self._take = ddspy_write, ddspy_take

    def write(self, data):
        self._write(self.writer._ref, data)

    def take(self, wait_ns):
        if wait_ns:
            self.waitset.wait(wait_ns)
        return [d for d, info in self._take(self.reader._ref, self.mask, 100) if info.valid_data]


def raw_receive():
    raw = Raw("raw_ack", "raw_chunk")
    count = 0
    while True:
        for data in raw.take(10**9):
            if len(data) == 8:
                time.sleep(0.2)  # let the last acknowledgement leave; not part of the figure
                return
            count += 1
            if count % ACK_EVERY == 0:
                raw.write(b"\0\1\0\0" + count.to_bytes(8, "little"))


def raw_send(size, seconds):
    raw = Raw("raw_chunk", "raw_ack")
    receiver = spawn("raw-receive")
    while not (raw.writer.get_matched_subscriptions() and raw.reader.get_matched_publications()):
        raw.take(10**7)
    time.sleep(SETTLE)
    data = b"\0\1\0\0" + bytes(size + 52)
    sent = acked = 0
    start = time.perf_counter()

    def acknowledged(wait_ns):
        answers = raw.take(wait_ns)
        return int.from_bytes(answers[-1][4:12], "little") if answers else acked

    while time.perf_counter() - start < seconds:
        for _ in range(ACK_EVERY):
            raw.write(data)
        sent += ACK_EVERY
        acked = acknowledged(0)
        while sent - acked > window(size):
            acked = acknowledged(10**9)
    while acked < sent:
        acked = acknowledged(10**9)
    elapsed = time.perf_counter() - start
    raw.write(b"\0\1\0\0" + bytes(4))
    receiver.wait(30)
    return sent / elapsed


def spawn(role):
    return subprocess.Popen([sys.executable, __file__, "--role", role])


def measure(role, size, seconds):
    command = [sys.executable, __file__, "--role", role, "--size", str(size)]
    command += ["--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    try:
        return float(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        print(done.stderr, file=sys.stderr)
        return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", default="")
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    if options.role.startswith("raw") and "CYCLONEDDS_URI" not in os.environ:
        try:
            from rclpy._profile import cyclone_config

            os.environ["CYCLONEDDS_URI"] = cyclone_config()
        except ImportError:
            pass
    if options.role == "rclpy-receive":
        rclpy_receive()
    elif options.role == "raw-receive":
        raw_receive()
    elif options.role == "rclpy-send":
        print(rclpy_send(options.size, options.seconds))
    elif options.role == "raw-send":
        print(raw_send(options.size, options.seconds))
    else:
        results = {"bench": "embedded/chunk_path", "sizes": []}
        for size in SIZES:
            ours = measure("rclpy-send", size, options.seconds)
            raw = measure("raw-send", size, options.seconds)
            entry = {"bytes": size}
            for name, rate in (("rclpy", ours), ("raw", raw)):
                if rate is not None:
                    entry[f"{name}_msgs_per_s"] = round(rate)
                    entry[f"{name}_mb_per_s"] = round(rate * size / 1e6, 1)
            if ours is not None and raw is not None:
                entry["ratio"] = round(ours / raw, 3)
            results["sizes"].append(entry)
        print(json.dumps(results))


if __name__ == "__main__":
    main()
