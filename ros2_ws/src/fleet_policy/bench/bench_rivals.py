"""Compare our node with LeRobot's async_inference and openpi-client in real time.

All programs run as processes. The policy is that of bench_policy: ACT with random
weights, two cameras of 480 x 640 pixels, 7 joints, chunks of 100 actions, 30 Hz. The
rivals are not modified. Each needs a Python environment of its own. Two variables
contain the paths of their Python programs:

    python -m venv build/openpi && build/openpi/bin/pip install -r rivals/openpi.txt
    python -m venv build/lerobot && build/lerobot/bin/pip install -r rivals/lerobot.txt
    OPENPI_PYTHON=build/openpi/bin/python LEROBOT_PYTHON=build/lerobot/bin/python \
        python bench_rivals.py --out runs.jsonl

A rival whose variable is not set is left out; if no variable is set, nothing is
measured. A run begins after the first action. Until then, the link has no limit. Then
the link follows its trace for `SECONDS`, with the outages of `OUTAGES`. The link of a
rival is a TCP forwarder. LOPInfer's senders emulate our link, with the same trace.

Servers compute on this machine with `SERVER_THREADS` threads, but only when the robot's
processes leave processor time free (`after_the_robot`). openpi-client has no server, so
this bench runs one that only waits for the duration of an inference. Our robot computes
on one thread, which is slowed down so that an inference takes `ROBOT` seconds. With our
node, a lost tick is a tick that the node counts as starved or missed. With a rival, if
more than 1/30 s lies between two actions, each further 1/30 s counts as a lost tick.
The bench prints one JSON line for each link and contestant. It appends the line to the
file of `--out` as well, together with the ages over time, which draw_rivals.py draws.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
import torch
from act import CONTRACT, RATE, ActPolicy
from bench_policy import DELAY, RECORD, measured
from diagnostic_msgs.msg import DiagnosticStatus
from fleet_env.links.trace import LinkTrace, read_trace, write_trace
from fleet_policy import qos
from fleet_policy.contract import make_contract
from fleet_policy.mock_robot import MockRobot
from lopinfer_msgs.msg import InferenceStatus
from lopinfer_node.cli.rig import private_domain
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / 'testing'))
from tcp_link import (  # noqa: E402
    OUTAGES,
    SECONDS,
    Forwarder,
    Output,
    after_the_robot,
    its_own,
    process,
    with_outages,
)

HERE = Path(__file__).parent
BIN = 0.5                # seconds that each point covers in the curves of ages over time
ROBOT = 1.0              # seconds that an inference takes on the robot
SERVER_THREADS = 1
READY = 300.0            # time in seconds within which a contestant must begin to act
OURS, ALONE = 'ours', 'robot alone'
LEROBOT, OPENPI = 'LeRobot async_inference', 'openpi-client'
PYTHONS = {LEROBOT: 'LEROBOT_PYTHON', OPENPI: 'OPENPI_PYTHON'}
NODE = 'import sys; from {}; sys.exit(main())'

Acted = list[tuple[float, float]]   # (time in the run, age) of each executed action, in seconds


def links() -> dict[str, LinkTrace]:
    """Return the traces of the links, without outages."""
    found = {'5 MB/s': LinkTrace([0.0], [40.0]), '20 MB/s': LinkTrace([0.0], [160.0])}
    return found | ({'outdoor record': read_trace(RECORD)} if RECORD.exists() else {})


# -- rivals ----------------------------------------------------------------------------------------

def rival(python: str, side: str, trace: LinkTrace, server: list[str], client: list[str]
          ) -> dict[str, Any]:
    """Run a rival for `SECONDS` and return its measurements.

    ``side``: file of the rival's program in the folder `rivals`. ``server``, ``client``: further
    arguments of this program when it runs as the server or as the client.
    """
    program = (os.path.abspath(python), str(HERE / 'rivals' / side))
    port = str(20000 + os.getpid() % 20000)
    with ExitStack() as held:
        # LeRobot writes its log into this folder
        folder = held.enter_context(tempfile.TemporaryDirectory())
        serving = held.enter_context(process(*program, 'server', port, *server,
                                             env=its_own(SERVER_THREADS), cwd=folder,
                                             stdout=subprocess.PIPE, preexec_fn=after_the_robot))
        Output(serving).until(len, READY, f'the server of {side}')
        forwarder = Forwarder(int(port), DELAY)
        acting = held.enter_context(process(*program, 'client', str(forwarder.port), *client,
                                            env=its_own(1), cwd=folder,
                                            stdout=subprocess.PIPE))
        output = Output(acting)
        output.until(len, READY, f'the client of {side}')
        begin = time.monotonic()
        forwarder.begin(with_outages(trace), begin)
        time.sleep(SECONDS)
        sent = sum(forwarder.bytes)
    acted, error = [], ''
    for line in output.lines:
        if line.startswith('ended: '):
            error = line
        elif len(parts := line.split()) == 2:
            acted.append((float(parts[0]) - begin, float(parts[1])))
    acted = [(t, age) for t, age in acted if 0 <= t < SECONDS]
    return figures(lost_ticks(acted), acted, sent, **({'error': error} if error else {}))


def lost_ticks(acted: Acted) -> list[float]:
    """Return the times of ticks without an action, in seconds."""
    times = [0.0, *(t for t, _ in acted), SECONDS]
    return [a + (k + 1) / RATE for a, b in zip(times, times[1:], strict=False)
            for k in range(round((b - a) * RATE) - 1)]


def lerobot(trace: LinkTrace) -> dict[str, Any]:
    """Measure LeRobot's client and server, with an ACT policy as large as ours."""
    python = os.environ[PYTHONS[LEROBOT]]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, str(HERE / 'rivals/lerobot_side.py'), 'save', folder], check=True,
                       env=its_own(1))
        return rival(python, 'lerobot_side.py', trace, [], [folder])


