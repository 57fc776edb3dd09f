"""Runs several methods on the same fleet, trace and seeds, several runs at a time.

Runs share nothing (they are in spawned processes, and `simulate` computes in one thread), so that
the outcome depends neither on the number of workers nor on the order in which they finish.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet_env.fleet import FleetConfig
from fleet_env.fleet_file import dump_fleet, with_overrides
from fleet_env.records import RUN_FILE
from fleet_env.summary import SUMMARY_FILE, Summary, read_summary
from rog_core.errors import ConfigError, RogError
from rog_core.sync import parse_sync

from .comparison import Comparison, compare_runs, write_comparison
from .measure import Run, read_run_measures

FLEET_FILE = 'fleet.yaml'
Simulate = Callable[..., Summary]
Progress = Callable[[str, int, float], None]


class RunError(RogError):
    """One of the runs failed; the text names its method and seed."""


@dataclass(frozen=True)
class Job:
    """One run that is due."""

    sync: str
    fleet: FleetConfig
    directory: Path

    def done(self) -> bool:
        """Whether the directory holds this run, whole and with the same settings."""
        try:
            read_summary(self.directory)
            return (self.directory / FLEET_FILE).read_text() == dump_fleet(self.fleet)
        except (OSError, ValueError):
            return False


def compare(fleet: FleetConfig, methods: Sequence[str], seeds: int, out: Path,
            workers: int | None = None, progress: Progress | None = None,
            target: float | None = None, times: Sequence[float] | None = None,
            resume: bool = False, simulate: Simulate | None = None) -> Comparison:
    """Run every method with every seed and write ``comparison.json`` into ``out``.

    A run goes to ``out/<method>/seed<k>``; its seeds are those from ``fleet.seed`` on. One that
    fails ends the others and is reported; Ctrl+C ends them too. What is finished stays on disk.

    :param methods: for example ``['bsp', 'rsp:4']``; all are checked before anything runs.
    :param seeds: number of seeds, at least 1.
    :param workers: runs at a time; default: one per core.
    :param progress: told (method, seed, share done from 0 to 1) while runs go on; 1 once each.
    :param target: accuracy, 0 to 1, see `compare_runs`; so is ``times``, in s.
    :param resume: reuse runs in ``out`` that are whole and have the same settings.
    :param simulate: runs one; default `rog_sim.simulation.simulate`. It must be picklable.
    :raises ConfigError: for an unknown method, or an ``out`` that holds other runs.
    :raises RunError: names method and seed of the run that failed.
    """
    jobs = _jobs(fleet, methods, seeds, out)
    due = _due(jobs, resume)
    tell = progress or (lambda sync, seed, share: None)
    for job in jobs:
        if job not in due:
            tell(job.sync, job.fleet.seed, 1.0)
    if due:
        _run_all(due, min(workers or os.cpu_count() or 1, len(due)), tell, simulate)
    runs: dict[str, list[Run]] = {}
    for job in jobs:
        runs.setdefault(job.sync, []).append(read_run_measures(job.directory))
    comparison = compare_runs(runs, out, target, times)
    write_comparison(out, comparison)
    return comparison


def directory_name(method: str) -> str:
    """Return the name of a method's directory: ``rsp:4`` is ``rsp-4``."""
    return re.sub(r'[^\w.-]', '_', method.replace(':', '-'))


def _jobs(fleet: FleetConfig, methods: Sequence[str], seeds: int, out: Path) -> list[Job]:
    if seeds < 1 or not methods:
        raise ConfigError(f'{len(methods)} methods and {seeds} seeds; at least 1 each are needed')
    names: dict[str, str] = {}
    for method in methods:
        parse_sync(method)
        if names.setdefault(directory_name(method), method) != method \
                or list(methods).count(method) > 1:
            raise ConfigError(f"method '{method}' stands in the list twice")
    return [Job(method, with_overrides(fleet, {'training.sync': method, 'seed': seed}),
                out / name / f'seed{seed}')
            for name, method in names.items() for seed in range(fleet.seed, fleet.seed + seeds)]


def _due(jobs: list[Job], resume: bool) -> list[Job]:
    """Return the jobs that must run, their directories empty."""
    due = []
    for job in jobs:
        if (job.directory / SUMMARY_FILE).exists():
            if resume and job.done():
                continue
            wrong = 'a run with other settings' if resume else 'a run'
            help = 'another directory' if resume else 'another directory, or resume'
            raise ConfigError(f'{job.directory} already holds {wrong}; choose {help}')
        due.append(job)
    for job in due:
        for name in (RUN_FILE, FLEET_FILE):  # what a run left that was cut off
            (job.directory / name).unlink(missing_ok=True)
    return due


class _Stopped(Exception):
    """The comparison has been given up."""


def _run_all(jobs: list[Job], workers: int, tell: Progress, simulate: Simulate | None) -> None:
    context = multiprocessing.get_context('spawn')
    stop = context.Event()  # made first: it starts the tracker, which unblocks SIGINT in 3.10
    shares = context.RawArray('d', len(jobs))
    told = [0.0] * len(jobs)
    pool = ProcessPoolExecutor(workers, context, _prepare, (stop, shares))
    try:
        with _interrupts_blocked():
            futures = {pool.submit(_run, job, index, simulate): index
                       for index, job in enumerate(jobs)}
        waiting = set(futures)
        while waiting:
            finished, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in finished:
                if _succeeded(future, jobs[futures[future]]):
                    shares[futures[future]] = 1.0
            for index, job in enumerate(jobs):
                if (share := shares[index]) != told[index]:
                    told[index] = share
                    tell(job.sync, job.fleet.seed, share)
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _succeeded(future: Future[None], job: Job) -> bool:
    try:
        future.result()
        return True
    except BrokenProcessPool as error:
        raise RunError('a process was killed while it ran; is there memory for so many runs at '
                       'a time?') from error
    except _Stopped:
        return False  # another run has failed, and comes up too
    except Exception as error:
        raise RunError(f'{job.sync}, seed {job.fleet.seed}: {error}') from error


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start processes that Ctrl+C does not reach: the parent tells them to stop.

    A process inherits the mask of the thread that starts it; here SIGINT is only put off.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_stop: Any = None
_shares: Any = None


def _prepare(stop: Any, shares: Any) -> None:
    """Make ready a worker process."""
    global _stop, _shares
    _stop, _shares = stop, shares
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _simulate(*arguments: Any) -> Summary:
    from .simulation import simulate  # brings in torch, which the parent does without

    return simulate(*arguments)


def _run(job: Job, index: int, simulate: Simulate | None) -> None:
    def progress(share: float) -> None:
        _shares[index] = min(share, 0.999)  # 1 is for a run whose files are all there
        if _stop.is_set():
            raise _Stopped

    try:
        progress(0.0)
        job.directory.mkdir(parents=True, exist_ok=True)
        (simulate or _simulate)(job.fleet, job.directory, progress)
        (job.directory / FLEET_FILE).write_text(dump_fleet(job.fleet))
    except BaseException:
        _stop.set()
        raise
