"""Writes run records from the robots' reports, for real runs and for virtual time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from fleet_env.records import events
from fleet_env.records.summary import Accuracy, RobotSummary, Summary, write_summary

# Name of a counter in a robot's status -> name of this counter in the records. The counters are 0
# when the robot's process starts.
_COUNTERS = {'compute_time': 'compute_s', 'communicate_time': 'communicate_s',
             'stall_time': 'stall_s', 'bytes_sent': 'bytes_sent',
             'bytes_received': 'bytes_received', 'energy': 'energy_j'}


@dataclass(frozen=True)
class RobotReport:
    """The status of a robot: the fields of rog_msgs/TrainingStatus about training.

    Times (in s), bytes and energy (in J) count from the start of the present process.
    bandwidth and link_rate are in Mbit/s, power is in W.
    """

    robot: str
    incarnation: int = 0
    state: str = 'joining'
    sync: str = ''
    iteration: int = 0
    loss: float = math.nan
    accuracy: float = math.nan
    evaluated_at: int = 0
    staleness: int = 0
    rows_total: int = 0
    rows_pushed: int = 0
    rows_pulled: int = 0
    bandwidth: float = math.nan
    link_rate: float = math.nan
    compute_time: float = 0.0
    communicate_time: float = 0.0
    stall_time: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    power: float = math.nan
    energy: float = 0.0


@dataclass
class _Robot:
    """The recorder's data about one robot."""

    life: str = ''                                       # identity of the robot's present process
    present: Counter = field(default_factory=Counter)    # counters of the robot's present process
    former: Counter = field(default_factory=Counter)     # sums over the robot's ended processes
    iteration: int = 0
    evaluated_at: int = 0
    accuracy: float = math.nan
    stopped: bool = False
    pushes: list[int] = field(default_factory=list)
    evaluations: list[tuple[float, int, float]] = field(default_factory=list)

    def begin_life(self, life: str) -> None:
        self.former += self.present
        self.life, self.present, self.stopped = life, Counter(), False

    def iterated(self, event: events.Iteration) -> None:
        self.iteration = event.iteration
        self.pushes.append(event.rows_pushed)

    def evaluated(self, event: events.Evaluation) -> None:
        self.evaluated_at, self.accuracy = event.iteration, event.metric
        self.evaluations.append((round(event.t, 3), event.iteration, event.metric))

    def summary(self, clean: float, before: float) -> RobotSummary:
        total = self.former + self.present
        counted = {name: total[name] for name in _COUNTERS.values()}
        return RobotSummary(
            iterations=self.iteration, **counted,
            rows_pushed_mean=sum(self.pushes) / len(self.pushes) if self.pushes else 0.0,
            accuracy=Accuracy(clean, before, self.accuracy), evaluations=self.evaluations)


