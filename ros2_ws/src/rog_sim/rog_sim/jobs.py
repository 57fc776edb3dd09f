"""Runs many jobs in parallel: in processes of this machine, or on a Dask cluster.

Runs share nothing, and `simulate` computes in one thread. So the outcome depends neither on the
number of workers nor on the order in which the runs finish. A run on a cluster receives the content
of its link traces and returns the content of its files, so it needs no shared disk.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fleet_env.links.generate import PROFILES
from fleet_env.links.trace import read_trace
from fleet_env.records.events import RUN_FILE
from fleet_env.records.summary import SUMMARY_FILE, Summary, read_summary
from fleet_env.settings.fleet import FleetConfig
from fleet_env.settings.fleet_file import dump_fleet, read_fleet, with_overrides
from rog_core.errors import ConfigError, RogError

from .interrupts import interrupts_blocked

FLEET_FILE = 'fleet.yaml'
ANSWER_S = 10.0  # longest wait, in seconds, for a Dask scheduler, and then for its first worker
Simulate = Callable[..., Summary]
RunDone = Callable[[str, int], None]
Results = Generator[tuple[int, dict[str, bytes]], None, None]  # yields the results of `_run`


class RunError(RogError):
    """A run failed; the message names its label and seed."""


@dataclass(frozen=True)
class Job:
    """One run: label, settings and directory."""

    label: str
    fleet: FleetConfig
    directory: Path

    def done(self) -> bool:
        """Return whether the directory contains this run, complete and with the same settings."""
        try:
            read_summary(self.directory)
            # Compare the parsed settings, not the text of the file. Otherwise many hours of runs
            # would be repeated after an update of the software that adds a setting.
            kept = read_fleet(self.directory / FLEET_FILE)
            return dump_fleet(kept) == dump_fleet(self.fleet)
        except (OSError, ValueError):
            return False

    def keep(self, files: dict[str, bytes]) -> None:
        """Write the files of the run; the summary comes last and marks the run complete."""
        self.directory.mkdir(parents=True, exist_ok=True)
        files = {FLEET_FILE: dump_fleet(self.fleet).encode(), **files}
        for name in sorted(files, key=SUMMARY_FILE.__eq__):
            (self.directory / name).write_bytes(files[name])


def run_jobs(jobs: Sequence[Job], workers: int | None = None, progress: RunDone | None = None,
             resume: bool = False, simulate: Simulate | None = None,
             cluster: str | None = None) -> None:
    """Run all jobs that are not complete yet; a failed run or Ctrl+C ends the other runs.

    The files of finished runs stay on disk.

    :param workers: number of runs at a time on this machine; default: one per core.
    :param progress: called with the label and the seed of each finished run, also of runs that were
        complete before.
    :param resume: keep complete runs that have the same settings; if False, a complete run is an
        error.
    :param simulate: picklable function for one run; default `rog_sim.simulation.simulate`.
    :param cluster: address of a Dask scheduler. Each worker process of the cluster does one run at
        a time. The modules of the tasks must be installed on the cluster.
    :raises ConfigError: before any run, if the directory of a job holds another run or is not a
        directory, or if the scheduler does not answer.
    :raises TraceError: before any run on a cluster, if a link cannot be read.
    :raises RunError: a run failed.
    """
    due = _due(jobs, resume)
    tell = progress or (lambda label, seed: None)
    for job in jobs:
        if job not in due:
            tell(job.label, job.fleet.seed)
    if not due:
        return
    links = [_links(job.fleet) if cluster else {} for job in due]
    count = min(workers or os.cpu_count() or 1, len(due))
    with TemporaryDirectory(prefix='rog-runs-') as scratch, \
            _on_cluster(cluster) if cluster else _here(count) as results_of:
        # Create all directories now, so that an error comes before hours of computing.
        for job in due:
            job.directory.mkdir(parents=True, exist_ok=True)
        # If this function ends early, unfinished runs on this machine are killed, and their
        # temporary files are removed with `scratch`. On a cluster, unfinished runs are cancelled,
        # and each run removes its own temporary files.
        places = None if cluster else (scratch, os.getpid())
        calls = [(index, job.label, job.fleet, links[index], simulate, places)
                 for index, job in enumerate(due)]
        with closing(results_of(calls)) as results:
            for index, files in _reported(results):
                due[index].keep(files)
                tell(due[index].label, due[index].fleet.seed)


def run_in_turn(jobs: Sequence[Job], run: Callable[[Job], None], progress: RunDone | None = None,
                resume: bool = False) -> None:
    """Run all jobs that are not complete yet, one after another.

    `run_jobs` describes the other parameters and the errors.

    :param run: function that runs a job and writes its files.
    """
    due = _due(jobs, resume)
    for job in jobs:
        if job in due:
            job.directory.mkdir(parents=True, exist_ok=True)
            run(job)
        if progress is not None:
            progress(job.label, job.fleet.seed)


def _due(jobs: Sequence[Job], resume: bool) -> list[Job]:
    """Return the jobs that must run; remove the files of interrupted runs of these jobs."""
    due = []
    for job in jobs:
        there = next(p for p in (job.directory, *job.directory.absolute().parents) if p.exists())
        if not there.is_dir():
            raise ConfigError(f'{there} is not a directory; choose another for the results')
        if (job.directory / SUMMARY_FILE).exists():
            if resume and job.done():
                continue
            wrong = 'a run with other settings' if resume else 'a run'
            help = 'another directory, or ' + ('move that run away' if resume else 'resume')
            raise ConfigError(f'{job.directory} already holds {wrong}; choose {help}')
        due.append(job)
    for job in due:
        for name in (RUN_FILE, FLEET_FILE):  # files of an interrupted run
            (job.directory / name).unlink(missing_ok=True)
    return due


def _links(fleet: FleetConfig) -> dict[str, bytes]:
    """Return a dict from the path of each trace file of the fleet's links to its content."""
    paths = {link.trace for link in (fleet.link, *(robot.link for robot in fleet.robots))}
    for path in paths - set(PROFILES):
        read_trace(path)
    return {path: Path(path).read_bytes() for path in paths - set(PROFILES)}


