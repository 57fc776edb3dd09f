"""What a server keeps of a run: record, checkpoints, who is present, the time of training, the end.

Nothing here knows ROS. The node tells what happens, and asks whether the run is over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from fleet_env.errors import RecordError
from fleet_env.records import events
from fleet_env.records.run_recorder import Recorder
from rog_core.errors import ConfigError, shown
from rog_core.model.partition import RowPartition
from rog_core.protocol.states import AWAY, PAUSED, STOPPED
from rog_core.server.aggregation import ServerState
from rog_core.server.server import Server

from . import checkpoint
from .directory import kept

if TYPE_CHECKING:
    from rog_ros.parameters import ServerSettings


# what a server may fail to do while it trains on; `RunLog.faults` says 'no' before it
CHECKPOINT, VERSION, RECORD, ACCURACY = 'checkpoint', 'model version', 'record', 'accuracy'
FILES = (CHECKPOINT, VERSION, RECORD)


class RunLog:
    """Writes the files of a run, and remembers its robots and its time.

    Without an out directory it writes nothing. A full disk does not stop the training: errors go to
    the log, and `close` names them. The training's time begins paused.

    :param settings: settings of the server.
    :param log: logger of the node.
    :param clock: returns the present time in seconds; it never goes back.
    :raises ConfigError: the directory already holds a run, and the settings do not resume it.
    """

    def __init__(self, settings: ServerSettings, log: Any,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.out = out = Path(settings.out) if settings.out else None
        if out is not None and not settings.resume and (out / events.RUN_FILE).exists():
            raise ConfigError(f'{out} already holds a run; choose another out directory, or go '
                              'on with it by resume')
        self._settings, self.log, self._clock = settings, log, clock
        # What failed last, such as `CHECKPOINT` -> why. What has succeeded since then is not here.
        self._failing: dict[str, str] = {}
        self._incomplete = False   # whether a part of the records could not be written
        self._recorder: Recorder | None = None
        self._writer: checkpoint.Writer | None = None
        self._machine: Server | None = None
        self.away: set[str] = set()       # robots that are reported as away
        self.paused: set[str] = set()     # robots that have left the fleet for a pause
        self._before = 0.0                # seconds of training before the server's last restart
        # time at which the first robot joined, plus the pauses since then; None: no robot has
        # joined yet
        self._began: float | None = None
        self._paused_at = clock()         # when the run was paused; infinity means: not paused
        self._by = math.inf               # time at which the run ends without waiting any longer
        self._hurried = False             # whether the wait must not become longer

    # -- begin ---

    def newest_checkpoint(self, partition: RowPartition, fresh: np.ndarray
                          ) -> tuple[np.ndarray, ServerState] | None:
        """Return the model and the state of the newest checkpoint; None if there is none.

        The training's time goes on from that of the checkpoint.
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
        master, state, self._before = checkpoint.read(found, partition, fresh)
        self.log.info(f'going on from {found.path}, iteration {state.iteration}, {state.sync}')
        return master, state

    def begin(self, machine: Server, robots: list[str], baseline: tuple[float, float] | None
              ) -> None:
        """Begin the record, or continue the record of a resumed run.

        :param baseline: accuracies of the machine's model, first on the data before the domain
            shift, then on the present data; None: the run is resumed.
        """
        self._machine = machine
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
        start = events.Start(self.elapsed, '', training.task, training.sync, settings.seed,
                              settings.fleet, robots, time.strftime('%Y-%m-%dT%H:%M:%S%z'),
                              codec=training.codec)
        self._recorder = Recorder(self.out, start, former)
        if baseline is not None:
            self._recorder.baseline(*baseline)
        trained = machine.master[:machine.partition.buffers.start]
        self._writer = checkpoint.Writer(machine.partition, float(np.linalg.norm(trained)))

    # -- time of training ---

    @property
    def elapsed(self) -> float:
        """Seconds of training without pauses, including those before a restart of the server."""
        began = math.inf if self._began is None else self._began
        return self._before + max(min(self._clock(), self._paused_at) - began, 0.0)

    def pause(self) -> None:
        """Pause: the time of training stands still."""
        self._paused_at = self._clock()

    def go_on(self) -> None:
        """End a pause."""
        if self._began is not None:
            self._began += self._clock() - max(self._began, self._paused_at)
        self._paused_at = math.inf

    # -- who is present ---

    def on_joined(self, robot: str, iteration: int) -> bool:
        """Note that a robot trains from ``iteration`` on; return whether this begins the run."""
        begins = self._began is None
        if begins:
            self._began = self._clock()
        self.log.info(f'{robot} joins at iteration {iteration}')
        if robot in self.away:
            self.away.discard(robot)
            self.fault(robot, 'rejoined', f'at iteration {iteration}')
        return begins

    def on_status(self, robot: str, state: str) -> None:
        """Note whether a robot, whose status has this ``state``, pauses, returns or leaves."""
        if (state == PAUSED) == (robot in self.paused):
            return
        (self.paused.add if state == PAUSED else self.paused.discard)(robot)
        if state != STOPPED:
            self.log.info(f'{robot} has paused; the others go on' if state == PAUSED else
                          f'{robot} is back from its pause')

    def report_away(self) -> None:
        """Report the robots that have become away since the last call."""
        assert self._machine is not None, 'begin() comes first'
        for member in self._machine.members.values():
            if member.state == AWAY and member.robot not in self.away:
                self.away.add(member.robot)
                self.log.warning(f'{member.robot} is away: no heartbeat for '
                                 f'{self._settings.heartbeat.limit:g} s')
                self.fault(member.robot, 'peer_lost', 'no heartbeat; the others go on')

    # -- record ---

    def record(self, write: Callable[[Recorder], None]) -> None:
        """Write to the record, if there is one."""
        if self._recorder is None:
            return
        try:
            write(self._recorder)
        except RecordError as error:
            self._incomplete = True
            self.note(RECORD, str(error))
        else:
            self.note(RECORD)

    def fault(self, robot: str, what: str, detail: str) -> None:
        """Write a fault to the record."""
        self.record(lambda recorder: recorder.fault(self.elapsed, robot, what, detail))

    def note(self, what: str, error: str = '') -> None:
        """Log that something failed, or that it succeeds for the first time after that.

        :param what: `ACCURACY` or one of `FILES`.
        :param error: why it failed; empty: it succeeded.
        """
        if error:
            known, self._failing[what] = what in self._failing, error
            if known:
                self.log.error(f'no {what}: {error}', throttle_duration_sec=5.0)
            else:
                self.log.error(f'no {what}: {error}')
            if not known and what != RECORD:
                self.fault('', f'no_{what.replace(" ", "_")}', error)
        elif self._failing.pop(what, ''):
            self.log.info(f'mended: no {what}')

    @property
    def faults(self) -> list[str]:
        """What the server failed to do last and why, such as 'no checkpoint: ...'."""
        return [f'no {what}: {error}' for what, error in self._failing.items()]

    # -- checkpoints ---

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
        return self._writer.write(store, master, state, self.elapsed)

    def save_or_say(self, master: np.ndarray, state: ServerState) -> None:
        """Write a checkpoint of the run; log a failure, and the first success after a failure."""
        try:
            self.save(master, state)
        except checkpoint.CheckpointError as error:
            self.note(CHECKPOINT, str(error))
        else:
            self.note(CHECKPOINT)

    # -- end ---

    @property
    def ends(self) -> bool:
        """Whether the run has been stopped, so that the server waits for the robots."""
        return not math.isinf(self._by)

    def begin_end(self) -> None:
        """Begin to wait until all robots have evaluated the final model; log who has not yet."""
        if not self.ends and (late := self._late()):
            self.log.info('waiting until the final model is evaluated by '
                          f'{", ".join(sorted(late))}')
        self.wait()

    def wait(self) -> None:
        """Wait for the robots for at most two heartbeat limits from now on."""
        if not self._hurried:
            assert self._machine is not None, 'begin() comes first'
            limit = self._settings.heartbeat.limit
            self._by = min(self._clock() + 2 * limit, self._machine.stop_by)

    def hurry(self, seconds: float) -> None:
        """Wait for at most so many seconds from now on."""
        self._by, self._hurried = min(self._by, self._clock() + seconds), True

    def is_over(self, evaluating: bool, pushing: bool) -> bool:
        """Return whether the run is over; report the robots that are too late.

        It is over when the record has the last statuses of all present robots, and the server
        neither is ``evaluating`` the final model nor still is ``pushing`` to a parent fleet.
        """
        late = self._late() if self.ends else set()
        if self.ends and evaluating:
            self.wait()
        if self._clock() < self._by:
            return self.ends and not late and not pushing and not evaluating
        for robot in late:
            self.log.warning(f'{robot} has not evaluated the final model in time; the summary has '
                             'its accuracy of before')
            self.fault(robot, 'not_evaluated', 'the final model')
        return True

    def _late(self) -> set[str]:
        """Return the present robots whose status `stopped` is not in the record yet."""
        if self._recorder is None:
            return set()
        assert self._machine is not None, 'begin() comes first'
        present = {m.robot for m in self._machine.members.values() if m.state != AWAY}
        return present - self.paused - self._recorder.final_statuses()

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
            recorder.stop(self.elapsed, reason, sync)
        except RecordError as error:
            self._incomplete = True
            self.log.error(str(error))
        if self._incomplete or any(what in self._failing for what in FILES):
            return f'{self.out} is not complete; see the errors in the log'
        self.log.info(f'wrote {self.out}')
        return ''
