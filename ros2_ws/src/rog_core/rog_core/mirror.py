"""The server's tables: the master rows A, and per worker the rows L exactly as it holds them.

What a worker still has to get is A - L. Sending moves L by the decoded value of what was taken, so
what a lossy codec lost stays in A - L and travels later: error feedback with no further state, and
a push costs the same for any number of workers.
"""

from __future__ import annotations

import numpy as np

from .arrays import Array, difference_magnitude, zeros_like
from .codecs import RAW, Codec, Part, in_model_order
from .partition import RowPartition


class Mirror:
    """The rows as one worker holds them, float32 (elements,)."""

    def __init__(self, partition: RowPartition, master: Array) -> None:
        self.partition, self.master = partition, master
        self.rows = zeros_like(master)
        self.magnitude = np.zeros(partition.segments, np.float32)  # sum |A - L| at the last measure
        self.known = False  # whether the worker holds these rows, but for the transfer under way

    def measure(self) -> np.ndarray:
        """Mean |A - L| per row, float32 (rows,); also kept per segment for the encoder."""
        self.magnitude = difference_magnitude(self.master, self.rows, self.partition.offsets)
        return self.partition.row_sum(self.magnitude) / self.partition.row_lengths

    def encode(self, codec: Codec, ids: np.ndarray) -> np.ndarray:
        """Encode A - L of segments; L stays until the worker has taken them."""
        return codec.difference(self.partition, self.master, self.rows, ids, self.magnitude[ids])

    def taken(self, codec: Codec, parts: list[Part]) -> None:
        """The worker has added these (segments, encoded values)."""
        ids, values = in_model_order(codec, self.partition, parts)
        codec.add(self.partition, self.rows, ids, values)

    def stored(self, parts: list[Part]) -> None:
        """The worker has stored these (segments, raw values): it is known what it holds."""
        ids, values = in_model_order(RAW, self.partition.raw_cut, parts)
        RAW.store(self.partition.raw_cut, self.rows, ids, values)
        self.known = True


class Whole:
    """Rows that travel as they are: segments of the raw cut of ``values``, float32 (elements,)."""

    def __init__(self, cut: RowPartition, values: Array) -> None:
        self._cut, self._values = cut, values

    def encode(self, codec: Codec, ids: np.ndarray) -> np.ndarray:
        """Encode segments, raw; see `rog_core.transfer.sender.Rows`."""
        return RAW.snapshot(self._cut, self._values, ids)
