"""Many runs, several at a time, each in a process of its own.

Runs share nothing (they are in spawned processes, and `simulate` computes in one thread), so that
the outcome depends neither on the number of workers nor on the order in which they finish.
"""

from __future__ import annotations

import multiprocessing
import os
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
from fleet_env.fleet_file import dump_fleet
from fleet_env.records import RUN_FILE
from fleet_env.summary import SUMMARY_FILE, Summary, read_summary
from rog_core.errors import ConfigError, RogError

FLEET_FILE = 'fleet.yaml'
Simulate = Callable[..., Summary]
Progress = Callable[[str, int, float], None]


class RunError(RogError):
    """One of the runs failed; the text names its label and seed."""


@dataclass(frozen=True)
class Job:
    """One run: its label, everything about it, and where it goes."""

    label: str
    fleet: FleetConfig
    directory: Path

    def done(self) -> bool:
        """Whether the directory holds this run, whole and with the same settings."""
        try:
            read_summary(self.directory)
            return (self.directory / FLEET_FILE).read_text() == dump_fleet(self.fleet)
        except (OSError, ValueError):
            return False


def run_jobs(jobs: Sequence[Job], workers: int | None = None, progress: Progress | None = None,
             resume: bool = False, simulate: Simulate | None = None) -> None:
    """Run all that are due. One that fails ends the others and is reported; Ctrl+C ends them too.

    What is finished stays on disk.

    :param workers: runs at a time; default: one per core.
    :param progress: told (label, seed, share done from 0 to 1) while runs go on; 1 once each.
    :param resume: keep the runs that are whole and have the same settings.
    :param simulate: runs one; default `rog_sim.simulation.simulate`. It must be picklable.
    :raises ConfigError: for a directory that holds another run, or is none; before anything runs.
    :raises RunError: names label and seed of the run that failed.
    """
    due = _due(jobs, resume)
    tell = progress or (lambda label, seed, share: None)
    for job in jobs:
        if job not in due:
            tell(job.label, job.fleet.seed, 1.0)
    if due:
        _run_all(due, min(workers or os.cpu_count() or 1, len(due)), tell, simulate)


def _due(jobs: Sequence[Job], resume: bool) -> list[Job]:
    """Return the jobs that must run, their directories empty."""
    due = []
    for job in jobs:
        there = next(p for p in (job.directory, *job.directory.absolute().parents) if p.exists())
        if not there.is_dir():
            raise ConfigError(f'{there} is no directory; choose another for the results')
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
    """The runs have been given up."""


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
                    tell(job.label, job.fleet.seed, share)
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
        raise RunError(f'{job.label}, seed {job.fleet.seed}: {error}') from error


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
