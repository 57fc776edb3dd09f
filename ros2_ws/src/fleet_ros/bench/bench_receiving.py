"""Measure how many chunks per second a process receives with rclpy and with fleet_ros.receiving.

    python bench_receiving.py [--seconds 3] [--repeat 3]

The sender publishes as fast as it can, with best-effort delivery; the bench counts only the
messages that the receiver gets. For comparison, the bench measures UDP datagrams of the same size
over the same interface, with Python's sockets. The bench prints one JSON line.
RMW_IMPLEMENTATION chooses the middleware.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

SIZES = (1_300, 14_000, 32_000)
TOPIC = 'chunks'


def profile() -> Any:
    from rclpy.qos import QoSProfile, ReliabilityPolicy
    return QoSProfile(depth=512, reliability=ReliabilityPolicy.BEST_EFFORT)


def send(size: int) -> None:
    """Publish messages of ``size`` bytes until this process is killed."""
    import rclpy
    from std_msgs.msg import UInt8MultiArray
    rclpy.init(args=[])
    node = rclpy.create_node('sender')
    publisher = node.create_publisher(UInt8MultiArray, TOPIC, profile())
    message = UInt8MultiArray(data=array.array('B', bytes(size)))
    while True:
        publisher.publish(message)


def receive(size: int, way: str, seconds: float) -> tuple[float, float]:
    """Measure the messages per second, and the processor time per message in microseconds.

    ``way``: `rclpy`, or `ours` for fleet_ros.receiving.
    """
    import rclpy
    from fleet_ros.receiving import subscribe
    from rclpy.executors import SingleThreadedExecutor
    from std_msgs.msg import UInt8MultiArray
    rclpy.init(args=[])
    node = rclpy.create_node('receiver')
    count = 0

    def on_message(message: Any) -> None:
        nonlocal count
        assert len(message.data) == size
        count += 1

    if way == 'rclpy':
        node.create_subscription(UInt8MultiArray, TOPIC, on_message, profile())
    else:
        subscribe(node, UInt8MultiArray, TOPIC, on_message, profile())
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    while count < 100:
        executor.spin_once(timeout_sec=1.0)
    start, began, used = count, time.monotonic(), time.process_time()
    while time.monotonic() - began < seconds:
        executor.spin_once(timeout_sec=0.1)
    taken, wall = count - start, time.monotonic() - began
    used = time.process_time() - used
    return taken / wall, 1e6 * used / taken


def udp(size: int, seconds: float) -> tuple[float, float]:
    """Measure the same two numbers as `receive`, but for UDP datagrams without DDS."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.bind(('127.0.0.1', 0))
        code = ('import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n'
                f'data = bytes({size})\nwhile True: s.sendto(data, {here.getsockname()})')
        with subprocess.Popen([sys.executable, '-c', code]) as process:
            here.recv(65536)
            count, began, used = 0, time.monotonic(), time.process_time()
            while time.monotonic() - began < seconds:
                here.recv(65536)
                count += 1
            used = time.process_time() - used
            process.kill()
    return count / seconds, 1e6 * used / count


def one(size: int, way: str, seconds: float) -> list[float]:
    """Start a sender and a receiver as new processes; return the receiver's measurements."""
    command = [sys.executable, __file__, '--size', str(size), '--way']
    sender = subprocess.Popen([*command, 'send'])
    try:
        done = subprocess.run([*command, way, '--seconds', str(seconds)], check=True,
                              capture_output=True, text=True, timeout=60 + seconds)
        return list(json.loads(done.stdout))
    finally:
        sender.kill()
        sender.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--seconds', type=float, default=3.0)
    parser.add_argument('--repeat', type=int, default=3)
    parser.add_argument('--size', type=int, help=argparse.SUPPRESS)
    parser.add_argument('--way', help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way == 'send':
        send(options.size)
    elif options.way:
        print(json.dumps(receive(options.size, options.way, options.seconds)))
    else:
        from fleet_env.settings.fleet import ReachConfig
        from fleet_ros.environment import dds_environment
        os.environ.update(dds_environment(ReachConfig(domain_id=77)))
        from rclpy.utilities import get_rmw_implementation_identifier
        result: dict[str, Any] = {'bench': 'fleet_ros/receiving',
                                  'rmw': get_rmw_implementation_identifier()}
        for size in SIZES:
            for way in ('udp', 'rclpy', 'ours'):
                runs = [udp(size, options.seconds) if way == 'udp'
                        else one(size, way, options.seconds) for _ in range(options.repeat)]
                rate = statistics.median(rate for rate, _ in runs)
                result[f'{way} {size} B'] = {
                    'messages/s': round(rate), 'MB/s': round(rate * size / 1e6, 1),
                    'receiver us': round(statistics.median(us for _, us in runs), 1)}
        print(json.dumps(result))


if __name__ == '__main__':
    main()
