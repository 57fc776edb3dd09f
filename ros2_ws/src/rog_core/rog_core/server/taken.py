"""What the server has taken of the pushes of a robot, over all its processes.

A process may take over what a former one had not sent (`rog_core.worker.unsent`). The server may
have taken segments of it since, so it remembers for each segment the last push that brought it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

LIVES = 16    # processes of a robot that the server remembers; what earlier ones saved is dropped
_LIFE = 1 << 32  # push numbers of one process


@dataclass
class Taken:
    """The last push that brought each segment, over all processes of a robot.

    ``last`` int64 (segments,): number of that push, 0: none. ``lives``: incarnation -> what is
    added to the numbers of its pushes, in the order in which the processes came. ``heir``: the
    process that last took over a save, 0: none. The checkpoint holds all of it together with the
    master rows that contain these pushes, so it stays correct when the server is restarted.
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
        """Note that a push has brought segments."""
        # A process that comes back after a later one must not hide what the later one has pushed.
        self.last[ids] = np.maximum(self.last[ids], self.lives[incarnation] + attempt)

    def since(self, former: int, attempt: int) -> bytes:
        """Return which segments were taken since a process had made ``attempt`` pushes.

        One bit per segment, lowest bit first; empty: unknown.
        """
        if former not in self.lives:
            return b''
        return np.packbits(self.last > self.lives[former] + attempt, bitorder='little').tobytes()

    def is_past(self, incarnation: int) -> bool:
        """Whether a later process has taken over a save, which may hold what this one holds."""
        order = list(self.lives)
        return {incarnation, self.heir} <= self.lives.keys() \
            and order.index(incarnation) < order.index(self.heir)
