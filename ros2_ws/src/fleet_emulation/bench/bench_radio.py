"""Compares the emulated radio with the kernel's token bucket (``tc tbf``).

Both run in the network namespaces of an emulated fleet, so the bench needs root. Robots send more
than their links can carry. The result ``used`` is all data that the server receives, headers
included, divided by the data that a link can carry alone. If there are several links, the divisor
is the mean of what each of them can carry alone. In the first case, one robot has a trace that
changes every 0.5 s. In the second case, two robots with links of 20 Mbit/s share the air time;
``used`` is 1 if the whole air time is used. The bench sets the rate of the token bucket every
0.1 s. A token bucket cannot model that robots share the air.
"""

import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fleet_emulation.network import INTERFACE, SERVER, EmulatedNetwork, addresses
from fleet_env.settings.fleet import FleetConfig
from fleet_env.settings.fleet_file import (
    dump_fleet,
    link_trace,
    load_fleet,
    with_overrides,
    with_robots,
)
from rog_bringup import FLEETS

SECONDS, STEP, PAYLOAD = 10.0, 0.1, 1400
OVERHEAD = 42  # bytes of the Ethernet, IP and UDP headers, which also use air time


def fleet_of(robots: int, **link: object) -> FleetConfig:
    fleet = with_robots(load_fleet('outdoor', [FLEETS]), robots)
    return with_overrides(fleet, {f'link.{key}': value for key, value in link.items()})


def bound(network: EmulatedNetwork, name: str) -> socket.socket:
    with network.inside(name):
        found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.bind((addresses(network.robots)[name], 5000))
    return found


def flood(sender: socket.socket, target: tuple[str, int], over: threading.Event) -> None:
    sender.setblocking(False)
    while not over.is_set():
        with suppress(BlockingIOError, OSError):
            for _ in range(10):
                sender.sendto(bytes(PAYLOAD), target)
        time.sleep(0.001)


def arrived(network: EmulatedNetwork, during: Callable[[float], None]) -> float:
    """Return how many Mbit arrive at the server in `SECONDS` seconds, headers included."""
    over, server = threading.Event(), bound(network, SERVER)
    server.settimeout(STEP)
    target = (addresses(network.robots)[SERVER], 5000)
    for name in network.robots:
        threading.Thread(target=flood, args=(bound(network, name), target, over)).start()
    begin, frames, due = time.monotonic(), 0, 0.0
    while (now := time.monotonic() - begin) < SECONDS:
        if now >= due:
            due += STEP
            during(now)
        with suppress(TimeoutError):
            frames += len(server.recv(2000)) == PAYLOAD
    over.set()
    return frames * (PAYLOAD + OVERHEAD) * 8e-6


def tbf(network: EmulatedNetwork, name: str, verb: str, rate: float) -> None:
    with network.inside(name):
        subprocess.run(['tc', 'qdisc', verb, 'dev', INTERFACE, 'root', 'tbf', 'rate',
                        f'{max(rate, 0.001):.3f}mbit', 'burst', '5000', 'limit', '100000'],
                       check=True)


def measure(fleet: FleetConfig, kernel: bool) -> dict[str, float]:
    traces = {robot.name: link_trace(robot.link) for robot in fleet.robots}
    times: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory)
        (out / 'fleet.yaml').write_text(dump_fleet(fleet))
        with EmulatedNetwork(fleet, out) as network:
            def rates(now: float) -> None:
                if not kernel:
                    return
                for name, trace in traces.items():
                    begin = time.perf_counter()
                    tbf(network, name, 'change', trace.rate(now))
                    times.append(time.perf_counter() - begin)
            for name, trace in traces.items():
                if kernel:
                    tbf(network, name, 'add', trace.rate(0.0))
            if not kernel:
                network.begin()
            found = arrived(network, rates)
        late = json.loads((out / 'air.json').read_text())['late']
    offered = sum(trace.carried(SECONDS) for trace in traces.values()) / len(traces)
    more = {'change_ms': round(1e3 * sum(times) / len(times), 2)} if times else {'latest_s': late}
    return {'used': round(found / offered, 3), **more}


if os.geteuid() == 0:
    one = fleet_of(1, trace='outdoor', scale=0.2, offset=0)
    two = fleet_of(2, rate=20, scale=1)
    print(json.dumps({'bench': 'emulated_radio', **{
        what: {who: measure(fleet, who == 'tbf') for who in ('radio', 'tbf')}
        for what, fleet in (('one robot, a trace', one), ('two robots, 20 Mbit/s', two))}}))
