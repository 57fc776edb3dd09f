"""The state of a fleet, made from its statuses, for the terminal, the web page and figures.

This module uses no ROS and no clock, and draws nothing. A status is a message, a recorded message,
or any object with the fields of the message. The module limits data from the network: texts are
printable and short, and the numbers of robots, points and events are bounded.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rog_core.errors import shown
from rog_core.patience import Silence
from rog_ros.happened import APART, FAULTS, NAME, ROBOTS, Event, changes
from rog_ros.heartbeat import RARELY

POINTS = 400     # maximum number of points of a curve; a longer curve loses every second point
EVENTS = 200     # maximum number of stored events; a new event then replaces the oldest
PAST = 20_000    # maximum number of statuses of before this program listened
SILENT = RARELY + 1.0  # the limit of `rog_core.patience.Silence`, in seconds, for statuses


@dataclass(frozen=True)
class Robot:
    """The displayed state of one robot.

    ``state``: the state that the robot reports; ``away`` or ``retired`` if the server reports this.
    ``doing``: the state, and the robots for which this robot waits. ``why``: why other robots wait
    for this robot, or why they no longer wait. ``heard``: whether the robot has sent a status;
    before its first status, all numbers are unknown. ``silent``: seconds since its last status;
    ``is_silent``: whether these are too many.
    ``link``: rate in Mbit/s, emulated or measured. All other times are in seconds. ``power`` is in
    W, ``energy`` in J.
    """

    name: str
    state: str
    doing: str
    why: str
    heard: bool = False
    silent: float = math.nan
    is_silent: bool = False
    iteration: int = 0
    loss: float = math.nan
    accuracy: float = math.nan
    staleness: int = 0
    rows_pushed: int = 0
    rows_total: int = 0
    link: float = math.nan
    compute: float = math.nan
    communicate: float = math.nan
    stall: float = math.nan
    power: float = math.nan
    energy: float = math.nan

    def cells(self) -> dict[str, str]:
        """Return the text of each column; all texts are empty before the robot's first status."""
        if not self.heard:
            return dict.fromkeys(COLUMNS, '')
        texts = (str(self.iteration), number(self.loss, '.3f'),
                 number(100 * self.accuracy, '.1f'), str(self.staleness),
                 f'{self.rows_pushed}/{self.rows_total}', number(self.link, '.2f'),
                 number(self.compute, '.1f'), number(self.communicate, '.1f'),
                 number(self.stall, '.1f'), number(self.energy, '.0f'), number(self.power, '.1f'))
        return dict(zip(COLUMNS, texts, strict=True))


# Maps the name of a column to the unit of its numbers, which is empty for numbers without a unit.
COLUMNS = {'iter': '', 'loss': '', 'acc': '%', 'stale': '', 'pushed': 'rows', 'link': 'Mbit/s',
           'compute': 's', 'comm': 's', 'stall': 's', 'energy': 'J', 'power': 'W'}


