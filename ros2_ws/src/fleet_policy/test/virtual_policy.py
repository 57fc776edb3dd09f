"""A robot in virtual time: `PolicyMachine`, the robot's computer, a server and a bad link.

Each action consists of two numbers: the tick of the observation from which it follows, and the
tick for which it is planned. So an executed action shows which observation it follows from.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

import numpy as np
from fleet_policy.core.machine import ACT, SAFE, STARVED, PolicyMachine
from fleet_policy.core.places import ROBOT, SERVER


def chunk_of(tick, length):
    """Return the actions (length, 2) that follow from an observation at a tick."""
    return np.stack([np.full(length, tick), np.arange(tick, tick + length)], axis=1).astype(float)


@dataclass
class World:
    """Runs a `PolicyMachine` in virtual time.

    ``replies(now)``: delays in seconds of the server's replies to a request, one delay for each
    copy of the reply. With an empty list the reply is lost.
    """

    machine: PolicyMachine
    length: int
    robot_takes: float
    replies: object = lambda now: []
    period: float = 1 / 30          # seconds between observations
    executed: list = field(default_factory=list)
    asked: list = field(default_factory=list)
    spoil: object = lambda request, actions: actions

    def __post_init__(self):
        self.now, self._events, self._order = 0.0, [], itertools.count()
        self._push(0.0, self._observe)
        self._push(0.0, self._tick)

    def _push(self, at, what):
        heapq.heappush(self._events, (at, next(self._order), what))

    def run(self, seconds):
        end = self.now + seconds
        while self._events[0][0] <= end:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = end
        return self

    def _observe(self):
        self.machine.on_observation(self.now)
        self._push(self.now + self.period, self._observe)

    def _tick(self):
        command, asked = self.machine.on_tick(self.now)
        tick = self.machine.tick_number
        self.executed.append((tick, self.now, command, self.machine.state))
        if command.kind == ACT:
            assert abs(command.values[1] - tick) < 1e-6   # the action was computed for this tick
            assert abs(command.age - (self.now - command.values[0] / 30)) < 1 / 30 + 1e-6
        for infer in asked:
            self.asked.append((self.now, infer))
            delays = [self.robot_takes] if infer.place == ROBOT else self.replies(self.now)
            actions = self.spoil(infer, chunk_of(self.machine.tick_of(infer.observed), self.length))
            for delay in delays:
                self._push(self.now + delay, lambda i=infer, a=actions: self.machine.on_answer(
                    i.request, a, self.now))
        self._push((tick + 1) / 30, self._tick)

    @property
    def starved(self):
        return sum(state == STARVED for *_, state in self.executed)

    @property
    def ended_safe(self):
        return self.machine.state == SAFE

    def places(self):
        return [command.place for _, _, command, _ in self.executed if command.kind == ACT]


def world(replies=None, length=100, robot_takes=0.5, settings=None, **more):
    places = (ROBOT,) if replies is None else (ROBOT, SERVER)
    machine = PolicyMachine(30.0, 2, places, settings)
    made = World(machine, length, robot_takes, replies or (lambda now: []), **more)
    machine.places[ROBOT].measured(robot_takes)
    return made
