"""Hands the steps that a robot has not sent to its next process, so that each counts once.

A worker saves these steps now and then (`WorkerMachine.unsent`). The server may take segments of a
push after the save. So the next process asks the server, which remembers for each segment the last
push that brought it. The process then brings back only the segments that no push has brought since
the save. The server's answer is right for any former save, however often a process asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..errors import RemoteProtocolError

if TYPE_CHECKING:
    from .accumulator import Accumulator


@dataclass(frozen=True)
class Unsent:
    """The steps that a process had not sent when its pushes up to number ``attempt`` were over.

    ``pending`` and ``momentum``: see `Accumulator`; float32 (elements,), on the host.
    """

    incarnation: int
    attempt: int
    pending: np.ndarray = field(repr=False)
    momentum: np.ndarray = field(repr=False)

    def bring_back(self, store: Accumulator, taken: bytes) -> tuple[str, str]:
        """Add the pending steps that the server has not taken to ``store``, of the next process.

        ``taken``: the answer of `rog_core.server.taken.Taken.since`. Returns the outcome for
        display: one word, and a sentence.
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


def check_taken(taken: bytes, segments: int) -> None:
    """Raise `RemoteProtocolError` unless ``taken`` has a bit for each segment, or is empty."""
    if len(taken) not in (0, (segments + 7) // 8):
        raise RemoteProtocolError(f'taken segments in an answer must have a bit for each of '
                                  f'{segments} segments, got {len(taken)} bytes')
