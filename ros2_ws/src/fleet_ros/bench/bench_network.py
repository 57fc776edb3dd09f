"""Compare the profiles of docs/results/network.md with the middleware's defaults.

    sudo python bench_network.py

The bench runs two nodes. Each is in a network namespace of its own, and a bridge joins
the namespaces. The bench prints one JSON line per figure. It measures the IP fragments
per message of 14 kB, and how many bytes per second two idle nodes send. It also
measures the time until the receiver gets messages of the sender again: after an outage of
some seconds, and after kill -9 and a new start of the sender. RMW_IMPLEMENTATION chooses
the middleware. The bench needs root, ip and sysctl.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

OUTAGES = (5, 15, 40)   # durations of the outages in seconds
MESSAGES = 200          # number of messages of `SIZE` bytes that the sender sends at the start
SIZE = 14000            # size of a message in bytes
IDLE = 20.0             # seconds for which the bench watches two idle nodes
KILLED = 10             # number of times that the bench kills the sender and starts it again
# Bind Cyclone DDS to air0. By default it would use the first interface that is up: here `lo`.
PLAIN = ('<CycloneDDS><Domain><General><Interfaces><NetworkInterface name="air0"/></Interfaces>'
         '</General></Domain></CycloneDDS>')


def node(role: str, profile: str) -> None:
    """Run as one of the two nodes until the process is killed.

    ``role``: `talk` sends chunks, and a status ten times a second. `hear` prints what it
    receives. `idle` has publishers and subscriptions, but sends nothing.
    """
    from fleet_env.settings.fleet import ReachConfig
    from fleet_ros.environment import dds_environment

    os.environ.update(
        dds_environment(ReachConfig(interface='air0', domain_id=77)) if profile == 'tuned' else
        {'ROS_DOMAIN_ID': '77', 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET', 'ROS_LOCALHOST_ONLY': '',
         'CYCLONEDDS_URI': PLAIN})
    import rclpy
    from fleet_ros.qos import STATUS
    from rclpy.qos import QoSProfile, ReliabilityPolicy
    from std_msgs.msg import String, UInt8MultiArray

    rclpy.init(args=[])
    me = rclpy.create_node(role)
    chunks = QoSProfile(depth=512, reliability=ReliabilityPolicy.BEST_EFFORT)
    if role == 'idle':
        for number in range(6):
            me.create_publisher(String, f'a{number}', STATUS)
            me.create_subscription(String, f'a{number}', print, STATUS)
    elif role == 'hear':
        me.create_subscription(String, 'status', lambda _: print('status', flush=True), STATUS)
        me.create_subscription(UInt8MultiArray, 'chunk', lambda _: print('chunk', flush=True),
                               chunks)
    else:
        status, chunk = (me.create_publisher(String, 'status', STATUS),
                         me.create_publisher(UInt8MultiArray, 'chunk', chunks))
        left = [MESSAGES]

        def talk() -> None:
            status.publish(String(data='here'))
            if status.get_subscription_count() and left[0]:
                left[0] -= 20
                for _ in range(20):
                    chunk.publish(UInt8MultiArray(data=bytes(SIZE)))

        me.create_timer(0.1, talk)
    rclpy.spin(me)


def run(*command: str) -> None:
    """Run a command; raise an error if it fails."""
    subprocess.run(command, check=True)


def fragments(space: str) -> int:
    """Return how many IP fragments the network namespace ``space`` has created."""
    text = subprocess.run(['ip', 'netns', 'exec', space, 'cat', '/proc/net/snmp'],
                          capture_output=True, text=True, check=True).stdout
    names, values = (line.split() for line in text.splitlines() if line.startswith('Ip:'))
    return int(dict(zip(names, values, strict=True))['FragCreates'])


def sent(space: str) -> int:
    """Return how many bytes the network namespace ``space`` has sent on air0."""
    return int(subprocess.run(
        ['ip', 'netns', 'exec', space, 'cat', '/sys/class/net/air0/statistics/tx_bytes'],
        capture_output=True, text=True, check=True).stdout)


def measure(profile: str) -> None:
    """Measure everything with one profile, and print the results as JSON lines."""
    from rclpy.utilities import get_rmw_implementation_identifier

    def show(**figures: object) -> None:
        print(json.dumps({'bench': 'network', 'rmw': get_rmw_implementation_identifier(),
                          'profile': profile, **figures}), flush=True)

    def start(space: str, role: str) -> subprocess.Popen[str]:
        return subprocess.Popen(['ip', 'netns', 'exec', space, sys.executable, __file__, role,
                                 profile], stdout=subprocess.PIPE, text=True)

    def end(*processes: subprocess.Popen[str]) -> None:
        for process in processes:
            process.kill()
            process.wait()

    before = fragments('rognet1')
    hear, talk = start('rognet0', 'hear'), start('rognet1', 'talk')
    out = hear.stdout
    assert out is not None
    os.set_blocking(out.fileno(), False)
    seen: list[tuple[float, str]] = []

    def read(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            seen.extend((time.monotonic(), line.strip()) for line in out)
            time.sleep(0.01)

    def heard_after() -> float | None:
        seen.clear()
        began = time.monotonic()
        while not seen and time.monotonic() - began < 60:
            read(0.05)
        return round(seen[0][0] - began, 1) if seen else None

    try:
        while not any(kind == 'chunk' for _, kind in seen):
            read(0.1)
        read(4.0)
        chunks = sum(kind == 'chunk' for _, kind in seen)
        show(chunks_heard=chunks, fragments_per_chunk=(fragments('rognet1') - before) / MESSAGES)
        for outage in OUTAGES:
            run('ip', '-n', 'rognetb', 'link', 'set', 'port0', 'nomaster')
            read(outage)
            run('ip', '-n', 'rognetb', 'link', 'set', 'port0', 'master', 'bridge0')
            show(outage_s=outage, heard_again_after_s=heard_after())
            read(5.0)
        again = []
        for _ in range(KILLED):
            end(talk)
            talk = start('rognet1', 'talk')
            read(0.3)  # drop the messages of the previous sender
            again.append(heard_after())
            read(1.0)
        show(killed=KILLED, heard_after_start_s=sorted(again, key=lambda s: s or 99))
    finally:
        end(hear, talk)
    idle = [start('rognet0', 'idle'), start('rognet1', 'idle')]
    try:
        read(5.0)
        already = sent('rognet1')
        read(IDLE)
        show(idle_bytes_per_s=round((sent('rognet1') - already) / IDLE))
    finally:
        end(*idle)


def main() -> None:
    """Make the network namespaces and the bridge, measure both profiles, delete the namespaces."""
    spaces = ('rognetb', 'rognet0', 'rognet1')
    try:
        for space in spaces:
            run('ip', 'netns', 'add', space)
        run('ip', '-n', 'rognetb', 'link', 'add', 'bridge0', 'type', 'bridge')
        run('ip', '-n', 'rognetb', 'link', 'set', 'bridge0', 'up')
        for n in (0, 1):
            run('ip', '-n', 'rognetb', 'link', 'add', f'port{n}', 'type', 'veth', 'peer', 'name',
                'air0', 'netns', f'rognet{n}')
            run('ip', '-n', 'rognetb', 'link', 'set', f'port{n}', 'master', 'bridge0', 'up')
            run('ip', '-n', f'rognet{n}', 'address', 'add', f'10.8.0.{n + 1}/24', 'dev', 'air0')
            for link in ('lo', 'air0'):
                run('ip', '-n', f'rognet{n}', 'link', 'set', link, 'up')
        for profile in ('default', 'tuned'):
            measure(profile)
    finally:
        for space in spaces:
            if Path('/run/netns', space).exists():
                run('ip', 'netns', 'delete', space)


if __name__ == '__main__':
    if len(sys.argv) > 1:
        node(*sys.argv[1:])
    else:
        main()