@dataclass(frozen=True)
class Fleet:
    """The displayed state of a fleet at one moment.

    ``found``: whether the server has sent a status. ``silent``: seconds since the last status of
    the server; ``is_silent``: whether these are too many. ``keyed``: whether the fleet has a key.
    """

    robots: tuple[Robot, ...] = ()
    found: bool = False
    silent: float = 0.0
    is_silent: bool = False
    state: str = ''
    sync: str = ''
    host: str = ''
    elapsed: float = 0.0
    keyed: bool = False
    minimum: str = ''  # the MTA and the MTA time, in words
    above: str = ''    # which robot of the parent fleet this fleet is, in words
    left: float = math.nan  # seconds until the run is over; NaN: its duration is unknown
    starting: bool = False  # whether this program has started the server
    followers: tuple[str, ...] = ()  # a line about each process that follows the model
    faults: tuple[str, ...] = ()     # a line about each thing that the server fails to do

    @property
    def time(self) -> str:
        """Return the elapsed time and the remaining time of the run as text."""
        left = '' if math.isnan(self.left) else f', {_duration(self.left)} left'
        return f'{self.elapsed:.0f} s{left}'

    def headline(self) -> str:
        """Return the method, the state, the time, the MTA and the parent fleet in one line.

        If the server has been silent for long, the line also says so.
        """
        if not self.found:
            return 'the parameter server is starting' if self.starting \
                else 'waiting for the parameter server'
        silent = f'no word from the parameter server for {self.silent:.0f} s' \
            if self.is_silent and self.state != 'stopped' else ''
        return '   '.join(filter(None, (self.sync, self.state, silent, self.time, self.minimum,
                                        self.above)))

    def causes(self) -> list[str]:
        """Return a line for each robot for which other robots wait, or no longer wait.

        The line has the robot's name and the reason. Then comes a line for each process that
        follows the model.
        """
        return [f'{r.name}: {r.state}, {r.why}' if r.state in APART else f'{r.name}: {r.why}'
                for r in self.robots if r.why] + [f'model of {line}' for line in self.followers]

    def complete(self) -> bool:
        """Return whether each robot that is not away has sent a status."""
        return all(robot.heard or robot.state == 'away' for robot in self.robots)

    def lines(self) -> list[str]:
        """Return one short line per robot with its state, per fault, and for the remaining time.

        If the remaining time is unknown, its line is left out. If no robot is known, the headline
        stands for the robots.
        """
        faults = [f'         server: {fault}' for fault in self.faults]
        if not self.robots:
            return [self.headline(), *faults]
        lines = [*(f'{self.elapsed:5.0f} s  {_line(robot)}' for robot in self.robots), *faults]
        return lines if math.isnan(self.left) else [*lines, f'         {_duration(self.left)} left']


def _duration(seconds: float) -> str:
    return f'{seconds:.0f} s' if seconds < 120 else f'{seconds / 60:.0f} min'


def _line(robot: Robot) -> str:
    parts = [f'{robot.name}: {robot.iteration} {robot.doing}' if robot.heard
             else f'{robot.name}: {robot.doing}']
    if robot.heard:
        parts += [f'loss {number(robot.loss, ".3f")}',
                  f'accuracy {number(100 * robot.accuracy, ".1f", " %")}',
                  f'rows {robot.rows_pushed}/{robot.rows_total}', f'stall {robot.stall:.1f} s']
    return ', '.join(parts) + (f'; {robot.why}' if robot.why else '')


def number(value: float, form: str, unit: str = '') -> str:
    """Return a number as text; a dash if the number is unknown."""
    return '-' if math.isnan(value) else format(value, form) + unit


class Curve:
    """The points (t, value) of a curve, sorted by time.

    A long curve keeps only every n-th point.
    """

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self._every, self._left = 1, 0

    def add(self, t: float, value: float) -> None:
        """Add a point if both numbers are finite; a long curve keeps only every n-th point."""
        if not (math.isfinite(t) and math.isfinite(value)):
            return
        if self._left:
            self._left -= 1
            return
        insort(self.points, (t, value))
        if len(self.points) > POINTS:
            self.points = self.points[::2]
            self._every *= 2
        self._left = self._every - 1


CURVES = {'accuracy': 'accuracy, %', 'link': 'link, Mbit/s', 'rows': 'rows in a push, %',
          'staleness': 'staleness, iterations'}


