"""The files of a run in the server's out directory: record, summary and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fleet_env.errors import RecordError
from fleet_env.records import events
from fleet_env.records.run_recorder import Recorder
from rog_core.errors import ConfigError, shown
from rog_core.model.partition import RowPartition
from rog_core.server.aggregation import ServerState
from rog_ros.parameters import ServerSettings

from . import checkpoint
from .directory import kept


class RunFiles:
    """Writes the files of a run. Without an out directory it writes nothing.

    A full disk does not stop the training: errors go to the log, and `close` names them.

    :param settings: settings of the server.
    :param elapsed: function that returns the seconds of training until now.
    :param log: logger of the node.
    :raises ConfigError: the directory already holds a run, and the settings do not resume it.
    """

    def __init__(self, settings: ServerSettings, elapsed: Callable[[], float], log: Any) -> None:
        self.out = out = Path(settings.out) if settings.out else None
        if out is not None and not settings.resume and (out / events.RUN_FILE).exists():
            raise ConfigError(f'{out} already holds a run; choose another out directory, or go '
                              'on with it by resume')
        # Why the last checkpoint and the last model version were not written, by these words. What
        # was written is not here.
        self._missing: dict[str, str] = {}
        self._settings, self.elapsed, self.log = settings, elapsed, log
        self._incomplete = False   # whether a part of the records could not be written
        self._recorder: Recorder | None = None
        self._writer: checkpoint.Writer | None = None

    def newest_checkpoint(self, partition: RowPartition, fresh: np.ndarray
                          ) -> tuple[np.ndarray, ServerState, float] | None:
        """Return what `checkpoint.read` returns for the newest checkpoint.

        Return None if there is no checkpoint.
        """
        # Do not check the directory here: `main` has checked it before the slow imports.
        if self.out is None or not self._settings.resume:
            return None
        store = kept(self.out)
        found = store.newest()
        if found is None:
            return None
        for skipped in store.skipped:
            self.log.warning(f'{skipped}; an older checkpoint is used')
        master, state, elapsed = checkpoint.read(found, partition, fresh)
        self.log.info(f'going on from {found.path}, iteration {state.iteration}, {state.sync}')
        return master, state, elapsed

    def begin(self, partition: RowPartition, master: np.ndarray, robots: list[str],
              baseline: tuple[float, float] | None) -> None:
        """Begin the record, or continue the record of a resumed run.

        :param master: the model at the start, float32 (elements,).
        :param baseline: accuracies of this model, first on the data before the domain shift, then
            on the present data; None: the run is resumed.
        """
        if self.out is None:
            return
        damaged: list[RecordError] = []
        former = events.read_run(self.out, damaged) \
            if (self.out / events.RUN_FILE).exists() else []
        if damaged:
            self.log.warning(f'{len(damaged)} lines of the record are damaged and left '
                              f'out of the summary, the first: {shown(damaged[0])}')
        settings = self._settings
        training = settings.training
        start = events.Start(self.elapsed(), '', training.task, training.sync, settings.seed,
                              settings.fleet, robots, time.strftime('%Y-%m-%dT%H:%M:%S%z'),
                              codec=training.codec)
        self._recorder = Recorder(self.out, start, former)
        if baseline is not None:
            self._recorder.baseline(*baseline)
        self._writer = checkpoint.Writer(
            partition, float(np.linalg.norm(master[:partition.buffers.start])))

    def record(self, write: Callable[[Recorder], None]) -> None:
        """Write to the record, if there is one."""
        if self._recorder is None:
            return
        try:
            write(self._recorder)
        except RecordError as error:
            self._incomplete = True
            self.log.error(str(error), throttle_duration_sec=5.0)

    def fault(self, robot: str, what: str, detail: str) -> None:
        """Write a fault to the record."""
        self.record(lambda recorder: recorder.fault(self.elapsed(), robot, what, detail))

    def lacking(self, present: set[str]) -> set[str]:
        """Return the robots of ``present`` whose last status is not in the record yet."""
        return set() if self._recorder is None else present - self._recorder.final_statuses()

    def save(self, master: np.ndarray, state: ServerState, name: str = '', most: int = 0) -> Path:
        """Write a checkpoint and return its path.

        :param name: name given by a user: the checkpoint then goes to a directory of its own
            and is not replaced by the run's checkpoints. Empty: a checkpoint of the run.
        :param most: maximum number of checkpoints with a name.
        :raises CheckpointError: the checkpoint could not be written.
        """
        if self.out is None or self._writer is None:
            raise checkpoint.CheckpointError('the server has no out directory')
        store = kept(checkpoint.named(self.out, name, most) if name else self.out,
                     self._settings.server.keep)
        return self._writer.write(store, master, state, self.elapsed())

    def save_or_say(self, master: np.ndarray, state: ServerState) -> None:
        """Write a checkpoint of the run; log a failure, and the first success after a failure."""
        try:
            self.save(master, state)
        except checkpoint.CheckpointError as error:
            self.note('checkpoint', str(error))
        else:
            self.note('checkpoint')

    def note(self, what: str, error: str = '') -> None:
        """Log that a file was not written, or the first success after that.

        :param what: ``checkpoint`` or ``model version``.
        :param error: why it was not written; empty: it was written.
        """
        if error:
            self.log.error(f'no {what}: {error}', throttle_duration_sec=5.0)
            if what not in self._missing:
                self.fault('', f'no_{what.replace(" ", "_")}', error)
            self._missing[what] = error
        elif self._missing.pop(what, ''):
            self.log.info(f'{what}s are written again')

    @property
    def unsaved(self) -> str:
        """Return what was not written last and why, such as 'no checkpoint: ...'; else ''."""
        return '; '.join(f'no {what}: {error}' for what, error in self._missing.items())

    def close(self, reason: str, sync: str) -> str:
        """Write the summary.

        Return an error message if the files are not complete, else an empty text.

        :param reason: why the run ends.
        :param sync: last method of the run.
        """
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return ''
        try:
            recorder.stop(self.elapsed(), reason, sync)
        except RecordError as error:
            self._incomplete = True
            self.log.error(str(error))
        if self._incomplete or self.unsaved:
            return f'{self.out} is not complete; see the errors in the log'
        self.log.info(f'wrote {self.out}')
        return ''
