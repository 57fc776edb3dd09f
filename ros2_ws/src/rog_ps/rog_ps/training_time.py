"""The seconds of training of a run, without its pauses."""

from __future__ import annotations

import math


class TrainingTime:
    """Counts the seconds of training: from `begin` on, without the pauses.

    All times are seconds of one monotonic clock.

    :param now: present time; the run begins paused.
    """

    def __init__(self, now: float) -> None:
        self.before = 0.0                    # seconds of training before the server's last restart
        # time at which the first robot joined, plus the pauses since then; None: no robot has
        # joined yet
        self._began: float | None = None
        self._paused_at = now                # when the run was paused; infinity means: not paused

    def begin(self, now: float) -> bool:
        """Count from ``now`` on; return False if `begin` was called before."""
        if self._began is not None:
            return False
        self._began = now
        return True

    def pause(self, now: float) -> None:
        """Pause: stop counting from ``now`` on."""
        self._paused_at = now

    def go_on(self, now: float) -> None:
        """End a pause."""
        if self._began is not None:
            self._began += now - max(self._began, self._paused_at)
        self._paused_at = math.inf

    def elapsed(self, now: float) -> float:
        """Return the seconds of training, including the training before a restart of the server."""
        began = math.inf if self._began is None else self._began
        return self.before + max(min(now, self._paused_at) - began, 0.0)
