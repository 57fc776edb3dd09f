"""Ours beside openpi-client's websocket and LeRobot's async_inference, processes in real time.

Each needs an environment of its own, whose Python a variable names: OPENPI_PYTHON (`pip install
openpi-client typing_extensions`), LEROBOT_PYTHON (`pip install 'lerobot[async]'`). What is not
named is left out; with none nothing is measured. The link of theirs is a forwarder of TCP that
follows the trace; ours is emulated in LOPInfer's senders, with the same trace, which is repeated
each `SECONDS`, so that a run has one outage. Servers compute on this machine's cores; openpi's
waits for as long as that takes. Our robot is emulated `SLOWER` times slower. Ages of ours are those
of `policy_status`, two a second. One JSON line.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import rclpy
from act import CONTRACT, RATE, ActPolicy
from bench_policy import DELAY, RECORD, measured
from diagnostic_msgs.msg import DiagnosticStatus
from fleet_env.bucket import TokenBucket
from fleet_env.trace import LinkTrace, read_trace, write_trace
from fleet_policy import qos
from fleet_policy.contract import make_contract
from fleet_policy.mock_robot import MockRobot
from fleet_testing import environment, free_domain
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor

HERE = Path(__file__).parent
SECONDS, OUTAGE, AT = 60.0, 10.0, 20.0   # of a run; without a link for so long; from then on
READY = 240.0                            # s in which LOPInfer's plans must be there
SLOWER = 2.0
OPENPI, LEROBOT = 'OPENPI_PYTHON', 'LEROBOT_PYTHON'


def link() -> tuple[str, LinkTrace]:
    """The published outdoor record where it is there, else 5 MB/s; with an outage."""
    trace = read_trace(RECORD) if RECORD.exists() else LinkTrace([0.0], [40.0])
    times = sorted({*(t for t in trace.times.tolist() if t < SECONDS), AT, AT + OUTAGE})
    return ('outdoor record' if RECORD.exists() else '5 MB/s'), LinkTrace(
        times, [0.0 if AT <= t < AT + OUTAGE else trace.rate(t) for t in times], SECONDS)


class Forwarder:
    """Forwards TCP connections to a port, both directions by the trace; counts the bytes."""

    def __init__(self, target: int, trace: LinkTrace) -> None:
        self.bytes, self.port = 0, 0
        self._target, self._trace = target, trace
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, daemon=True).start()
        assert self._ready.wait(10.0)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connect, '127.0.0.1', 0, limit=1 << 16)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await server.serve_forever()

    async def _connect(self, reader, writer) -> None:
        there, back = await asyncio.open_connection('127.0.0.1', self._target, limit=1 << 16)
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer),
                             return_exceptions=True)

    async def _pass(self, reader, writer) -> None:
        bucket = TokenBucket(self._trace, time.monotonic())   # the trace begins with the connection
        while data := await reader.read(16384):
            self.bytes += len(data)
            now = time.monotonic()
            await asyncio.sleep(max(0.0, bucket.offer(len(data), now) + DELAY - now))
            writer.write(data)
            await writer.drain()
        writer.close()


def rival(python: str, side: str, trace: LinkTrace, server: list[str], client: list[str]) -> dict:
    """What a rival executes in `SECONDS`; ``server``, ``client``: options of its program."""
    program = [python, str(HERE / 'rivals' / side)]
    port = 20000 + os.getpid() % 20000
    serving = subprocess.Popen([*program, 'server', str(port), *server], text=True,
                               stdout=subprocess.PIPE)
    try:
        assert serving.stdout is not None and serving.stdout.readline().strip() == 'serving'
        forwarder = Forwarder(port, trace)
        done = subprocess.run(
            [*program, 'client', str(forwarder.port), str(SECONDS), *client], text=True,
            stdout=subprocess.PIPE, timeout=SECONDS + 240, check=True)
    finally:
        serving.kill()
        serving.wait()
    said = json.loads(done.stdout.splitlines()[-1])
    return figures(said['ticks'] - said['executed'], said['ticks'], said['ages'], forwarder.bytes,
                   error=said['error'])


def lerobot(python: str, trace: LinkTrace) -> dict:
    """What LeRobot's client executes with its server and an ACT policy of the same size."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, str(HERE / 'rivals' / 'lerobot_side.py'), 'save', folder],
                       check=True)
        return rival(python, 'lerobot_side.py', trace, [], [folder])


