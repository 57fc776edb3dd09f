"""Turns the robots' status messages into run records."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from fleet_env import records
from fleet_env.summary import Accuracy, RobotSummary, Summary, write_summary


class Recorder:
    """Writes run.jsonl while a run goes on and summary.json at its end. ``t`` in seconds."""

    def __init__(self, directory: Path, start: records.Start) -> None:
        self.directory, self.start = directory, start
        self._writer = records.RunWriter(directory)
        self._writer.write(start)
        self._last: dict[str, Any] = {}
        self._evaluations: dict[str, list[tuple[float, int, float]]] = {}
        self._pushes: dict[str, list[int]] = {}
        self.clean = self.before = math.nan

    def baseline(self, clean: float, before: float) -> None:
        """Record the metric before the shift and after it, before any training."""
        self.clean, self.before = clean, before
        for phase, metric in (('clean', clean), ('before', before)):
            self._writer.write(records.Evaluation(0.0, '', 0, metric, phase))

    def status(self, t: float, message: Any) -> None:
        """Record what a robot's status adds to its former one."""
        former = self._last.get(message.robot)
        same_life = former is not None and former.incarnation == message.incarnation
        if same_life and message.iteration > former.iteration or not same_life and message.iteration:
            self._iteration(t, message, former if same_life else None)
        if same_life and message.evaluated_at > former.evaluated_at \
                or not same_life and message.evaluated_at:
            self._evaluations.setdefault(message.robot, []).append(
                (round(t, 3), message.evaluated_at, message.accuracy))
            self._writer.write(records.Evaluation(t, message.robot, message.evaluated_at,
                                                  message.accuracy))
        if not same_life or former.state != message.state == 'stopped':
            self._writer.write(records.Status(t, message.robot, message.state, message.power,
                                              message.energy))
        self._last[message.robot] = message

    def _iteration(self, t: float, message: Any, former: Any) -> None:
        def grown(name: str) -> Any:
            return getattr(message, name) - (getattr(former, name) if former is not None else 0)

        self._pushes.setdefault(message.robot, []).append(message.rows_pushed)
        self._writer.write(records.Iteration(
            t, message.robot, message.iteration, message.loss, grown('compute_time'),
            grown('communicate_time'), grown('stall_time'), message.rows_pushed,
            message.rows_pulled, message.rows_total, grown('bytes_sent'), grown('bytes_received'),
            message.staleness, message.bandwidth, message.link_rate))

    def fault(self, t: float, robot: str, what: str, detail: str) -> None:
        """Record that something went wrong and the run goes on."""
        self._writer.write(records.Fault(t, robot, what, detail))

    def stop(self, t: float, reason: str) -> Path:
        """End the record; returns the path of summary.json."""
        robots = {}
        for name, last in sorted(self._last.items()):
            self._writer.write(records.Stop(t, name, reason, last.iteration))
            pushes = self._pushes.get(name, [])
            robots[name] = RobotSummary(
                last.iteration, last.compute_time, last.communicate_time, last.stall_time,
                last.energy, last.bytes_sent, last.bytes_received,
                sum(pushes) / len(pushes) if pushes else 0.0,
                Accuracy(self.clean, self.before, last.accuracy),
                self._evaluations.get(name, []))
        self._writer.close()
        start = self.start
        return write_summary(self.directory, Summary(start.sync, start.task, start.seed, t, robots,
                                                     start.fleet, {'reason': reason}))

    def final_statuses(self) -> set[str]:
        """Robots whose last status says that they have stopped."""
        return {name for name, last in self._last.items() if last.state == 'stopped'}
