"""Waits at the end of a run until the robots have evaluated the final model."""

from __future__ import annotations

import math

from fleet_ros.ending import HURRY
from rog_core.protocol.states import AWAY
from rog_core.server.server import Server

from .model_versions import ModelVersions
from .presence import Presence
from .run_files import RunFiles


class Ending:
    """Decides when a stopped run is over.

    It is over when the record has the last statuses of all present robots, and the server has
    evaluated the final model, too.

    :param machine: state machine of the server; its `stop_by` limits the wait.
    """

    def __init__(self, machine: Server, presence: Presence, files: RunFiles,
                 versions: ModelVersions) -> None:
        self._machine, self._presence, self._files = machine, presence, files
        self._versions = versions
        self._by = math.inf      # time at which the run ends without waiting any longer
        self._hurried = False    # whether the wait must not become longer

    @property
    def begun(self) -> bool:
        """Whether the run has been stopped, so that the server waits for the robots."""
        return not math.isinf(self._by)

    def begin(self, now: float) -> None:
        """Begin to wait; log the names of the robots whose last status is still missing."""
        if not self.begun and (late := self._late()):
            self._presence.log.info('waiting until the final model is evaluated by '
                                    f'{", ".join(sorted(late))}')
        self.wait(now)

    def wait(self, now: float) -> None:
        """Wait for the robots until at most two heartbeat limits after ``now``."""
        if not self._hurried:
            self._by = min(now + 2 * self._presence.limit, self._machine.stop_by)

    def hurry(self, now: float) -> bool:
        """Wait for the server's own evaluation for at most `HURRY` seconds after ``now``.

        Return False if there is nothing to wait for.
        """
        self._by, self._hurried = min(self._by, now + HURRY), True
        return self._versions.busy

    def is_over(self, now: float, pushing: bool) -> bool:
        """Return whether the run is over; report the robots that are too late.

        :param pushing: whether this fleet still pushes to a parent fleet.
        """
        late = self._late() if self.begun else set()
        if self.begun and self._versions.busy:
            self.wait(now)
        if now < self._by:
            return self.begun and not late and not pushing and not self._versions.busy
        for robot in late:
            self._presence.log.warning(f'{robot} has not evaluated the final model in time; the '
                                       'summary has its accuracy of before')
            self._files.fault(robot, 'not_evaluated', 'the final model')
        return True

    def _late(self) -> set[str]:
        """Return the present robots whose status `stopped` is not in the record yet."""
        present = {m.robot for m in self._machine.members.values() if m.state != AWAY}
        return self._files.lacking(present - self._presence.paused)
