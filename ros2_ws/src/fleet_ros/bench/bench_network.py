"""The profile of docs/network.md beside Cyclone's defaults: two nodes, each in a network namespace.

    sudo python bench_network.py

A bridge joins the namespaces. One JSON line per figure: IP fragments per message of 14 kB, and how
long after an outage of some seconds a node hears the other again. Needs root, ip and sysctl.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

OUTAGES = (5, 15, 40)   # s
MESSAGES = 200          # of the size of a chunk
SIZE = 14000            # B


def node(role: str) -> None:
    """One of the two nodes: `talk` sends a status ten times a second, and chunks; `hear` prints."""
    import rclpy
    from fleet_ros.qos import STATUS
    from rclpy.qos import QoSProfile, ReliabilityPolicy
    from std_msgs.msg import String, UInt8MultiArray

    rclpy.init(args=[])
    me = rclpy.create_node(role)
    chunks = QoSProfile(depth=512, reliability=ReliabilityPolicy.BEST_EFFORT)
    if role == 'hear':
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
    """Run a command of the network."""
    subprocess.run(command, check=True)


def fragments(space: str) -> int:
    """IP fragments that a namespace has made."""
    text = subprocess.run(['ip', 'netns', 'exec', space, 'cat', '/proc/net/snmp'],
                          capture_output=True, text=True, check=True).stdout
    names, values = (line.split() for line in text.splitlines() if line.startswith('Ip:'))
    return int(dict(zip(names, values, strict=True))['FragCreates'])


def measure(profile: str) -> None:
    """Print the figures of one profile."""
    from fleet_env.fleet import ReachConfig
    from fleet_ros.dds_profiles import cyclone_profile

    plain = ('<CycloneDDS><Domain><General><Interfaces><NetworkInterface name="air0"/></Interfaces>'
             '</General></Domain></CycloneDDS>')
    uri = plain if profile == 'default' else cyclone_profile(ReachConfig(interface='air0'))
    environment = {**os.environ, 'CYCLONEDDS_URI': uri, 'ROS_DOMAIN_ID': '77',
                   'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET', 'ROS_LOCALHOST_ONLY': ''}

    def start(space: str, role: str) -> subprocess.Popen[str]:
        return subprocess.Popen(['ip', 'netns', 'exec', space, sys.executable, __file__, role],
                                env=environment, stdout=subprocess.PIPE, text=True)

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

    try:
        while not any(kind == 'chunk' for _, kind in seen):
            read(0.1)
        read(4.0)
        chunks = sum(kind == 'chunk' for _, kind in seen)
        print(json.dumps({'bench': 'network', 'profile': profile, 'chunks_heard': chunks,
                          'fragments_per_chunk': (fragments('rognet1') - before) / MESSAGES}),
              flush=True)
        for outage in OUTAGES:
            run('ip', '-n', 'rognetb', 'link', 'set', 'port0', 'nomaster')
            read(outage)
            seen.clear()
            run('ip', '-n', 'rognetb', 'link', 'set', 'port0', 'master', 'bridge0')
            back = time.monotonic()
            while not seen and time.monotonic() - back < 60:
                read(0.05)
            after = round(seen[0][0] - back, 1) if seen else None
            print(json.dumps({'bench': 'network', 'profile': profile, 'outage_s': outage,
                              'heard_again_after_s': after}), flush=True)
            read(5.0)
    finally:
        for process in (hear, talk):
            process.kill()
            process.wait()


def main() -> None:
    """Make the network, measure both profiles, and remove it."""
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
        node(sys.argv[1])
    else:
        main()