def openpi(trace: LinkTrace) -> dict[str, Any]:
    """Measure openpi's client.

    The client's server waits for as long as an inference takes on this machine.
    """
    return rival(os.environ[PYTHONS[OPENPI]], 'openpi_side.py', trace,
                 [str(seconds_of(SERVER_THREADS))], [])


def seconds_of(threads: int) -> float:
    """Return the seconds that an inference takes on this machine."""
    torch.set_num_threads(threads)
    return round(measured(ActPolicy()), 3)


# -- ours ------------------------------------------------------------------------------------------

class Robot:
    """A mock robot in this process; also records the node's status."""

    def __init__(self, held: ExitStack) -> None:
        context = Context()
        rclpy.init(context=context)
        held.callback(context.try_shutdown)
        node = MockRobot(make_contract(CONTRACT), namespace='/robot1', context=context)
        self.said: list[tuple[float, dict[str, str]]] = []
        self.sent = 0
        node.create_subscription(DiagnosticStatus, 'policy_status', self._on_status, qos.STATUS)
        node.create_subscription(InferenceStatus, 'lopinfer/status', self._on_sent, qos.STATUS)
        self._executor = SingleThreadedExecutor(context=context)
        self._executor.add_node(node)
        held.callback(node.destroy_node)
        held.callback(self._executor.shutdown)

    def _on_status(self, status: DiagnosticStatus) -> None:
        self.said.append((time.monotonic(), {pair.key: pair.value for pair in status.values}))

    def _on_sent(self, status: InferenceStatus) -> None:
        self.sent = status.bytes_up + status.bytes_down

    def spin(self, until: Callable[[], bool], limit: float) -> bool:
        end = time.monotonic() + limit
        while not until() and time.monotonic() < end:
            self._executor.spin_once(timeout_sec=0.05)
        return until()


