"""Evaluates the server's model in a thread of its own, and writes it as a version of the run."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np
from fleet_env.errors import VersionError
from fleet_env.versions import MODELS, Version, Versions
from fleet_env.weights import state_bytes
from rog_core.model.flat import Contents, contents_of
from rog_core.server.server import Server
from rog_ros.parameters import ServerSettings
from rog_tasks.failure import failure
from rog_tasks.task import Task, measure
from rog_tasks.task_check import young_share

from .checkpoint import CheckpointError, norm_of
from .run_log import ACCURACY, VERSION, RunLog

# The next evaluation begins after this many times the duration of the last one. So evaluations take
# at most about 5 % of the time.
REST = 20.0


class Snapshot(NamedTuple):
    """The server's model at one moment.

    ``master``: the flat model, float32 (elements,), a copy. ``elapsed``: seconds of training.
    """

    master: np.ndarray
    iteration: int
    method: str
    elapsed: float


class _Outcome(NamedTuple):
    """What became of a snapshot.

    ``failure`` says why it has no accuracy, ``error`` why it is no version. ``young``: see
    `rog_tasks.task_check.young_share`.
    """

    snapshot: Snapshot
    seconds: float
    accuracy: float = math.nan
    version: Version | None = None
    young: float = 0.0
    failure: str = ''
    error: str = ''


class ModelVersions:
    """Writes versions of the model into the folder of the run.

    An evaluation runs in a thread of its own, at most one at a time. All methods are called by the
    thread of the node, and return at once, except `begin` and `conclude`, which write a version.
    Without an out directory no version is written and nothing is evaluated.

    :param machine: state machine of the server, whose model this is.
    :param contents: a model of ``task`` that nobody else uses.
    :param woken: function that the evaluating thread calls when `look` has something to do.
    :param offer: called when `offered` has changed.
    """

    def __init__(self, settings: ServerSettings, run: RunLog, machine: Server,
                 task: Task, contents: Contents, woken: Callable[[], None],
                 offer: Callable[[], None]) -> None:
        out = self._out = run.out
        self._store = Versions((out or Path()) / MODELS, settings.server.keep)
        self._about = {'run': out.absolute().name if out else '', 'fleet': settings.fleet,
                       'task': settings.training.task, 'measured_on': "the server's model",
                       'measured_by': 'parameter server'}
        self._every, self._run = settings.server.checkpoint_every or math.inf, run
        self._machine = machine
        self._task, self._contents, self._woken, self._offer = task, contents, woken, offer
        self._norm = 0.0                  # norm of the model of the last version; 0: none
        self._last: Snapshot | None = None    # the model of the last version
        self._waiting: Snapshot | None = None  # the final model, while another one is evaluated
        self._next = math.inf             # when the next evaluation may begin
        self._busy = False                # whether a thread evaluates
        self._outcomes: SimpleQueue[_Outcome] = SimpleQueue()
        # A thread writes a version with this lock, unless it learns that it must not any more.
        self._lock = threading.Lock()
        self._closed = False

    def offered(self) -> tuple[Version, Path, bool] | None:
        """Return the version that followers of the model get, its folder, and whether it is pinned.

        None: there is none yet, or none is written.
        """
        if self._out is None or not (number := self._store.offered()):
            return None
        return self._store.read(number), self._store.path(number), self._store.pinned() == number

    def pin(self, number: int) -> str:
        """Choose a version for all followers: its number, 0 for the newest, -1 for the one before.

        Returns what is offered now. Raises VersionError if there is no such version.
        """
        if self._out is None:
            raise VersionError('this fleet writes no versions: give it an out directory')
        said = self._store.choose(number)
        self._offer()
        return said

    @property
    def busy(self) -> bool:
        """Return whether a model is being evaluated, or waits for that."""
        return self._busy or self._waiting is not None

    def begin(self, now: float, accuracy: float | None) -> None:
        """Write the first version, the prepared model.

        :param accuracy: accuracy of this model, NaN if unknown; None: the run is resumed, and a
            version is not due yet.
        """
        self._next = now + self._every
        if self._out is not None and accuracy is not None:
            self._take(self._written(self._snapshot(), self._contents, accuracy))

    def finish(self) -> None:
        """Evaluate the final model, at once or when the present evaluation has ended."""
        snapshot = self._snapshot()
        if self._out is None or self._is_written(snapshot):
            return
        if self._busy:
            self._waiting = snapshot
        else:
            self._start(snapshot)

    def look(self, now: float) -> None:
        """Record what the thread has found since the last call; evaluate the model if it is due.

        It is due if it is the final one, or if it has changed and enough time has passed.
        """
        machine = self._machine
        self._look_for_outcome(now)
        if self._busy or self._out is None:
            return
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            if not self._is_written(waiting):
                self._start(waiting)
        elif now >= self._next and not machine.stopping and (
                self._last is None or machine.iteration != self._last.iteration):
            self._next = now + self._every
            self._start(self._snapshot())

    def _look_for_outcome(self, now: float) -> None:
        try:
            outcome = self._outcomes.get_nowait()
        except Empty:
            return
        self._busy = False
        self._next = max(self._next, now + REST * outcome.seconds)
        self._take(outcome)

    def conclude(self) -> None:
        """Write the final model without an accuracy, unless it is written already.

        A thread that still evaluates writes nothing from now on.
        """
        self._waiting = None
        self.close()
        self._look_for_outcome(0.0)
        busy, snapshot = self._busy, self._snapshot()
        if self._out is not None and not self._is_written(snapshot):
            if busy:
                self._run.log.warning('the final model was not evaluated in time; its version '
                                        'has no accuracy')
            # A thread may still use the other model.
            self._take(self._written(snapshot, None if busy else self._contents))

    def close(self) -> None:
        """Let a thread that still evaluates write nothing."""
        with self._lock:
            self._closed = True

    def _snapshot(self) -> Snapshot:
        machine = self._machine
        return Snapshot(machine.master.copy(), machine.iteration, machine.method.spec.text,
                        self._run.elapsed)

    def _is_written(self, snapshot: Snapshot) -> bool:
        return self._last is not None and np.array_equal(snapshot.master, self._last.master)

    def _start(self, snapshot: Snapshot) -> None:
        self._busy = True
        threading.Thread(target=self._evaluate, args=(snapshot,), name='evaluate',
                         daemon=True).start()

    def _evaluate(self, snapshot: Snapshot) -> None:
        """Evaluate a model and write its version, in the thread."""
        began, accuracy, failed = time.monotonic(), math.nan, ''
        try:
            self._contents.store(snapshot.master)
            accuracy = measure(self._task, self._contents.model)
        except (Exception, SystemExit) as error:   # an error of the task must not end the training
            failed = failure(self._task, error)
        seconds = time.monotonic() - began
        with self._lock:
            if self._closed:
                return
            self._outcomes.put(self._written(snapshot, self._contents, accuracy)._replace(
                seconds=seconds, failure=failed, young=young_share(self._contents.model)))
            self._woken()

    def _written(self, snapshot: Snapshot, contents: Contents | None,
                 accuracy: float = math.nan) -> _Outcome:
        """Write a version by a model, or by a new model of the task (None)."""
        try:
            norm = norm_of(self._machine.partition, snapshot.master, self._norm)
            contents = contents or contents_of(self._task.model())
            contents.store(snapshot.master)
            version = self._store.write(
                state_bytes(contents.model), method=snapshot.method, iteration=snapshot.iteration,
                accuracy=accuracy, time=time.strftime('%Y-%m-%dT%H:%M:%S%z'), **self._about)
        except (VersionError, CheckpointError) as error:
            return _Outcome(snapshot, 0.0, accuracy, error=str(error))
        except Exception as error:   # a state_dict of the user's model can raise anything
            return _Outcome(snapshot, 0.0, accuracy, error=failure(self._task, error))
        self._norm = norm
        return _Outcome(snapshot, 0.0, accuracy, version)

    def _take(self, outcome: _Outcome) -> None:
        """Record and log an outcome."""
        run, snapshot = self._run, outcome.snapshot
        if outcome.failure:
            run.note(ACCURACY, f'at iteration {snapshot.iteration}: {outcome.failure}')
        elif not math.isnan(outcome.accuracy):
            run.note(ACCURACY)
        if snapshot.iteration and not math.isnan(outcome.accuracy):
            run.record(lambda recorder: recorder.server(
                snapshot.elapsed, snapshot.iteration, outcome.accuracy, outcome.young))
        run.note(VERSION, outcome.error)
        if outcome.version is not None:
            self._last = snapshot
            self._offer()