def ours(trace: LinkTrace) -> dict:
    """What the node executes in `SECONDS`, with LOPInfer's server in a process of its own."""
    domain = free_domain()
    os.environ['ROS_DOMAIN_ID'] = str(domain)
    folder = Path(tempfile.mkdtemp())
    write_trace(folder / 'link.txt', trace)
    context = Context()
    rclpy.init(context=context, domain_id=domain)
    robot = MockRobot(make_contract(CONTRACT), namespace='/robot1', context=context)
    said: list = []
    robot.create_subscription(DiagnosticStatus, 'policy_status', said.append, qos.STATUS)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(robot)
    shaped = {'link.trace': folder / 'link.txt', 'link.latency': DELAY}

    def start(module: str, namespace: str, **parameters) -> subprocess.Popen:
        given = [part for name, value in {**parameters, **shaped}.items()
                 for part in ('-p', f'{name}:={value}')]
        return subprocess.Popen(
            [sys.executable, '-c', f'import sys; from {module}; sys.exit(main())', '--ros-args',
             '-r', f'__ns:={namespace}', *given], env=environment(domain, HERE))

    def spin(until, limit: float) -> bool:
        end = time.monotonic() + limit
        while not until() and time.monotonic() < end:
            executor.spin_once(timeout_sec=0.05)
        return until()

    processes = [start('lopinfer_node.nodes import server_main as main', '/lopinfer', threads=1,
                       directory=folder),
                 start('fleet_policy.main import main', '/robot1', policy='act:ActPolicy',
                       threads=1, slowdown=SLOWER, method='server-only')]
    try:
        spin(lambda: bool(said) and value(said[-1], 'computed by') == 'shared', READY)
        before, began = said[-1] if said else None, time.monotonic()
        ages: list[float] = []
        seen = len(said)
        spin(lambda: time.monotonic() > began + SECONDS, SECONDS + 1)
        ages = [float(value(status, 'action age (s)')) for status in said[seen:]]
        after = said[-1]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            end(process)
        executor.shutdown()
        robot.destroy_node()
        context.try_shutdown()

    def grown(key: str) -> int:
        return int(value(after, key)) - (int(value(before, key)) if before else 0)
    return figures(grown('starved ticks'), grown('ticks'), ages, 0,
                   missed_ticks=grown('missed ticks'), server_requests=grown('server requests'),
                   robot_requests=grown('robot requests'), server_lost=grown('server lost'))


def end(process: subprocess.Popen) -> None:
    """Wait until a process that was asked to end has ended; kill it if it does not."""
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def value(status: DiagnosticStatus, key: str) -> str:
    return next((pair.value for pair in status.values if pair.key == key), '')


def figures(starved: int, ticks: int, ages: list[float], nbytes: int, **more) -> dict:
    known = [age for age in ages if np.isfinite(age)]
    return {'starved_ticks': starved, 'ticks': ticks,
            'age_median_s': round(float(np.median(known)), 3) if known else None,
            'age_95_s': round(float(np.percentile(known, 95)), 3) if known else None,
            **({'mbyte': round(nbytes / 1e6, 2)} if nbytes else {}), **more}


def main() -> None:
    pythons = {name: os.environ[name] for name in (OPENPI, LEROBOT) if name in os.environ}
    if not pythons:
        print(f'not measured: neither {OPENPI} nor {LEROBOT} names a Python', file=sys.stderr)
        return
    name, trace = link()
    server = measured(ActPolicy())
    found = {'ours': ours(trace)}
    if OPENPI in pythons:
        found['openpi-client'] = rival(pythons[OPENPI], 'openpi_side.py', trace, [str(server)], [])
    if LEROBOT in pythons:
        found['lerobot async_inference'] = lerobot(pythons[LEROBOT], trace)
    print(json.dumps({'bench': f'policy and rivals over {name}, no link from {AT:g} s for '
                               f'{OUTAGE:g} s', 'seconds': SECONDS, 'rate_hz': RATE,
                      'server_inference_s': round(server, 3), 'our_robot_slower_by': SLOWER,
                      **found}), flush=True)


if __name__ == '__main__':
    main()