class Recorder:
    """Write run.jsonl during a run and summary.json at its end.

    The argument ``t`` of the methods is the time in seconds since the run began.

    :param directory: directory of the two files. None: write nothing; :meth:`stop` still
        returns the outcome.
    :param former: events of the same run before a restart of the server; the summary
        includes them.
    :raises RecordError: a file cannot be written; every method may raise this error.
    """

    def __init__(self, directory: str | PathLike[str] | None, start: events.Start,
                 former: Iterable[events.Event] = ()) -> None:
        self.directory, self.start = directory, start
        self._robots: dict[str, _Robot] = {}
        self._faults: Counter[str] = Counter()
        self._server: events.Evaluation | None = None   # the last one of the server's model
        self._young = 0.0
        self._failed: dict[str, str] = {}  # robots that could not go on, and why
        self.clean = self.before = math.nan
        for event in former:
            self._take_up(event)
        self._writer = None if directory is None else events.RunWriter(directory)
        self._write(start)

    def _write(self, event: events.Event) -> None:
        if self._writer is not None:
            self._writer.write(event)

    def _take_up(self, event: events.Event) -> None:
        if isinstance(event, events.Fault):
            self._count(event.robot, event.what, event.detail)
        elif isinstance(event, events.Evaluation) and event.phase in ('clean', 'before'):
            setattr(self, event.phase, event.metric)
        elif isinstance(event, events.Evaluation) and not event.robot:
            self._server = event
        elif isinstance(event, events.Evaluation):
            self._robot(event.robot).evaluated(event)
        elif isinstance(event, events.Iteration):
            robot = self._robot(event.robot)
            robot.iterated(event)
            for name in _COUNTERS.values():
                value = getattr(event, name)
                robot.present[name] += 0 if math.isnan(value) else value
        elif isinstance(event, events.Status) and event.robot:
            robot = self._robot(event.robot)
            if event.detail != robot.life:
                robot.begin_life(event.detail)
            robot.present['energy_j'] = event.energy  # type: ignore[assignment]

    def _robot(self, name: str) -> _Robot:
        return self._robots.setdefault(name, _Robot())

    def baseline(self, clean: float, before: float) -> None:
        """Record the metric before training.

        ``clean``: metric on unaltered data. ``before``: metric on shifted data.
        """
        self.clean, self.before = clean, before
        for phase, metric in (('clean', clean), ('before', before)):
            self._write(events.Evaluation(0.0, '', 0, metric, phase))

    def server(self, t: float, iteration: int, metric: float, young: float = 0.0) -> None:
        """Record the metric of the server's model.

        ``iteration``: iteration of the fastest robot. ``young``: share of the statistics of a
        BatchNorm that are still those of the start.
        """
        self._server, self._young = events.Evaluation(t, '', iteration, metric), young
        self._write(self._server)

    def status(self, t: float, message: RobotReport) -> None:
        """Record the changes since the robot's previous report."""
        robot = self._robot(message.robot)
        life = f'life {message.incarnation:016x}'
        stopped = message.state == 'stopped'
        if life != robot.life:
            robot.begin_life(life)
            if not stopped:
                self._state(t, message, life)
                robot.present['energy_j'] = message.energy  # type: ignore[assignment]
        counted = Counter({there: getattr(message, here) for here, there in _COUNTERS.items()})
        if message.iteration not in (0, robot.iteration):
            grown = {name: counted[name] - robot.present[name] for name in _COUNTERS.values()}
            event = events.Iteration(
                t, message.robot, message.iteration, message.loss, **grown,
                rows_pushed=message.rows_pushed, rows_pulled=message.rows_pulled,
                rows_total=message.rows_total, staleness=message.staleness,
                bandwidth=message.bandwidth, link_rate=message.link_rate)
            self._write(event)
            robot.iterated(event)
            robot.present = counted
        last = stopped and not robot.stopped
        if message.evaluated_at and (message.evaluated_at != robot.evaluated_at
                                     or last and message.accuracy != robot.accuracy):
            evaluation = events.Evaluation(t, message.robot, message.evaluated_at,
                                            message.accuracy)
            self._write(evaluation)
            robot.evaluated(evaluation)
        if last:
            self._state(t, message, life)
            robot.stopped, robot.present = True, counted

    def _state(self, t: float, message: RobotReport, life: str) -> None:
        self._write(events.Status(t, message.robot, message.state, message.power,
                                   message.energy, life))

    def fault(self, t: float, robot: str, what: str, detail: str) -> None:
        """Record a fault; the run goes on, but without ``robot`` if ``what`` is ``failed``."""
        self._count(robot, what, detail)
        self._write(events.Fault(t, robot, what, detail))

    def _count(self, robot: str, what: str, detail: str) -> None:
        self._faults[what] += 1
        if what == 'failed':
            self._failed[robot] = detail

    def stop(self, t: float, reason: str, sync: str = '') -> Summary:
        """End the record; return the content of summary.json.

        :param sync: the last synchronisation method, if it was changed during the run.
        """
        robots = {}
        for name, robot in sorted(self._robots.items()):
            self._write(events.Stop(t, name, reason, robot.iteration))
            robots[name] = robot.summary(self.clean, self.before)
        start = self.start
        notes: dict[str, Any] = {'reason': reason}
        if self._faults:
            notes['faults'] = dict(self._faults)
        if self._server is not None:
            notes['server'] = {'accuracy': self._server.metric,
                               'iteration': self._server.iteration,
                               **({'young': self._young} if self._young else {})}
        if self._failed:
            notes['failed'] = dict(self._failed)
        summary = Summary(sync or start.sync, start.task, start.seed, t, robots, start.fleet,
                          notes, codec=start.codec)
        if self._writer is not None and self.directory is not None:
            self._writer.close()
            write_summary(self.directory, summary)
        return summary

    def final_statuses(self) -> set[str]:
        """Return the robots whose last status has the state `stopped`."""
        return {name for name, robot in self._robots.items() if robot.stopped}