class FleetState:
    """The state of a fleet, which the received statuses update.

    ``now`` is the receiver's time in seconds, from any origin. The statuses do not contain the
    following three values. ``above``: text that says which robot of a parent fleet this fleet is.
    ``minutes``: duration of the run, 0 if unknown. ``starting``: whether this program has started
    the server.

    When another run begins, all events and curves are dropped, because the times of the new run
    start at 0 again.
    """

    def __init__(self, above: str = '', minutes: float = 0.0, starting: bool = False) -> None:
        self._above, self._starting = above, starting
        self.minutes = minutes
        self.fleet: Any = None
        self.robots: dict[str, Any] = {}
        self.heard: dict[str, float] = {}     # maps each robot to the time of its last status
        self.heard_fleet = -math.inf
        self._events: deque[Event] = deque(maxlen=EVENTS)  # since the first status of the server
        self._before_fleet: dict[int, Any] = {}  # `count` -> status of the server of before
        self._first_fleet: Any = None     # the first status of the server that was heard
        self._recalled: list[Event] = []  # what the statuses of before show
        self._first: dict[str, Any] = {}  # maps each robot to its first status that was heard
        self._before: dict[tuple[str, int], Any] = {}  # robot, `count` -> status of before
        # name of a curve (in `CURVES`) -> robot name -> curve
        self.curves: dict[str, dict[str, Curve]] = {name: {} for name in CURVES}

    def on_fleet(self, message: Any, now: float) -> None:
        """Update the state with a status of the server."""
        former, self.fleet, self.heard_fleet = self.fleet, message, now
        if former is not None and _is_another_run(former, message):
            self.robots, self.heard, former = {}, {}, None
            self._first, self._before, self._before_fleet = {}, {}, {}
            self._events.clear()
            self.curves = {name: {} for name in CURVES}
        if former is None:  # the times of the statuses of before were not known yet
            self._first_fleet = message
            self._recall_fleet()
            for early in self._before.values():
                self._recall(early)
        else:
            self._events.extend(changes(former, message))

    @property
    def events(self) -> list[Event]:
        """Return what happened, the oldest first; of very many events the last ones."""
        return [*self._recalled, *self._events][-EVENTS:]

    def happened(self, event: Event) -> None:
        """Take up an event that no status shows, such as one from a record."""
        self._events.append(event)

    def on_robot(self, message: Any, now: float) -> None:
        """Update the state with a status of a robot."""
        name = message.robot
        if name not in self.robots and len(self.robots) >= ROBOTS:
            return
        former, self.robots[name], self.heard[name] = self.robots.get(name), message, now
        self._first.setdefault(name, message)
        self._note(message, former, self.elapsed(now))

    def on_past(self, message: Any) -> None:
        """Take up a status of before this program listened, which the server sends again."""
        name, key = message.robot, (message.robot, message.count)
        heard = self._first.get(name)
        if (heard is not None and message.count >= heard.count) or key in self._before \
                or len(self._before) >= PAST or (
                    name not in self.robots and len(self.robots) >= ROBOTS):
            return
        self._before[key] = message
        if self.fleet is not None:
            self._recall(message)

    def on_past_fleet(self, message: Any) -> None:
        """Take up a status of the server of before this program listened, which it sends again."""
        if message.count in self._before_fleet or len(self._before_fleet) >= EVENTS:
            return
        self._before_fleet[message.count] = message
        self._recall_fleet()

    def _recall_fleet(self) -> None:
        first = self._first_fleet
        if first is None:
            return
        known = sorted((m for m in self._before_fleet.values() if m.count < first.count
                        and (m.run, m.incarnation) == (first.run, first.incarnation)),
                       key=lambda m: m.count)
        self._recalled = [event for former, message in pairwise([None, *known, first])
                          for event in changes(former, message)]

    def _recall(self, message: Any) -> None:
        name = message.robot
        age = _seconds(self.fleet.header.stamp) - _seconds(message.header.stamp)
        former = self._before.get((name, message.count - 1))
        self._note(message, former, float(self.fleet.elapsed) - age)
        if name not in self._first and (
                name not in self.robots or message.count > self.robots[name].count):
            self.robots[name], self.heard[name] = message, self.heard_fleet - age

    def _note(self, message: Any, former: Any, t: float) -> None:
        name = message.robot
        self._add('link', name, t, _link(message))
        if former is None or message.iteration != former.iteration:
            self._add('rows', name, t, 100 * message.rows_pushed / max(message.rows_total, 1))
            self._add('staleness', name, t, message.staleness)
        if former is None or (message.evaluated_at, message.accuracy) != (
                former.evaluated_at, former.accuracy):
            self._add('accuracy', name, t, 100 * message.accuracy)

    def _add(self, curve: str, robot: str, t: float, value: float) -> None:
        self.curves[curve].setdefault(robot, Curve()).add(t, value)

    def is_silent(self, now: float) -> bool:
        """Return whether no status of the server has arrived for long."""
        return Silence(SILENT, self.heard_fleet).is_silent(now)

    def elapsed(self, now: float) -> float:
        """Return the seconds since the start of the run, or NaN if no robot has joined."""
        if self.fleet is None or not self.fleet.robots:
            return math.nan
        over = self.fleet.state == 'stopped'
        return float(self.fleet.elapsed) + (0.0 if over else now - self.heard_fleet)

    def shown(self, now: float) -> Fleet:
        """Return the state of the fleet to display at the time ``now``."""
        fleet = self.fleet
        known = {} if fleet is None else {r.robot: r for r in fleet.robots[:ROBOTS]}
        names = sorted({*self.robots, *known})[:ROBOTS]
        robots = tuple(self._robot(name, known.get(name), now) for name in names)
        if fleet is None:
            return Fleet(robots, starting=self._starting)
        state, sync = shown(fleet.state, NAME), shown(fleet.sync, NAME)
        minimum = f'minimum {100 * fleet.mta:.0f} % of {fleet.rows_total} rows, MTA time ' \
                  f'{1e3 * fleet.mta_time:.0f} ms' if fleet.rows_total else ''
        left = 60 * self.minutes - self.elapsed(now) \
            if self.minutes and fleet.state in ('training', 'paused') else math.nan
        return Fleet(robots, True, now - self.heard_fleet, self.is_silent(now), state, sync,
                     shown(fleet.host, NAME), fleet.elapsed, len(fleet.tag) > 0, minimum,
                     self._above, max(left, 0.0),
                     followers=tuple(shown(line) for line in fleet.followers[:ROBOTS]),
                     faults=tuple(shown(line) for line in fleet.faults[:FAULTS]))

    def _robot(self, name: str, seen: Any, now: float) -> Robot:
        own = self.robots.get(name)
        state = seen.state if seen is not None and (own is None or seen.state in APART) \
            else own.state if own is not None else '?'
        state = doing = shown(state, NAME)
        # The robot's status or the server's status may be old. Only if both say that this
        # robot waits, show for which robots it waits.
        if seen is not None and seen.waiting_for and state == 'waiting':
            doing = f'{state} for {shown(seen.waiting_for, NAME)} {seen.waiting_time:.0f} s'
        why = '' if seen is None else shown(seen.why)
        name = shown(name, NAME)
        if own is None:
            return Robot(name, state, doing, why)
        return Robot(name, state, doing, why, True, now - self.heard[own.robot],
                     Silence(SILENT, self.heard[own.robot]).is_silent(now), own.iteration, own.loss,
                     own.accuracy, own.staleness, own.rows_pushed, own.rows_total,
                     _link(own), own.compute_time, own.communicate_time, own.stall_time, own.power,
                     own.energy)


def _seconds(stamp: Any) -> float:
    return float(stamp.sec + 1e-9 * stamp.nanosec)


def _link(status: Any) -> float:
    """Return the rate of the emulated link, or the measured rate of a real link, in Mbit/s."""
    return float(status.bandwidth if math.isnan(status.link_rate) else status.link_rate)


def _is_another_run(former: Any, message: Any) -> bool:
    """Return whether a status comes from another run, or from an earlier time of this run.

    The time goes back when a new server process resumes the run from an older checkpoint.
    """
    return message.run != former.run or (message.incarnation != former.incarnation
                                         and message.elapsed < former.elapsed)
