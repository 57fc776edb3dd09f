"""Compare policies over bad links in virtual time.

The results are starved ticks, age of actions and bytes. The network is ACT at 30 Hz
with chunks of 100 actions. The bench first measures one inference of the network on
this machine. Then `PolicyMachine`, which also runs on real robots, controls a robot over
a link for `MINUTES` of virtual time. For comparison, the bench repeats this with a robot
that computes alone, and with two clients. The clients wait for the server and cannot
compute on the robot. One client sends a request when its chunk is used up, as openpi's
ActionChunkBroker does. The other client sends a request when half of its chunk is used, as
LeRobot's async_inference does with its default threshold. Both clients are models of
those programs, not the programs themselves.

All contestants send the same data: two images of 8 bits, and joints. When
`PolicyMachine` gives up a request, it stops the transfer, as LOPInfer does. A client
always completes its transfer, as TCP does. The bench prints one JSON line for each link
and each length of outage.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from act import CHUNK, CONTRACT, HEIGHT, JOINTS, RATE, WIDTH, ActPolicy
from fleet_env.emulated.shaped import ShapedLink
from fleet_env.links.trace import LinkTrace, read_trace
from fleet_policy.contract import make_contract
from fleet_policy.core.config import CoreSettings
from fleet_policy.core.machine import ACT, STARVED, PolicyMachine
from fleet_policy.core.places import ROBOT, SERVER
from fleet_policy.policy import chunk_of, example

RECORD = Path('/work/shared/data/traces/rog_outdoors_record.txt')
MINUTES = 10.0
# Lengths of outages in seconds; one outage begins every `EVERY` seconds.
OUTAGES = (0.0, 1.0, 5.0, 30.0)
EVERY, FIRST = 120.0, 45.0
# Bytes of one inference: UP from the robot to the server, DOWN from the server to the robot.
UP, DOWN = 2 * HEIGHT * WIDTH * 3 + 4 * JOINTS, 4 * CHUNK * JOINTS
DELAY = 0.004                       # delay in seconds, one way
PIECE = 32_000  # bytes of one part of a transfer; a transfer is given up only between two parts
PROBES = 0.5                        # seconds until LOPInfer detects a dead link
SERVER_SHARE = 0.1  # the server's computing time divided by the robot's computing time


def measured(policy: ActPolicy) -> float:
    """Return the duration of an inference on this machine in seconds: the shortest of five."""
    model, inputs = policy.model(), example(policy, make_contract(CONTRACT))
    took = []
    with torch.no_grad():
        for _ in range(6):
            began = time.perf_counter()
            actions = chunk_of(policy, model(*inputs))
            took.append(time.perf_counter() - began)
    assert actions.shape == (CHUNK, JOINTS)
    return min(took[1:])


def with_outages(trace: LinkTrace, seconds: float, total: float) -> LinkTrace:
    """Return the trace, repeated for ``total`` seconds and with outages.

    In every period of `EVERY` seconds there is one outage, which lasts ``seconds`` seconds.
    """
    times = [k * trace.period + t for k in range(math.ceil(total / trace.period))
             for t in trace.times.tolist()]
    cuts = [FIRST + k * EVERY for k in range(int(total / EVERY))] if seconds else []
    times = sorted({*(t for t in times if t < total), *cuts, *(cut + seconds for cut in cuts)})
    rates = [0.0 if any(cut <= t < cut + seconds for cut in cuts) else trace.rate(t)
             for t in times]
    return LinkTrace(times, rates, total)


class Run:
    """One robot over one link in virtual time."""

    def __init__(self, trace: LinkTrace, robot: float, server: float) -> None:
        self.robot, self.server = robot, server
        # These links have no delay, because `ask` adds the delay.
        self.up, self.down = (ShapedLink(trace) for _ in range(2))
        for link in (self.up, self.down):
            link.hold()
            link.begin(0.0)   # virtual time begins at 0
        self.bytes = 0
        self._queue: list = []
        self._ready: list = []
        self._order = itertools.count()

    def at(self, when: float, what) -> None:
        heapq.heappush(self._queue, (when, next(self._order), what))

    def ask(self, answer, now: float, wanted=lambda: True) -> None:
        """Send an observation, compute, and send the actions; then call ``answer(now)``.

        ``wanted()``: whether the transfer of the observation should continue.
        """
        left = UP

        def send(t: float) -> None:
            nonlocal left
            if wanted():
                size = min(left, PIECE)
                left -= size
                self.bytes += size
                self.up.send(size, lambda: self._ready.append(sent), t)

        def sent(t: float) -> None:
            if left:
                send(t)
            else:
                self.at(t + DELAY + self.server, computed)

        def computed(t: float) -> None:
            self.bytes += DOWN
            self.down.send(DOWN, lambda: self._ready.append(
                lambda left: self.at(left + DELAY, answer)), t)
        send(now)

    def go(self, tick, seconds: float) -> None:
        """Call ``tick(number, now)`` at each tick, for ``seconds`` seconds of virtual time."""
        self.now = 0.0
        for k in range(int(seconds * RATE)):
            end = k / RATE
            while True:
                due = min(self._queue[0][0] if self._queue else math.inf,
                          self.up.deadline, self.down.deadline)
                if due > end:
                    break
                self.now = due
                for link in (self.up, self.down):
                    link.release(due)
                while self._queue and self._queue[0][0] <= due:
                    heapq.heappop(self._queue)[2](due)
                while self._ready:
                    self._ready.pop(0)(due)
            self.now = end
            tick(k, end)


def ours(run: Run, seconds: float, places: tuple[str, ...]) -> dict:
    """Run `PolicyMachine`, which sends the server no requests while the link counts as dead."""
    machine = PolicyMachine(RATE, JOINTS, places, CoreSettings())
    machine.places[ROBOT].measured(run.robot)
    chunk = np.zeros((CHUNK, JOINTS))
    ages, states, where = [], [], []

    alive = 0.0

    def tick(k: int, now: float) -> None:
        nonlocal alive
        machine.on_observation(now)
        alive = alive if run.up.is_dead(now) else now
        if SERVER in machine.places:
            machine.set_available(SERVER, now - alive < PROBES)
        command, asked = machine.on_tick(now)
        states.append(machine.state)
        if command.kind == ACT:
            ages.append(command.age)
            where.append(command.place)
        for infer in asked:
            def answer(t: float, number: int = infer.request) -> None:
                machine.on_answer(number, chunk, t)
            if infer.place == ROBOT:
                run.at(now + run.robot, answer)
            else:
                run.ask(answer, now, lambda n=infer.request: machine.is_awaited(n))
    run.go(tick, seconds)
    return figures(states.count(STARVED), len(states), ages, run.bytes, seconds,
                   robot=where.count(ROBOT) / max(1, len(where)),
                   inferences_on_robot=machine.places[ROBOT].counts['requests'])


def waits(run: Run, seconds: float, share: float) -> dict:
    """Run a client that makes one request at a time and cannot compute on the robot.

    ``share``: the client sends a request if at most this share of a chunk is left, 0 to 1.
    """
    # maps a tick to the time of the observation from which its action follows
    queue: dict[int, float] = {}
    busy, ages, starved, begun, total = False, [], 0, False, 0

    def tick(k: int, now: float) -> None:
        nonlocal busy, starved, begun, total
        total += 1
        observed = queue.pop(k, None)
        begun = begun or observed is not None
        if observed is not None:
            ages.append(now - observed)
        elif begun:
            starved += 1
        if not busy and len(queue) <= share * CHUNK:
            busy = True

            def answer(t: float) -> None:
                nonlocal busy
                busy = False
                # If `share` is 0, a chunk begins when it arrives, as in openpi's broker.
                first = k if share else math.ceil(t * RATE)
                for step in range(CHUNK):
                    if first + step >= t * RATE:
                        queue[first + step] = now
            run.ask(answer, now)
    run.go(tick, seconds)
    return figures(starved, total, ages, run.bytes, seconds)


def figures(starved: int, ticks: int, ages: list[float], nbytes: int, seconds: float, **more
            ) -> dict:
    return {'starved_ticks': starved, 'ticks': ticks,
            'age_median_s': round(float(np.median(ages)), 3) if ages else None,
            'age_95_s': round(float(np.percentile(ages, 95)), 3) if ages else None,
            'age_most_s': round(max(ages), 3) if ages else None,
            'mbyte_per_minute': round(nbytes / 1e6 / (seconds / 60), 2),
            **{key: round(value, 3) for key, value in more.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--minutes', type=float, default=MINUTES)
    parser.add_argument('--robot-seconds', type=float, default=0.0,
                        help='computing time of the robot; 0: measured here')
    options = parser.parse_args()
    robot = options.robot_seconds or measured(ActPolicy())
    server = SERVER_SHARE * robot
    total = options.minutes * 60
    links = {'5 MB/s': LinkTrace([0.0], [40.0]), '20 MB/s': LinkTrace([0.0], [160.0])}
    if RECORD.exists():
        links['outdoor record'] = read_trace(RECORD)
    for name, trace in links.items():
        for outage in OUTAGES:
            cut = with_outages(trace, outage, total)

            def fresh(cut: LinkTrace = cut) -> Run:
                return Run(cut, robot, server)
            print(json.dumps({
                'bench': f'policy over {name}, outages of {outage:g} s', 'minutes': options.minutes,
                'robot_inference_s': round(robot, 3), 'server_inference_s': round(server, 3),
                'ours': ours(fresh(), total, (ROBOT, SERVER)),
                'robot alone': ours(fresh(), total, (ROBOT,)),
                'waits when half is used (lerobot)': waits(fresh(), total, 0.5),
                'waits when all is used (openpi)': waits(fresh(), total, 0.0)}), flush=True)


if __name__ == '__main__':
    main()
