"""Update rule: how what the workers push changes the master rows."""

from __future__ import annotations

import numpy as np

from .backend import Array, Backend
from .codec import Codec
from .partition import RowPartition


class AveragedUpdate:
    """The master rows fall by the mean of what the workers push (ROG, Algorithm 2, line 6)."""

    def apply(self, partition: RowPartition, backend: Backend, master: Array, ids: np.ndarray,
              codec: Codec, data: np.ndarray, workers: int) -> None:
        """Apply one checked chunk of one of ``workers`` workers."""
        codec.add(backend, partition, master, ids, data, -1.0 / workers)
