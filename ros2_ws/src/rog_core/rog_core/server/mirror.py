"""The mirror: the server's copy of the rows of one worker.

The pending values are the master rows minus the mirror: the change that the worker has not yet
received. When encoded rows have arrived at the worker, the server adds their decoded values to the
mirror. So the error of a lossy codec stays pending and is sent later (error feedback without
further state). A push changes only the master rows, so its cost does not depend on the number of
workers.
"""

from __future__ import annotations

import numpy as np

from ..arrays import difference_magnitude
from ..codecs import RAW, Codec, Part, in_model_order
from ..model.partition import RowPartition


class Mirror:
    """The server's copy of the rows exactly as one worker has them, float32 (elements,)."""

    at_once = 0  # see `rog_core.transfer.sender.Rows.at_once`

    def __init__(self, partition: RowPartition, master: np.ndarray) -> None:
        self.partition, self.master = partition, master
        self.rows = np.zeros_like(master)
        # For each segment, the sum of the absolute pending values at the last call of `measure`.
        self.magnitude = np.zeros(partition.segments, np.float32)
        # Whether the worker is known to have `rows`, except those of the present transfer.
        self.known = False

    def measure(self) -> np.ndarray:
        """Return the mean absolute pending value of each row; keep the sums for `encode`."""
        self.magnitude = difference_magnitude(self.master, self.rows, self.partition.offsets)
        return self.partition.row_sum(self.magnitude) / self.partition.row_lengths

    def encode(self, codec: Codec, ids: np.ndarray) -> np.ndarray:
        """Encode the pending values of the segments ``ids``; do not change the mirror."""
        codec = self.partition.codec_of(ids, codec)
        return codec.difference(self.partition, self.master, self.rows, ids, self.magnitude[ids])

    def taken(self, codec: Codec, parts: list[Part]) -> None:
        """Add to the mirror the values that the worker has added to its rows.

        ``parts``: (segments, encoded values) of each chunk.
        """
        for one, ids, values in self.partition.in_order(codec, parts):
            one.add(self.partition, self.rows, ids, values)

    def grow(self, partition: RowPartition, master: np.ndarray) -> None:
        """Follow the server's rows, to which those of the frozen parameters were added."""
        self.rows = np.concatenate([self.rows, master[len(self.rows):]])
        self.partition, self.master = partition, master

    def stored(self, parts: list[Part]) -> None:
        """Store in the mirror the model values that the worker has stored; mark it as known.

        ``parts``: segments and their raw values, from a snapshot or from the final model.
        """
        ids, values = in_model_order(RAW, self.partition.raw_partition, parts)
        RAW.store(self.partition.raw_partition, self.rows, ids, values)
        self.known = True
