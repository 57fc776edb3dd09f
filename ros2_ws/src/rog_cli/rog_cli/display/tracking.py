"""Experiment tracking: the record of a run as curves in TensorBoard and MLflow.

Other processes read the record while the run writes it (`tracked`), so that the run never waits
for a tracker. Each tracker stores how many bytes of the record it has, and their digest;
so a resumed run, or a run sent a second time, goes on where its curves end.
"""

from __future__ import annotations

import json
import math
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from fleet_env.command import how_it_ended, last_error
from fleet_env.durable import write_whole
from fleet_env.errors import RecordError, SettingError
from fleet_env.records.events import (
    RUN_FILE,
    Evaluation,
    Event,
    Iteration,
    RunReader,
    Start,
    Status,
    Stop,
)
from rog_core.errors import shown

EVERY = 1.0    # seconds between two readings of a record that is being written
# Seconds that a tracker may take for the rest when the run is over; long enough on a busy machine,
# where its process waits for all others.
ENDING = 30
BATCH = 1000   # most metrics that MLflow takes at once
MARK = 'rog.json'  # how much of the record a folder of TensorBoard has
SERVER = 'server'  # name of the curve of the server's model


class Point(NamedTuple):
    """A point of the curve ``name``; ``time``: in seconds since 1970, in virtual time since 0."""

    name: str
    value: float
    step: int
    time: float


@dataclass
class _Robot:
    iteration: int = 0
    life: str = ''
    sums: Counter[str] = field(default_factory=Counter)  # bytes of all its lives
    former: float = 0.0   # energy of its ended processes, J
    energy: float = 0.0   # energy of its present process, J


class Curves:
    """Makes the points of all curves of a run, from its events in the order of the record."""

    def __init__(self) -> None:
        self._zero = 0.0  # when the run's time was 0
        self._robots: defaultdict[str, _Robot] = defaultdict(_Robot)

    def time(self, event: Event) -> float:
        """Return when the event happened."""
        return self._zero + event.t

    def take(self, event: Event) -> list[Point]:
        """Return the points of the next event; all their values are finite."""
        if isinstance(event, Start) and event.wall_time:
            self._zero = datetime.strptime(event.wall_time, '%Y-%m-%dT%H:%M:%S%z').timestamp() \
                - event.t
        robot, values = self._robots[event.robot], dict[str, float]()
        if isinstance(event, Evaluation):
            step = event.iteration
            values['accuracy_before_shift' if event.phase == 'clean' else 'accuracy'] = event.metric
        elif isinstance(event, Iteration):
            step = robot.iteration = event.iteration
            values = self._iteration(robot, event)
        elif isinstance(event, Status) and event.robot:
            step = robot.iteration
            if event.detail != robot.life:
                robot.life, robot.former = event.detail, robot.former + robot.energy
                robot.energy = 0.0
            if math.isfinite(event.energy):
                robot.energy = event.energy
                values['energy_J'] = robot.former + robot.energy
        return [Point(f'{name}/{event.robot or SERVER}', float(value), step, self.time(event))
                for name, value in values.items() if math.isfinite(value)]

    def _iteration(self, robot: _Robot, event: Iteration) -> dict[str, float]:
        times = {'computing': event.compute_s, 'communicating': event.communicate_s,
                 'waiting': event.stall_s}
        total = sum(times.values()) or math.nan
        robot.sums.update(bytes_sent=event.bytes_sent, bytes_received=event.bytes_received)
        values = {'loss': event.loss, **{f'{name}_share': s / total for name, s in times.items()},
                  'staleness': event.staleness, 'link_Mbit_s': event.rate, **robot.sums}
        if math.isfinite(event.energy_j):
            robot.energy += event.energy_j
            values['energy_J'] = robot.former + robot.energy
        return values


class Mark(NamedTuple):
    """The part of a record that a tracker has: its number of bytes, and their SHA-256."""

    bytes: int
    sha256: str


