"""Hands what a robot has computed but not sent to its next process, so that it counts once.

A worker saves it now and then (`WorkerMachine.unsent`). The server may take segments of a push
after the save. So the next process asks the server, which remembers for each segment the last push
that brought it, and brings back only the segments that no push has brought since the save. The
answer holds for any former save, however often a process asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .errors import RemoteProtocolError

if TYPE_CHECKING:
    from .accumulator import Accumulator

LIVES = 16    # processes of a robot that the server remembers; what earlier ones saved is dropped
_LIFE = 1 << 32  # push numbers of one process


@dataclass(frozen=True)
class Unsent:
    """What a process had not sent when its pushes up to number ``attempt`` were over.

    ``pending`` and ``momentum``: of `Accumulator`, float32 (elements,), on the host.
    """

    incarnation: int
    attempt: int
    pending: np.ndarray = field(repr=False)
    momentum: np.ndarray = field(repr=False)

    def bring_back(self, store: Accumulator, taken: bytes) -> tuple[str, str]:
        """Add the pending steps that the server has not taken to those of another process.

        ``taken``: of `Taken.since`. Returns the outcome for display: one word, and a sentence.
        """
        if not taken:
            return 'dropped', ('what a former process had not sent is lost: the server does not '
                               'know that process. It belonged to another run, or began after the '
                               'checkpoint from which the server was restarted')
        partition = store.partition
        flags = np.unpackbits(np.frombuffer(taken, np.uint8), count=partition.segments,
                              bitorder='little')
        left = np.where(np.repeat(flags == 0, partition.lengths), self.pending, np.float32(0))
        store.bring_back(left, self.momentum)
        had, has = (np.count_nonzero(np.add.reduceat(values != 0, partition.offsets[:-1]))
                    for values in (self.pending, left))
        return 'brought_back', (f'{has} of {had} segments of rows that a former process had not '
                                'sent; the server has taken the others since')


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


def check_taken(taken: bytes, segments: int) -> None:
    """Raise `RemoteProtocolError` unless ``taken`` has a bit for each segment, or is empty."""
    if len(taken) not in (0, (segments + 7) // 8):
        raise RemoteProtocolError(f'taken segments in an answer must have a bit for each of '
                                  f'{segments} segments, got {len(taken)} bytes')