def ours(trace: LinkTrace | None, lead: float = 0.0) -> dict[str, Any]:
    """Measure our node, with LOPInfer's server as a process.

    ``trace``: rate of the link; None: there is no link, and the robot computes alone. ``lead``:
    seconds from the start of the server to the start of the run; the server must begin to compute
    within this time.
    """
    alone = seconds_of(1)
    given: dict[str, Any] = {'policy': 'act:ActPolicy', 'threads': 1,
                             'slowdown': max(1.0, ROBOT / alone)}
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        held.enter_context(private_domain())
        path = os.pathsep.join([str(HERE), os.environ.get('PYTHONPATH', '')])

        def start(main: str, namespace: str, before: Any = None, **parameters: Any) -> None:
            arguments = [part for name, value in parameters.items()
                         for part in ('-p', f'{name.replace("__", ".")}:={value}')]
            held.enter_context(process(
                sys.executable, '-c', NODE.format(main), '--ros-args', '--log-level', 'warn',
                '-r', f'__ns:={namespace}', *arguments, env={**os.environ, 'PYTHONPATH': path},
                preexec_fn=before))

        robot = Robot(held)
        if trace is None:
            start('fleet_policy.main import main', '/robot1', inference='alone', **given)
            robot.spin(lambda: place_of(robot) == 'robot', READY)
            begin = time.monotonic()
        else:
            write_trace(folder / 'link.txt', with_outages(trace, lead))
            link = {'link__trace': folder / 'link.txt', 'link__latency': DELAY,
                    'link_epoch': time.time()}
            begin = time.monotonic() + lead
            start('lopinfer_node.nodes import server_main as main', '/lopinfer', after_the_robot,
                  threads=SERVER_THREADS, directory=folder, **link)
            start('fleet_policy.main import main', '/robot1', method='server-only', **given,
                  **link)
            if not robot.spin(lambda: place_of(robot) == 'shared', lead):
                raise SystemExit(f'the server computes nothing after {lead:g} s: raise --lead')
            print(f'ready {begin - time.monotonic():.0f} s before the run', file=sys.stderr)
            robot.spin(lambda: time.monotonic() >= begin, lead)
        before, sent = robot.said[-1][1], robot.sent
        first = len(robot.said)
        robot.spin(lambda: time.monotonic() >= begin + SECONDS, SECONDS)
        said = [(t - begin, values) for t, values in robot.said[first:]]
        sent = robot.sent - sent
    after = said[-1][1]
    acted = [(t, float(values['action age (s)'])) for t, values in said
             if values['state'] == 'running']
    lost: list[float] = []
    counted = losses(before)
    for t, values in said:
        lost += [t] * (losses(values) - counted)
        counted = losses(values)

    def grown(key: str) -> int:
        return int(after.get(key, 0)) - int(before.get(key, 0))
    return figures(lost, acted, sent, robot_requests=grown('robot requests'),
                   server_requests=grown('server requests'), server_lost=grown('server lost'),
                   stale_ticks=grown('stale ticks'), missed_ticks=grown('missed ticks'),
                   robot_inference_s=max(ROBOT, alone))


def place_of(robot: Robot) -> str:
    return robot.said[-1][1].get('computed by', '') if robot.said else ''


def losses(values: dict[str, str]) -> int:
    return int(values['starved ticks']) + int(values['missed ticks'])


# -- figures ---------------------------------------------------------------------------------------

def figures(lost: list[float], acted: Acted, nbytes: int, **more: Any) -> dict[str, Any]:
    """Return the numbers of a run; ``lost``: the times of ticks without an action, in seconds."""
    edges = [0.0, *(at for at, _ in OUTAGES), SECONDS + BIN]
    names = ['before', *(f'after {last:g} s' for _, last in OUTAGES)]
    counts = np.histogram(lost, edges)[0].tolist()
    known = [age for _, age in acted]
    bins: dict[int, list[float]] = {}
    for t, age in acted:
        bins.setdefault(int(t / BIN), []).append(age)
    return {'lost_ticks': sum(counts), 'ticks': int(SECONDS * RATE),
            'lost_by_outage': dict(zip(names, counts, strict=True)),
            'age_median_s': round(float(np.median(known)), 3) if known else None,
            'age_95_s': round(float(np.percentile(known, 95)), 3) if known else None,
            'mbyte': round(nbytes / 1e6, 1), **more,
            'ages': [round(float(np.median(bins[k])), 2) if k in bins else None
                     for k in range(int(SECONDS / BIN))]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--link', nargs='*', default=[*links()], help='names of links')
    parser.add_argument('--who', nargs='*', default=[OURS, LEROBOT, OPENPI, ALONE])
    parser.add_argument('--lead', type=float, default=90.0,
                        help='s before the run, in which our server gets the model')
    parser.add_argument('--out', type=Path, help='file to which the lines are appended')
    options = parser.parse_args()
    if not any(name in os.environ for name in PYTHONS.values()):
        print(f'not measured: none of {", ".join(PYTHONS.values())} names a Python',
              file=sys.stderr)
        return
    runs: list[tuple[str, str, Callable[[], dict[str, Any]]]] = []
    for link in options.link:
        trace = links()[link]
        runs += [(link, OURS, lambda trace=trace: ours(trace, options.lead)),
                 (link, LEROBOT, lambda trace=trace: lerobot(trace)),
                 (link, OPENPI, lambda trace=trace: openpi(trace))]
    runs.append(('', ALONE, lambda: ours(None)))
    for link, who, measure in runs:
        if who not in options.who:
            continue
        if who in PYTHONS and PYTHONS[who] not in os.environ:
            print(f'left out: {who}, because {PYTHONS[who]} names no Python', file=sys.stderr)
            continue
        found = {'bench': f'policy: {who}' + (f' over {link}' if link else ''), 'who': who,
                 'link': link, 'seconds': SECONDS, **measure()}
        if options.out:
            with options.out.open('a') as file:
                file.write(json.dumps(found) + '\n')
        found.pop('ages')
        print(json.dumps(found), flush=True)


if __name__ == '__main__':
    main()
