"""Compares methods, or other variants of a fleet, on the same links and seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fleet_env.settings.fleet import FleetConfig
from fleet_env.settings.fleet_file import with_overrides
from rog_core.errors import ConfigError
from rog_core.method_check import check_method

from .comparison import Comparison, compare_runs, write_comparison
from .jobs import Job, RunDone, Simulate, run_in_turn, run_jobs
from .measure import Run, read_run_measures


def compare(fleet: FleetConfig, methods: Sequence[str], seeds: int, out: Path,
            workers: int | None = None, progress: RunDone | None = None,
            target: float | None = None, times: Sequence[float] | None = None,
            resume: bool = False, simulate: Simulate | None = None,
            cluster: str | None = None, run: Callable[[Job], None] | None = None) -> Comparison:
    """Run every method with every seed and write ``comparison.json`` into ``out``.

    The files of a run go to ``out/<method>/seed<k>``. The first seed is ``fleet.seed``.

    :param methods: for example ``['bsp', 'rsp:4']``; all methods are checked before the first run.
    :param seeds: number of seeds, at least 1.
    :param target: accuracy, 0 to 1, see `compare_runs`.
    :param times: times in seconds, see `compare_runs`.
    :param run: function that executes one run. If it is given, the runs take place one after
        another. By default, runs take place in parallel, in virtual time.
    :raises ConfigError: a method is unknown or is in the list twice. `run_jobs` describes the other
        errors and parameters.
    """
    for method in methods:
        if list(methods).count(method) > 1:
            raise ConfigError(f"method '{method}' is in the list twice")
    variants = {method: with_overrides(fleet, {'training.sync': method}) for method in methods}
    jobs = jobs_of(variants, seeds, out)
    if run is None:
        run_jobs(jobs, workers, progress, resume, simulate, cluster)
    else:
        run_in_turn(jobs, run, progress, resume)
    return collect(jobs, out, target, times)


def jobs_of(variants: Mapping[str, FleetConfig], seeds: int, out: Path) -> list[Job]:
    """Return a job for each variant and each seed.

    :param variants: maps each label to its fleet. The first seed of a variant is the seed of its
        fleet.
    :raises ConfigError: there is no variant or no seed, a method is unknown or does not fit its
        fleet, or two labels would have the same directory.
    """
    if seeds < 1 or not variants:
        raise ConfigError('at least 1 method and 1 seed are needed, got '
                          f'{len(variants)} methods and {seeds} seeds')
    names: dict[str, str] = {}
    for label, fleet in variants.items():
        check_method(fleet, fleet.capacities)
        if names.setdefault(directory_name(label), label) != label:
            raise ConfigError(f"method '{label}' is in the list twice")
    return [Job(label, with_overrides(variants[label], {'seed': seed}), out / name / f'seed{seed}')
            for name, label in names.items()
            for seed in range(variants[label].seed, variants[label].seed + seeds)]


def collect(jobs: Sequence[Job], out: Path, target: float | None = None,
            times: Sequence[float] | None = None) -> Comparison:
    """Read the records of the jobs, and write ``comparison.json`` into ``out``."""
    runs: dict[str, list[Run]] = {}
    for job in jobs:
        runs.setdefault(job.label, []).append(read_run_measures(job.directory))
    comparison = compare_runs(runs, out, target, times)
    write_comparison(out, comparison)
    return comparison


def directory_name(label: str) -> str:
    """Return the name of the directory for a label, for example ``rsp-4`` for ``rsp:4``."""
    return re.sub(r'[^\w.-]', '_', label.replace(':', '-'))