def parameters(start: Start) -> dict[str, str]:
    """Return the hyper-parameters of a run."""
    return {'method': start.sync, 'task': start.task, 'codec': start.codec,
            'seed': str(start.seed), 'fleet': start.fleet, 'robots': ', '.join(start.robots)}


class TensorBoard:
    """The event files of the run ``name`` in a folder of ``directory``."""

    def __init__(self, directory: Path, name: str) -> None:
        self.place, self._file = directory / name, directory / name / MARK
        self._writer: Any = None

    def marks(self) -> list[Mark]:
        """Return the marks of all runs with this name."""
        return [Mark(**json.loads(self._file.read_bytes()))] if self._file.exists() else []

    def begin(self, mark: Mark | None) -> None:
        """Go on with the run that has this mark; without one, begin a run.

        :raises RecordError: the folder holds another run.
        """
        if mark is None and self.marks():
            raise RecordError('holds the curves of another run; remove it, or choose another '
                              'folder by --tensorboard', str(self.place))

    def write(self, starts: list[tuple[float, Start]], points: list[Point], mark: Mark) -> None:
        """Write hyper-parameters, with their time, and points; then, the record up to ``mark``."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # these imports are slow

        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.place))
        for when, start in starts:
            table = '\n'.join(f'| {name} | {value} |' for name, value in parameters(start).items())
            self._writer.add_text('run', f'| | |\n|---|---|\n{table}', 0, walltime=when)
        # add_scalar() writes each value apart, which takes five times as long
        for (step, when), same in groupby(points, lambda point: (point.step, point.time)):
            values = [Summary.Value(tag=point.name, simple_value=point.value) for point in same]
            self._writer.file_writer.add_summary(Summary(value=values), step, when)
        self._writer.flush()
        write_whole(self._file, json.dumps(mark._asdict()).encode())

    def close(self, reason: str) -> None:
        """End the run; ``reason`` is that of the record, empty if the run has none yet."""
        if self._writer is not None:
            self._writer.close()


class MLflow:
    """The run ``name`` in the experiment that MLflow's environment variables choose."""

    def __init__(self, name: str) -> None:
        import mlflow  # slow

        self.place, self._name = f'MLflow, {mlflow.get_tracking_uri()}, run {name}', name
        self._client = mlflow.MlflowClient()
        self._experiment = os.environ.get('MLFLOW_EXPERIMENT_ID') or mlflow.set_experiment(
            os.environ.get('MLFLOW_EXPERIMENT_NAME') or 'Default').experiment_id
        self._runs: dict[Mark, str] = {}

    def marks(self) -> list[Mark]:
        """Return the marks of all runs with this name."""
        quote = '"' if "'" in self._name else "'"
        for run in self._client.search_runs(
                [self._experiment], f'attributes.run_name = {quote}{self._name}{quote}'):
            tags = run.data.tags
            if 'rog.bytes' in tags:
                self._runs[Mark(int(tags['rog.bytes']), tags['rog.sha256'])] = run.info.run_id
        return list(self._runs)

    def begin(self, mark: Mark | None) -> None:
        """Go on with the run that has this mark; without one, begin a run."""
        self._new = mark is None
        if mark is None:
            self._run = self._client.create_run(self._experiment, run_name=self._name).info.run_id
        else:
            self._run = self._runs[mark]
            self._client.update_run(self._run, status='RUNNING')

    def write(self, starts: list[tuple[float, Start]], points: list[Point], mark: Mark) -> None:
        """Write hyper-parameters and points; then, that the run has the record up to ``mark``."""
        from mlflow.entities import Metric, Param, RunTag

        if self._new and starts:  # a run of MLflow cannot change its parameters
            self._client.log_batch(self._run, params=[
                Param(name, value) for name, value in parameters(starts[0][1]).items()])
            self._new = False
        for i in range(0, len(points), BATCH):
            self._client.log_batch(self._run, [
                Metric(point.name, point.value, round(1000 * point.time), point.step)
                for point in points[i:i + BATCH]])
        self._client.log_batch(self._run, tags=[RunTag('rog.bytes', str(mark.bytes)),
                                                RunTag('rog.sha256', mark.sha256)])

    def close(self, reason: str) -> None:
        """End the run; ``reason`` is that of the record, empty if the run has none yet."""
        status = {'': 'FAILED', 'diverged': 'FAILED', 'interrupted': 'KILLED'}.get(
            reason, 'FINISHED')
        self._client.set_terminated(self._run, status)


