"""Decides what the robot executes, and which place computes further actions.

The machine does no I/O and reads no clock. It has these states:

    waiting -> running <-> starved;   any -> safe -> waiting

The first action ends `waiting`. In `running` there is an action for the tick; in
`starved` there is no action. After a fault the state is `safe`, and `reason` describes
the fault. In `starved` and `safe` the robot does what the setting `safety` says.

A place is the robot or the server. The machine requests new actions when the queue
contains less than the share `request_share` of a chunk. It asks the fastest of the places
that answer. If this place is not the robot, the machine asks earlier where necessary, so that
the answer arrives before the robot must begin to compute. This is not possible if the latency
of the place is too long for the length of the chunks.

If the other places do not answer in time, the robot computes the actions itself. The
robot begins while the queue still lasts long enough for this computation. So after the
loss of the link new actions come less often. But every tick has an action, if the robot
alone can compute a chunk before the previous chunk ends.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from .chunks import TAKEN, ActionQueue, Actions, Chunk
from .config import CoreSettings
from .places import ROBOT, Place

WAITING, RUNNING, STARVED, SAFE = 'waiting', 'running', 'starved', 'safe'
ACTS, LACKS, FAULT, CLEARED = 'acts', 'lacks', 'fault', 'cleared'
# Maps (state, event) to the next state. An event that is not listed for a state does not change the
# state.
TABLE = {(WAITING, ACTS): RUNNING, (STARVED, ACTS): RUNNING, (RUNNING, LACKS): STARVED,
         **{(state, FAULT): SAFE for state in (WAITING, RUNNING, STARVED)},
         (SAFE, CLEARED): WAITING}

ACT, HOLD, STOP, NOTHING = 'act', 'hold', 'stop', 'nothing'
REMEMBERED = 256     # maximum number of unanswered requests whose answers are still accepted
# If the robot is the fastest place, it asks another place every RETRY seconds, to measure how fast
# that place is now.
RETRY = 10.0


@dataclass(frozen=True, eq=False)
class Infer:
    """An order: ``place`` must compute actions.

    ``observed``: time of the observation from which the actions are computed.

    ``prefix``: the planned actions from ``observed`` on, an array with one action per row; None if
    no action is planned. The robot will execute these actions before the answer can arrive. A
    policy that inpaints needs the prefix, because it completes a chunk whose first actions are
    given.
    """

    place: str
    request: int
    observed: float
    prefix: Actions | None


@dataclass(frozen=True, eq=False)
class Command:
    """What the robot does at a tick: ACT with ``values``, HOLD, STOP or NOTHING.

    ``age``: seconds since the observation from which the action follows. ``place``: where the
    action was computed.
    """

    kind: str
    values: Actions | None = None
    age: float = math.nan
    place: str = ''


class PolicyMachine:
    """State machine of one robot and one policy: decides what to execute and where to compute.

    :param rate: ticks of the control loop per second.
    :param size: how many numbers an action has.
    :param places: names of the places that compute; ROBOT is always one of them.
    """

    def __init__(self, rate: float, size: int, places: tuple[str, ...] = (ROBOT,),
                 settings: CoreSettings | None = None) -> None:
        self.rate, self.size = rate, size
        self.settings = s = settings or CoreSettings()
        self.state = WAITING
        self.reason = ''                     # reason for the state `safe`
        self.places = {name: Place(name) for name in {ROBOT: 0, **dict.fromkeys(places)}}
        self.counts: Counter[str] = Counter()
        self._reported: Counter[str] = Counter()   # copy of `counts` at the last report
        self.command = Command(NOTHING)
        self.tick_number = -1
        self.longest = 0                     # number of actions in the longest chunk so far
        self._queue = ActionQueue(s.half_life if s.aggregation == 'weighted' else 0.0)
        self._observed = -math.inf           # time of the latest observation
        # Maps a request to (place, time of its observation, time of sending); times are in seconds.
        self._open: dict[int, tuple[str, float, float]] = {}
        self._number = 0
        self._sensors: dict[str, str] = {}   # maps a source of observations to its fault
        self._latched = ''

    # -- events ----------------------------------------------------------------------------------

    def on_observation(self, observed: float) -> None:
        """Record that an observation is complete; ``observed``: its time in seconds."""
        self._observed = max(self._observed, observed)

    def on_answer(self, request: int, actions: Actions, now: float, where: str = '') -> str:
        """Add the chunk of an answer to the queue; return what happened to the chunk.

        The result is 'taken', 'late', 'repeated', 'unknown' (no such request), 'dropped' (in the
        state `safe`), or a text that says what is wrong with the actions.
        ``where``: the place that computed the chunk; '': the place that was asked.
        """
        if request not in self._open:
            return self._count('unknown' if request > self._number or request < 1 else 'repeated')
        place, observed, sent = self._open.pop(request)
        self.places[place].answered(request, now, sent)
        if fault := self._flaw(actions):
            self.fault(f'the policy must return finite actions of shape (n, {self.size}) with n at '
                       f'least 1, got {fault}')
            return fault
        if self.state == SAFE:
            return self._count('dropped')
        self.longest = max(self.longest, len(actions))
        chunk = Chunk(self.tick_of(observed), observed, actions, where or place)
        return self._count(self._queue.add(chunk, self.tick_of(now)))

    def on_failure(self, request: int, reason: str, now: float) -> None:
        """Record that a request has failed for a reason other than the policy."""
        if request in self._open:
            self.places[self._open.pop(request)[0]].failed(request, reason, now)

    def set_available(self, place: str, available: bool, reason: str = '') -> None:
        """Record whether a place can be asked; ``reason``: why it cannot."""
        found = self.places[place]
        if found.available and not available:
            found.reason = reason
        found.available = available

    def fault(self, reason: str) -> None:
        """Enter the safe state and stay there until `reset`."""
        self._latched = self._latched or reason
        self._enter(FAULT)

    def sensor(self, name: str, flaw: str) -> None:
        """Record what is wrong with a source of observations.

        ``flaw``: what is wrong; '' if nothing is wrong.

        The robot stays in the safe state as long as something is wrong with at least one
        source.
        """
        if not flaw:
            self._sensors.pop(name, None)
        else:
            self._sensors[name] = flaw
        if self._sensors:
            self._enter(FAULT)
        elif not self._latched:
            self._enter(CLEARED)
        self._explain()

    def reset(self) -> None:
        """Drop all actions and faults, and start again; ignore answers to earlier requests."""
        self._latched = ''
        self._sensors.clear()
        self._queue.clear()
        self._open.clear()
        for place in self.places.values():
            place.begin()
        self.state, self.command = WAITING, Command(NOTHING)
        self._observed, self.tick_number = -math.inf, -1
        self._explain()

    def is_awaited(self, request: int) -> bool:
        """Return whether the answer to a request is still expected and not counted as lost."""
        return request in self._open and self.places[self._open[request][0]].has(request)

    # -- time ------------------------------------------------------------------------------------

    def tick_of(self, seconds: float) -> int:
        """Return the tick in which a time lies."""
        # Add a small number, so that rounding does not move the time k / rate into tick k - 1.
        return math.floor(seconds * self.rate + 1e-6)

    @property
    def deadline(self) -> float:
        """Return the time of the next tick."""
        return (self.tick_number + 1) / self.rate if self.tick_number >= 0 else -math.inf

    def on_tick(self, now: float) -> tuple[Command, list[Infer]]:
        """Return the command for the tick at ``now``, and requests for actions of later ticks."""
        tick = self.tick_of(now)
        if self.tick_number >= 0:
            self.counts['missed'] += max(0, tick - self.tick_number - 1)
        self.tick_number = tick
        for place in self.places.values():
            place.expire(self.settings.patience, now)
        self._queue.forget(tick)
        self.command = self._decide(tick, now)
        return self.command, self._requests(tick, now)

    def _decide(self, tick: int, now: float) -> Command:
        self.counts['ticks'] += 1
        planned = None if self.state == SAFE else self._queue.action(tick)
        age = math.nan if planned is None else now - planned.observed
        most = self.settings.most_age
        if planned is None or (most and age > most):
            self._enter(LACKS)
            if self.state == STARVED:
                self.counts['starved'] += 1
            return Command(NOTHING if self.state == WAITING else self.settings.safety)
        self._enter(ACTS)
        self.counts['executed'] += 1
        self.counts['stale'] += age > self.settings.stale
        return Command(ACT, planned.values, age, planned.place)

    # -- requests --------------------------------------------------------------------------------

    def _requests(self, tick: int, now: float) -> list[Infer]:
        if self.state == SAFE:
            return []
        # Seconds until the first tick without an action.
        left = (tick + 1 + self._queue.covered(tick + 1)) / self.rate - now
        asked: list[Infer] = []
        place = self._preferred(now)
        if left <= 1 / self.rate + self._asks_at(place) \
                and place.busy < (1 if place.name == ROBOT else self.settings.in_flight) \
                and now >= place.sent + self._spacing(place) and self._is_new(place):
            asked.append(self._ask(place, now))
        robot = self.places[ROBOT]
        if not robot.busy and left <= self._last_moment and robot.can(now) and self._is_new(robot):
            asked.append(self._ask(robot, now))
        return asked

    @property
    def _last_moment(self) -> float:
        """Return how many seconds before the end of the queue the robot begins to compute."""
        return self.settings.margin * self.places[ROBOT].longest + 2 / self.rate

    def _asks_at(self, place: Place) -> float:
        """Return how many seconds before the end of the queue to ask a place for actions.

        A slow robot begins to compute long before the end of the queue. Another place must be
        asked so early that its answer arrives before the robot begins. If the latency of the
        place is long, the queue may never last long enough for this (`_most_left`). Then only
        `request_share` decides.
        """
        share = self.settings.request_share * self.longest / self.rate
        if place.name == ROBOT:
            return max(share, self._last_moment)
        # Before the first answer, both latencies are unknown (infinite or NaN), and the
        # comparison below is false.
        for latency in (place.longest, place.usual):
            early = self._last_moment + latency + 1 / self.rate
            if early <= self._most_left(latency):
                return max(share, early)
        return share

    def _most_left(self, latency: float) -> float:
        """Return the longest time, in seconds, for which the queue can last when a request is sent.

        ``latency``: seconds from a request to its answer.
        """
        return self.longest / self.rate - latency / self.settings.in_flight

    def _preferred(self, now: float) -> Place:
        """Return the place with the shortest usual latency.

        If this is the robot, return another place every `RETRY` seconds, to measure its latency.
        """
        robot = self.places[ROBOT]
        others = [place for place in self.places.values() if place is not robot and place.can(now)]
        if not others:
            return robot
        best = min(others, key=lambda place: place.usual)
        if robot.usual < best.usual and now < best.sent + RETRY:
            return robot
        return best

    def _spacing(self, place: Place) -> float:
        """Return the least time between two requests to a place, in seconds.

        With this spacing, at most `in_flight` requests are sent within the place's usual latency.
        """
        usual = place.usual
        return 0.0 if math.isnan(usual) else usual / self.settings.in_flight

    def _is_new(self, place: Place) -> bool:
        """Return whether an answer to the latest observation could add actions to the queue."""
        latest = self._queue.latest
        return self._observed > place.newest and (
            latest is None or self.tick_of(self._observed) > latest)

    def _ask(self, place: Place, now: float) -> Infer:
        self._number += 1
        self._open[self._number] = place.name, self._observed, now
        while len(self._open) > REMEMBERED:
            self._open.pop(next(iter(self._open)))
        place.ask(self._number, self._observed, now)
        longest = place.longest if math.isfinite(place.longest) else 0.0
        ahead = self.tick_of(now + longest) - self.tick_of(self._observed) + 1
        prefix = self._queue.planned(self.tick_of(self._observed), ahead)
        return Infer(place.name, self._number, self._observed, prefix)

    # -- reports ---------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Return how many seconds the queue lasts after the present tick."""
        return self._queue.covered(self.tick_number + 1) / self.rate

    @property
    def is_stale(self) -> bool:
        """Return whether the action executed now is more than `settings.stale` seconds old."""
        return self.command.kind == ACT and self.command.age > self.settings.stale

    def begin_report(self) -> None:
        """Begin a new report: from now on `warnings` covers all ticks since this call."""
        self._reported = self.counts.copy()

    @property
    def warnings(self) -> list[str]:
        """Return warnings that a user should see while the robot acts."""
        found = []
        since = self.counts - self._reported
        if self.is_stale:
            found.append(f'the action that is executed is {self.command.age:.1f} s old')
        elif since['stale']:
            found.append(f'{since["stale"]} actions were executed that were more than '
                         f'{self.settings.stale:g} s old')
        if since['starved'] and self.state != STARVED:
            found.append(f'{since["starved"]} ticks had no action')
        for place in self.places.values():
            covers = min(self._asks_at(place), self._most_left(place.usual))
            if self.longest and covers < place.usual:
                found.append(f'actions of the {place.name} take {place.usual:.2f} s, and the queue '
                             f'covers {covers:.2f} s: raise request_share, or use longer chunks')
            if place.reason:
                found.append(f'{place.name}: {place.reason}')
        return found

    def _flaw(self, actions: Actions) -> str:
        if actions.ndim != 2 or actions.shape[1] != self.size or not len(actions):
            return f'shape {tuple(actions.shape)}'
        bad = np.argwhere(~np.isfinite(actions))
        return f'{actions[tuple(bad[0])]} at {tuple(bad[0].tolist())}' if len(bad) else ''

    def _enter(self, event: str) -> None:
        self.state = TABLE.get((self.state, event), self.state)
        if event == FAULT:
            self._queue.clear()
            self._explain()

    def _explain(self) -> None:
        self.reason = self._latched or '; '.join(self._sensors.values())

    def _count(self, what: str) -> str:
        self.counts[what] += what != TAKEN
        self.counts['chunks'] += what == TAKEN
        return what
