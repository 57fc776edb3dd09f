"""``comparison.json``: several methods on the same fleet, trace and seeds, side by side.

    schema       rog-comparison/1
    fleet, task  as in summary.json
    robots       number of robots
    duration_s   duration of each training, in seconds
    seeds        seeds of the runs
    target       accuracy, 0 to 1, to which target_s and target_j refer
    times        times, in seconds, to which accuracy_at refers
    rounds       number of iterations to which accuracy_after refers: the number of the run with
                 the fewest iterations; runs that diverged do not count
    methods      one entry per method, in the requested order: the fields of MethodResult

The counts ``reached`` and ``diverged`` are plain numbers. Every other number of a
method is ``{"mean": ..., "std": ...}`` over the seeds. ``std`` is the sample standard
deviation; it is ``null`` for one seed. ``null`` also stands for an event that never
happened, or for a quantity that was not measured.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from fleet_env.durable import finite, read_file
from fleet_env.errors import RecordError, why_unread

from .measure import Run

SCHEMA = 'rog-comparison/1'
COMPARISON_FILE = 'comparison.json'


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; NaN if undefined."""

    mean: float = math.nan
    std: float = math.nan

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the spread of the finite numbers among ``values``."""
        known = np.array([v for v in values if math.isfinite(v)])
        return cls(float(known.mean()) if known.size else math.nan,
                   float(known.std(ddof=1)) if known.size > 1 else math.nan)


def _(help: str, unit: str = '', default: Any = Spread()) -> Any:
    return field(default=default, metadata={'help': help, 'unit': unit})


@dataclass(frozen=True)
class MethodResult:
    """Outcome of one method; durations and amounts of an iteration are means over all robots."""

    sync: str = field(metadata={'help': "method, or a study's label of it"})
    runs: list[str] = field(metadata={'help': 'directories of its runs, relative to this file'})
    iterations: Spread = _('iterations of a robot')
    iteration_s: Spread = _('duration of an iteration', 's')
    compute_s: Spread = _('computing, of an iteration', 's')
    communicate_s: Spread = _('pushing and pulling, of an iteration', 's')
    stall_s: Spread = _('waiting for others, of an iteration', 's')
    stall_share: Spread = _('share of the time spent waiting, 0 to 1')
    round_s: Spread = _('duration of the run over the iterations of the robot with the most: time '
                        'between rounds, or between decodings for coded methods', 's')
    accuracy_end: Spread = _('accuracy at the end, 0 to 1')
    accuracy_peak: Spread = _('highest accuracy, 0 to 1')
    accuracy_after: Spread = _('accuracy after as many iterations as every run has made, 0 to 1')
    accuracy_settled: Spread = _('mean of the accuracies in the second half of the run, 0 to 1')
    stability: Spread = _('natural logarithm of the standard deviation of the accuracies in the '
                          'second half of the run; the smaller, the steadier (GSGM, Section V-B, '
                          'which does not say of which part)')
    fluctuation: Spread = _('the same for the differences between successive measurements, which '
                            'excludes the rise of the accuracy')
    energy_j: Spread = _('energy of a robot in the whole run', 'J')
    target_s: Spread = _('time until the accuracy first reached the target, of the runs that '
                         'reached it', 's')
    target_j: Spread = _('energy of a robot until then', 'J')
    iteration_bytes: Spread = _('payload sent and received by a robot in an iteration', 'B')
    rows_share: Spread = _('share of the rows that a push transferred, 0 to 1')
    accuracy_at: list[Spread] = _('accuracy at each of the times: the last evaluation before it',
                                  default=())
    reached: int = _('runs that reached the target', default=0)
    diverged: int = _('runs that ended because the training diverged', default=0)


MEASURES = tuple(f.name for f in dataclasses.fields(MethodResult) if f.type == 'Spread')


@dataclass(frozen=True)
class Comparison:
    """Several methods on the same fleet, trace and seeds."""

    fleet: str
    task: str
    robots: int
    duration_s: float
    seeds: list[int]
    target: float
    times: list[float]
    rounds: int
    methods: list[MethodResult]
    schema: str = SCHEMA


def compare_runs(runs: Mapping[str, Sequence[Run]], base: Path, target: float | None = None,
                 times: Sequence[float] | None = None) -> Comparison:
    """Return a comparison of ``runs``.

    :param runs: maps each method to its runs. All runs must be of the same fleet.
    :param base: directory to which the paths of the runs in the comparison are relative.
    :param target: accuracy, 0 to 1, for target_s and target_j. Default: the lowest final accuracy
        of all runs.
    :param times: times in seconds for accuracy_at. Default: one time, half of the duration.
    """
    every = [run for group in runs.values() for run in group]
    first = every[0].summary
    if target is None:
        ends = [float(run.accuracy(run.duration)) for run in every]
        target = min((end for end in ends if math.isfinite(end)), default=math.nan)
    times = [first.duration_s / 2] if times is None else list(times)
    rounds = min((run.rounds for run in every if not run.diverged), default=0)
    methods = []
    for sync, group in runs.items():
        measured = [run.measures(target, rounds) for run in group]
        at = np.array([run.accuracy(times) for run in group])
        methods.append(MethodResult(
            sync, [run.directory.relative_to(base).as_posix() for run in group],
            **{name: Spread.of(m[name] for m in measured) for name in MEASURES},
            accuracy_at=[Spread.of(column) for column in at.T],
            reached=sum(math.isfinite(m['target_s']) for m in measured),
            diverged=sum(run.diverged for run in group)))
    return Comparison(first.fleet, first.task, len(first.robots), first.duration_s,
                      sorted({run.summary.seed for run in every}), target, times, rounds, methods)


def write_comparison(directory: str | PathLike[str], comparison: Comparison) -> Path:
    """Write ``comparison.json`` into ``directory`` and return its path."""
    path = Path(directory) / COMPARISON_FILE
    data = finite(dataclasses.asdict(comparison))
    try:
        path.write_text(json.dumps(data, indent=2, sort_keys=True) + '\n', encoding='utf-8')
    except OSError as error:
        raise RecordError(f'cannot be written: {error.strerror}', str(path)) from error
    return path


def read_comparison(directory: str | PathLike[str]) -> Comparison:
    """Read ``comparison.json``.

    :raises RecordError: the file cannot be read or is damaged.
    """
    path = Path(directory) / COMPARISON_FILE
    try:
        data = json.loads(read_file(path))
    except (OSError, ValueError) as error:
        raise RecordError(f'cannot be read: {why_unread(error, path)}', str(path)) from error
    schema = data.get('schema') if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise RecordError(f'has schema {schema!r}, this reader knows {SCHEMA!r}', str(path))
    try:
        methods = [MethodResult(**{key: _value(value) for key, value in entry.items()})
                   for entry in data.pop('methods')]
        return Comparison(**{key: _value(value) for key, value in data.items()}, methods=methods)
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(f'is not a comparison: {error}', str(path)) from error


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return Spread(**{key: _value(item) for key, item in value.items()})
    if isinstance(value, list):
        return [_value(item) for item in value]
    return math.nan if value is None else value