# Maps the name of a package, which is also that of its option, to what makes a tracker of a run.
Trackers = dict[str, Callable[[str], TensorBoard | MLflow]]


def chosen_trackers(tensorboard: Path | None, mlflow: bool) -> Trackers:
    """Return trackers: TensorBoard, which gets the folder ``tensorboard``, and MLflow.

    :raises SettingError: a package is not installed, or the folder is a file.
    """
    chosen: Trackers = {}
    if tensorboard:
        chosen['tensorboard'] = partial(TensorBoard, tensorboard)
        if tensorboard.exists() and not tensorboard.is_dir():
            raise SettingError(f'--tensorboard {tensorboard} is a file; give a folder')
    if mlflow:
        chosen['mlflow'] = MLflow
    for package in chosen:
        if find_spec(package) is None:
            raise SettingError(f'--{package} needs the package {package}, which is not installed: '
                               f'pip install {package}')
    return chosen


class Export:
    """Brings the record in ``folder`` to one tracker."""

    def __init__(self, folder: Path, tracker: TensorBoard | MLflow) -> None:
        self._folder, self.tracker = folder, tracker
        self._reader: RunReader | None = None
        self._curves, self._reason, self._time = Curves(), '', 0.0

    def go_on(self) -> None:
        """Write what the record has more than the tracker.

        :raises RecordError: the record cannot be read, or the tracker has another one.
        """
        self._reader = self._reader or self._begun()
        points, starts = [], []
        for event in self._reader.read():
            points += self._follow(event)
            if isinstance(event, Start):
                starts.append((self._time, event))
        if points or starts:
            self.tracker.write(starts, points, _mark(self._reader))

    def _begun(self) -> RunReader:
        """Begin the tracker's run, or go on with it; return a reader of what it does not have."""
        for mark in self.tracker.marks():
            reader = RunReader(self._folder)
            known = reader.read(end=mark.bytes)
            if _mark(reader) == mark:
                for event in known:
                    self._follow(event)
                self.tracker.begin(mark)
                return reader
        self.tracker.begin(None)
        return RunReader(self._folder)

    def _follow(self, event: Event) -> list[Point]:
        points = self._curves.take(event)
        self._time = self._curves.time(event)
        if isinstance(event, Start | Stop):
            self._reason = event.reason if isinstance(event, Stop) else ''
        return points

    def close(self) -> None:
        """End the tracker's run."""
        if self._reader is not None:
            self.tracker.close(self._reason)


def _mark(reader: RunReader) -> Mark:
    return Mark(reader.position, reader.digest)


def _records(folder: Path, name: str = '') -> dict[str, Path]:
    """Return the folder of each record in the folder of a run, by the name of its curves.

    A fleet of fleets and a comparison have several. The names begin with ``name``, or with that of
    the folder.
    """
    name = name or folder.resolve().name
    return {(Path(name) / file.parent.relative_to(folder)).as_posix(): file.parent
            for file in sorted(folder.rglob(RUN_FILE))}


def export(folder: Path, trackers: Trackers, name: str = '') -> list[str]:
    """Send the curves of the runs in ``folder``, which have ended; return where they are.

    :param name: name of the run; empty: that of the folder.
    :raises RecordError: there is no record, it cannot be read, or a tracker has another one.
    :raises SettingError: a tracker does not take the curves.
    """
    if not (found := _records(folder, name)):
        raise RecordError(f'there is no {RUN_FILE} in it', str(folder))
    places = []
    for name, record in found.items():
        for kind, make in trackers.items():
            try:
                one = Export(record, make(name))
                one.go_on()
                one.close()
            except (RecordError, OSError):
                raise
            except Exception as error:  # of any kind: it comes from the tracker's library
                raise SettingError(f'{kind}: {shown(error).strip()}') from error
            places.append(str(one.tracker.place))
    return places


