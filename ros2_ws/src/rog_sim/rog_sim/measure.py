"""Reads the records of one run: accuracy and energy over time, and the numbers for tables.

The accuracy is the mean over the robots' last evaluations. If the robots have evaluated nothing,
as in the runs of studies, it is the accuracy of the server's model. Energy is the mean over the
robots.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path

import numpy as np
from fleet_env.errors import RecordError
from fleet_env.records.events import Evaluation, Iteration, Status, read_run
from fleet_env.records.summary import Summary, read_summary
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

Series = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """The records of one run.

    ``rows_total``: number of rows of the model.
    ``energy``: maps each robot to its times in seconds and its energies in J up to these times.
    Both arrays have the shape [n] and ascend from 0.
    ``server``: evaluations of the server's model, of shape [3, n]: time in seconds, iteration and
    metric. n is 0 if the run did not measure this model, or the robots evaluated theirs.
    """

    directory: Path
    summary: Summary
    rows_total: int
    energy: dict[str, tuple[Series, Series]]
    server: Series = field(default_factory=lambda: np.empty((3, 0)))

    @property
    def duration(self) -> float:
        """Duration of the training in seconds."""
        return self.summary.duration_s

    def smoothed(self, window: int) -> Run:
        """Return the run with the server's accuracies averaged over ``window`` evaluations.

        The first mean covers the first ``window`` accuracies. A run with fewer evaluations of the
        server's model is returned unchanged.
        """
        if self.server.shape[1] < window:
            return self
        means = sliding_window_view(self.server[2], window).mean(1)
        return replace(self, server=np.vstack([self.server[:2, window - 1:], means]))

    def accuracy(self, times: ArrayLike) -> Series:
        """Return the mean accuracy at ``times`` [n], which are in seconds.

        The accuracy is NaN until every robot has an accuracy.
        """
        return self._accuracy(0, times)

    def accuracy_after(self, iterations: ArrayLike) -> Series:
        """Return the robots' mean accuracy after each of n numbers of iterations (``iterations``).

        The accuracy is NaN until every robot has an accuracy.
        """
        return self._accuracy(1, iterations)

    def reached(self, levels: ArrayLike) -> Series:
        """Return when the mean accuracy first reaches each of ``levels`` [n], in seconds.

        A time is NaN if the accuracy never reaches the level.
        """
        times = np.unique(np.concatenate([[0.0], *(e[0] for e in self._evaluations())]))
        best = np.maximum.accumulate(np.nan_to_num(self.accuracy(times), nan=-np.inf))
        first = np.searchsorted(best, np.asarray(levels), 'left')
        return np.append(times, np.nan)[first]

    def energy_at(self, times: ArrayLike) -> Series:
        """Return the mean energy in J that a robot has used at each of ``times`` [n].

        The energy is NaN if the time is NaN.
        """
        at = np.asarray(times, dtype=np.float64)
        return np.mean([np.interp(at, *series) for series in self.energy.values()], axis=0)

    @property
    def rounds(self) -> int:
        """Return the number of iterations of the robot that has made the most iterations."""
        return max(robot.iterations for robot in self.summary.robots.values())

    @property
    def diverged(self) -> bool:
        """Return whether the training ended because gradients were not finite."""
        return self.summary.notes.get('reason') == 'diverged'

    def measures(self, target: float, rounds: int) -> dict[str, float]:
        """Return the numbers of this run for a comparison; `MethodResult` explains them.

        :param target: accuracy to which target_s and target_j refer.
        :param rounds: number of iterations to which accuracy_after refers.
        """
        robots = list(self.summary.robots.values())
        iterations = sum(r.iterations for r in robots)
        each = max(iterations, 1)
        compute, communicate, stall = (
            sum(getattr(r, name) for r in robots) / each
            for name in ('compute_s', 'communicate_s', 'stall_s'))
        total = compute + communicate + stall
        settled = self._settled()
        pushed = sum(r.rows_pushed_mean for r in robots) / len(robots)
        time = float(self.reached(target))
        return {
            'iterations': iterations / len(robots), 'iteration_s': total, 'compute_s': compute,
            'communicate_s': communicate, 'stall_s': stall,
            'stall_share': stall / total if total else np.nan,
            'round_s': self.duration / max(1, self.rounds),
            'accuracy_end': float(self.accuracy(self.duration)),
            'accuracy_peak': float(np.max(self._curve(), initial=-np.inf)),
            'accuracy_after': float(self.accuracy_after(rounds)),
            'accuracy_settled': float(settled.mean()) if settled.size else np.nan,
            'stability': _log_deviation(settled),
            'fluctuation': _log_deviation(np.diff(settled)),
            'energy_j': float(self.energy_at(self.duration)),
            'target_s': time, 'target_j': float(self.energy_at(time)),
            'iteration_bytes': sum(r.bytes_sent + r.bytes_received for r in robots) / each,
            'rows_share': pushed / self.rows_total if self.rows_total else np.nan}

    def _curve(self, start: float = 0.0) -> Series:
        """Return the mean accuracy at the time of each evaluation from ``start`` on, without NaN.

        :param start: time in seconds.
        """
        times = np.unique(np.concatenate([np.empty(0), *(e[0] for e in self._evaluations())]))
        curve = self.accuracy(times[times >= start])
        return curve[np.isfinite(curve)]

    def _settled(self) -> Series:
        return self._curve(self.duration / 2)

    def _evaluations(self) -> list[Series]:
        """Return the evaluations of the server's model or, if there are none, of each robot.

        Each array has the shape and the meaning of the field ``server``.
        """
        if self.server.size:
            return [self.server]
        series = []
        for robot in self.summary.robots.values():
            start = [(0.0, 0, robot.accuracy.before)] if robot.evaluations else []
            table = np.array([*start, *robot.evaluations], dtype=np.float64).reshape(-1, 3)
            series.append(table[np.isfinite(table[:, 2])].T)
        return [table for table in series if table.size]

    def _accuracy(self, axis: int, at: ArrayLike) -> Series:
        series = self._evaluations()
        if not series:
            return np.full(np.shape(at), np.nan)
        last = [np.append(np.nan, e[2])[np.searchsorted(e[axis], at, 'right')] for e in series]
        return np.mean(last, axis=0)


def read_run_measures(directory: str | PathLike[str]) -> Run:
    """Read ``summary.json`` and ``run.jsonl`` of a run.

    Energy over time comes from the robots' status events. Between two events, and in a run without
    such events, the power counts as constant.

    :raises RecordError: a file cannot be read or is damaged, or the run has no robots.
    """
    summary, events = read_summary(directory), read_run(directory)
    if not summary.robots:
        raise RecordError('has no robots; did any of them join?', str(Path(directory)))
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    rows_total = 0
    server = []
    for event in events:
        if isinstance(event, Iteration):
            rows_total = max(rows_total, event.rows_total)
        elif isinstance(event, Status) and np.isfinite(event.energy):
            points[event.robot].append((event.t, event.energy))
        elif isinstance(event, Evaluation) and not event.robot and event.phase != 'clean':
            server.append((event.t, event.iteration, event.metric))
    measured = np.array(server, dtype=np.float64).reshape(-1, 3)
    measured = measured[np.isfinite(measured[:, 2])]
    energy = {}
    for name, robot in summary.robots.items():
        inside = [p for p in sorted(points[name]) if 0 < p[0] < summary.duration_s]
        table = np.array([(0.0, 0.0), *inside, (summary.duration_s, robot.energy_j)])
        energy[name] = (table[:, 0], np.maximum.accumulate(table[:, 1]))
    return Run(Path(directory), summary, rows_total, energy,
               # If there is only one evaluation of the server's model, it was made before the
               # training and is not used. A fleet's server evaluates its model now and then; the
               # robots' evaluations come more often.
               measured.T if len(server) > 1 and not any(
                   robot.evaluations for robot in summary.robots.values()) else np.empty((3, 0)))


def _log_deviation(values: Series) -> float:
    """Return the natural logarithm of the standard deviation; NaN for fewer than two values."""
    return float(np.log(max(values.std(ddof=1), 1e-9))) if values.size > 1 else np.nan