@contextmanager
def _here(workers: int) -> Iterator[Callable[[list[Any]], Results]]:
    """Yield a function that calls `_run` in processes of this machine; then end the processes.

    A single worker is this process.
    """
    if workers == 1:
        yield lambda calls: (_run(*call) for call in calls)
        return
    try:
        multiprocessing.Lock()  # a pool needs such locks
    except OSError as error:
        raise ConfigError('runs in processes need semaphores, which are files in /dev/shm: '
                          f'{error.strerror}. Remove files there that no process uses, or make it '
                          'larger (docker run --shm-size=1g)') from error
    # The start of the resource tracker unblocks SIGINT in this thread, so it comes first.
    resource_tracker.ensure_running()
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context('spawn'))

    def results_of(calls: list[Any]) -> Results:
        with interrupts_blocked():
            futures = [pool.submit(_run, *call) for call in calls]
        for future in as_completed(futures):
            yield future.result()

    try:
        yield results_of
    finally:
        for process in [*(pool._processes or {}).values()]:     # Python 3.14: pool.kill_workers()
            process.kill()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _on_cluster(address: str) -> Iterator[Callable[[list[Any]], Results]]:
    """Yield a function that calls `_run` on a Dask cluster; cancel unfinished calls at the end."""
    try:
        from distributed import Client
        from distributed import TimeoutError as NoAnswer
        from distributed import as_completed as as_answered
    except ImportError as error:
        raise ConfigError('runs on a Dask cluster need the package distributed: '
                          'pip install distributed') from error
    hint = f'start it with `dask scheduler` and `dask worker {address} --nthreads 1`'
    try:
        client = Client(address, timeout=ANSWER_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f'no Dask scheduler answers at {address} within {ANSWER_S:g} s; '
                          f'{hint}') from error

    def results_of(calls: list[Any]) -> Results:
        futures = [client.submit(_run, *call, pure=False) for call in calls]
        for future in as_answered(futures, loop=client.loop):
            yield future.result()

    with client:
        try:
            client.wait_for_workers(1, ANSWER_S)
        except NoAnswer as error:
            raise ConfigError(f'the Dask scheduler at {address} has no workers; {hint}') from error
        yield results_of


def _reported(results: Results) -> Results:
    """Yield the results; raise `RunError` if a worker process or the cluster fails."""
    try:
        yield from results
    except BrokenProcessPool as error:
        raise RunError('a process was killed; is there enough memory for this number of parallel '
                       'runs?') from error
    except CancelledError as error:
        raise RunError('the Dask scheduler has ended; finished runs are kept') from error
    except RogError:
        raise
    except Exception as error:  # for example, Dask reports that a run killed its worker
        raise RunError(f'a run failed: {error!r}') from error


class _GivenUp(Exception):
    """The client no longer waits for the result of this run."""


# The threads of a Dask worker take turns with this lock, because `simulate` sets the number of
# PyTorch's threads for the whole process.
_turn = threading.Lock()


def _run(index: int, label: str, fleet: FleetConfig, links: dict[str, bytes],
         simulate: Simulate | None, places: tuple[str, int] | None) -> tuple[int, dict[str, bytes]]:
    """Run one job in a worker; return its index and its files.

    :param links: maps the path of each link trace to its content. The run reads a temporary file
        with this content instead of the file at the path.
    :param places: on this machine, the directory for temporary files, and the id of the process
        that waits for the result; None on a cluster.
    """
    scratch, check = (places[0], _parent_lives(places[1])) if places else (None, _still_wanted())
    with _turn, TemporaryDirectory(prefix='rog-run-', dir=scratch) as directory:
        out = Path(directory) / 'run'
        out.mkdir()
        moved = {}
        for number, (path, content) in enumerate(links.items()):
            moved[path] = str(Path(directory) / f'link{number}.txt')
            Path(moved[path]).write_bytes(content)
        changes = {f'{place}.trace': moved[link.trace] for place, link in
                   [('link', fleet.link), *((f'robots.{r.name}.link', r.link)
                                            for r in fleet.robots)] if link.trace in moved}
        check(0.0)
        try:
            (simulate or _simulate)(with_overrides(fleet, changes) if changes else fleet, out,
                                    check)
        except _GivenUp:
            raise
        except Exception as error:
            raise RunError(f'{label}, seed {fleet.seed}: {error}') from error
        return index, {path.name: path.read_bytes() for path in out.iterdir()}


def _simulate(*arguments: Any) -> Summary:
    from .simulation import simulate  # imports PyTorch, which the parent process avoids

    return simulate(*arguments)


def _parent_lives(parent: int) -> Callable[[float], None]:
    """Return a callback that ends this worker process if its parent process has ended."""
    def check(share: float) -> None:
        if parent not in (os.getpid(), os.getppid()):
            os._exit(1)
    return check


def _still_wanted() -> Callable[[float], None]:
    """Return a callback that ends this run if it was cancelled or if its client has ended."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def check(share: float) -> None:
        task = worker.state.tasks.get(key)
        if task is None or task.state == 'cancelled':
            raise _GivenUp
    return check