def follow(folder: Path, make: Callable[[str], TensorBoard | MLflow], over: Callable[[], bool]
           ) -> None:
    """Send the curves of a run to one kind of tracker while the run goes on.

    :param over: waits a moment; returns whether the record is complete.
    """
    exports: dict[str, Export] = {}
    last = False
    while not last:
        last = over()
        for name, record in _records(folder).items():
            if name not in exports:
                exports[name] = Export(record, make(name))
            exports[name].go_on()
    for export in exports.values():
        export.close()


@contextmanager
def tracked(folder: Path, tensorboard: Path | None, mlflow: bool,
            hurry: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Send the curves of the run in ``folder`` during the context; a failure does not end it.

    Each tracker has a process of its own, so that the run and other trackers never wait for it.

    :param tensorboard, mlflow: see `chosen_trackers`.
    :param hurry: returns whether the processes must end at once.
    """
    if tensorboard:
        print(f'curves: tensorboard --logdir {shlex.quote(str(tensorboard))}', flush=True)
    started = [_Process(folder, kind, tensorboard)
               for kind in chosen_trackers(tensorboard, mlflow)]
    try:
        yield
    finally:
        try:
            for process in started:
                process.complete()
            while any(process.runs() for process in started) and not hurry():
                time.sleep(0.05)
        finally:
            for process in started:
                process.end()


class _Process:
    """A process that sends the curves of the run in ``folder`` to one kind of tracker."""

    def __init__(self, folder: Path, kind: str, tensorboard: Path | None) -> None:
        self._folder, self._kind = folder, kind
        self._log = folder / 'logs' / f'{kind}.log'
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open('ab') as log:
            # Its own session, so that Ctrl+C does not reach it. It ends when its input ends.
            self._process = subprocess.Popen(
                [sys.executable, '-m', __name__, folder, kind, tensorboard or ''],
                stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True, env={**os.environ, 'OMP_NUM_THREADS': '1'})
        # In a thread, because a failure is said while the run goes on.
        self._teller = threading.Thread(target=self._tell, daemon=True)
        self._teller.start()

    def _tell(self) -> None:
        if code := self._process.wait():
            why = 'has not taken everything in time' \
                if -code in (signal.SIGKILL, signal.SIGALRM) \
                else last_error(self._log) or how_it_ended(code)
            options = {'tensorboard': '--tensorboard DIR', 'mlflow': '--mlflow'}
            print(f'rog: {self._kind}: {why}\nrog: the run does not need it; `rog plot '
                  f'{self._folder} {options[self._kind]}` sends the curves. Its log: {self._log}',
                  file=sys.stderr, flush=True)

    def complete(self) -> None:
        """Tell the process that the record is complete; it ends within `ENDING` seconds."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            # not only closed: a process that was forked from this one may keep the pipe open
            self._process.stdin.write(b'\n')
            self._process.stdin.close()

    def runs(self) -> bool:
        """Return whether the process runs, or its failure is being said."""
        return self._teller.is_alive()

    def end(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._teller.join()


def main() -> int:
    """Send the curves of a run to one kind of tracker until this process's input ends."""
    os.nice(10)
    folder, kind, tensorboard = sys.argv[1:]
    trackers = chosen_trackers(Path(tensorboard) if tensorboard else None, kind == 'mlflow')

    def over() -> bool:
        if not select.select([sys.stdin], [], [], EVERY)[0]:
            return False
        signal.alarm(ENDING)  # the kernel then ends this process, also if a library hangs
        return True

    try:
        follow(Path(folder), trackers[kind], over)
    except Exception as error:  # of any kind: it comes from the tracker's library
        traceback.print_exc()
        print(f'error: {shown(error).strip() or type(error).__name__}', flush=True)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
