"""What a robot has computed and not sent: it outlives the robot's process, and counts once.

A worker saves it now and then (`WorkerMachine.unsent`). While it goes on, the server takes segments
of what was saved; so a process that takes a save over asks the server, which remembers of each
segment which push has last taken it. Only what no push has taken since is brought back. The answer
holds for any former save, and as often as it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .errors import RemoteProtocolError

if TYPE_CHECKING:
    from .accumulator import Accumulator

LIVES = 16    # processes of a robot that the server remembers; what earlier ones saved is dropped
_LIFE = 1 << 32  # numbers of pushes that a process may use


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
        """Add to another process's pending steps what ``taken``, of `Taken.since`, leaves of these.

        Returns what has become of them, for people: one word, and a sentence.
        """
        if not taken:
            return 'dropped', ('what a former process had not sent is lost: the server does not '
                               'know that one. It was of another run, or came after the '
                               'checkpoint from which the server has started')
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
    """Which push of a robot has last taken each segment, over all processes of the robot.

    ``last`` int64 (segments,): number of that push, 0: none. ``lives``: incarnation -> what is
    added to the numbers of its pushes; in the order in which the processes came. ``heir``: the one
    that has last taken over a save, 0: none. All of it is in the checkpoint, with the master rows
    that hold these pushes; so after a restart of the server it is true of what is there.
    """

    last: np.ndarray
    lives: dict[int, int] = field(default_factory=dict)
    heir: int = 0

    @classmethod
    def nothing(cls, segments: int) -> Taken:
        """Return that of a robot of which nothing has been taken."""
        return cls(np.zeros(segments, np.int64))

    def copy(self) -> Taken:
        """Return a copy, for a checkpoint."""
        return Taken(self.last.copy(), dict(self.lives), self.heir)

    def begin(self, incarnation: int) -> None:
        """Let a process come, for the first time or again."""
        self.lives.setdefault(incarnation, max(self.lives.values(), default=0) + _LIFE)
        if len(self.lives) > LIVES:
            del self.lives[next(iter(self.lives))]

    def note(self, incarnation: int, attempt: int, ids: np.ndarray | slice) -> None:
        """Note that a push has taken segments."""
        # A process that comes back after another one must not hide what that one has pushed.
        self.last[ids] = np.maximum(self.last[ids], self.lives[incarnation] + attempt)

    def since(self, former: int, attempt: int) -> bytes:
        """Return which segments were taken since a process had made ``attempt`` pushes.

        One bit per segment, lowest bit first; empty: it is not known.
        """
        if former not in self.lives:
            return b''
        return np.packbits(self.last > self.lives[former] + attempt, bitorder='little').tobytes()

    def is_past(self, incarnation: int) -> bool:
        """Whether a later process has taken over a save, and so perhaps what this one holds."""
        order = list(self.lives)
        return {incarnation, self.heir} <= self.lives.keys() \
            and order.index(incarnation) < order.index(self.heir)


def check_taken(taken: bytes, segments: int) -> None:
    """Raise `RemoteProtocolError` unless it speaks of as many segments, or of none."""
    if len(taken) not in (0, (segments + 7) // 8):
        raise RemoteProtocolError(f'the answer says in {len(taken)} bytes which of {segments} '
                                  'segments were taken')
