"""Records which segments the server has taken from the pushes of a robot, over all its processes.

A process may take over the rows that a former process had not sent (`rog_core.worker.unsent`). The
server may have taken some of their segments after they were saved. So it remembers for each segment
the last push that brought it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

# Maximum number of processes of a robot that the server remembers. Saves of earlier processes are
# lost.
LIVES = 16
_LIFE = 1 << 32  # more than the number of pushes of one process


@dataclass
class Taken:
    """The last push that brought each segment, over all processes of a robot.

    ``last`` int64 (segments,): number of that push, 0: none. ``lives``: incarnation -> number that
    is added to the push numbers of this process, in the order in which the processes came.
    ``heir``: the process that last took over a save, 0: none. A checkpoint holds this record
    together with the master rows that contain these pushes, so the record stays correct when the
    server is restarted.
    """

    last: np.ndarray
    lives: dict[int, int] = field(default_factory=dict)
    heir: int = 0

    @classmethod
    def nothing(cls, segments: int) -> Taken:
        """Return the record of a robot from which the server has taken nothing."""
        return cls(np.zeros(segments, np.int64))

    def copy(self) -> Taken:
        """Return a copy, for a checkpoint."""
        return Taken(self.last.copy(), dict(self.lives), self.heir)

    def begin(self, incarnation: int) -> None:
        """Add a process, unless it is known."""
        self.lives.setdefault(incarnation, max(self.lives.values(), default=0) + _LIFE)
        if len(self.lives) > LIVES:
            del self.lives[next(iter(self.lives))]

    def note(self, incarnation: int, attempt: int, ids: np.ndarray | slice) -> None:
        """Note that the push number ``attempt`` of a process has brought the segments ``ids``."""
        # A process that comes back must not hide the pushes of a later process.
        self.last[ids] = np.maximum(self.last[ids], self.lives[incarnation] + attempt)

    def since(self, former: int, attempt: int) -> bytes:
        """Return which segments were taken since process ``former`` had made ``attempt`` pushes.

        The result has one bit per segment, lowest bit first. It is empty if this is unknown.
        """
        if former not in self.lives:
            return b''
        return np.packbits(self.last > self.lives[former] + attempt, bitorder='little').tobytes()

    def is_past(self, incarnation: int) -> bool:
        """Whether a later process has taken over a save, which may hold rows of this process."""
        order = list(self.lives)
        return {incarnation, self.heir} <= self.lives.keys() \
            and order.index(incarnation) < order.index(self.heir)
