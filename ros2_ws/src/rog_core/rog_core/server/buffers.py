"""Averages the robots' buffers on the server: statistics of batch normalisation, counters.

A robot pushes by how much its own batches have changed a buffer. The server adds each change times
the robot's share of the batches that the fleet computes per iteration. In lock-step, the result is
the average of the robots' buffers, weighted by their batches. A robot that pushes more often has
seen more batches, and so counts more. Integers become the maximum over the robots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..codecs import RAW
from ..codecs.base import elements
from ..model.partition import RowPartition
from ..protocol.steps import Step

# The norm of a change of buffers may be at most ABSURD * (1 + norm of the buffers). Statistics
# begin at 0 and 1, and those of depths in mm are 1e7.
ABSURD = 1e9


def share(step: Step, fleet: Iterable[Step]) -> float:
    """Return a robot's share of the batches of an iteration, 0 to 1.

    ``step``: what the robot has computed; ``fleet``: the same of all robots that take part.
    """
    total = sum(other.batches for other in fleet)
    return step.batches / max(total, step.batches, 1)


def is_absurd(partition: RowPartition, master: np.ndarray, energy: float) -> bool:
    """Return whether no healthy robot changes its buffers so much.

    ``energy``: sum of the squares of the change.
    """
    norm = float(np.linalg.norm(master[partition.buffers].astype(np.float64)))
    return not energy <= (ABSURD * (1 + norm)) ** 2


def apply(partition: RowPartition, master: np.ndarray, mirror: np.ndarray, ids: np.ndarray,
          data: np.ndarray, weight: float) -> None:
    """Change the buffers in ``master`` by a robot's push.

    ``mirror``: the rows that the robot has, see `rog_core.server.mirror`. ``ids``, ``data``: the
    segments of buffers in the push, and their raw values, buffers before minus buffers after.
    ``weight``: see `share`.
    """
    at, change = elements(partition, ids), RAW.floats(data)
    before, theirs = master[at], mirror[at] - change
    after = combined(before, before - np.float32(weight) * change, theirs,
                     partition.are_integers[at - partition.buffers.start], weight)
    master[at] = after


def apply_own(partition: RowPartition, master: np.ndarray, mirror: np.ndarray, ids: np.ndarray,
              data: np.ndarray, fleet: Sequence[tuple[float, np.ndarray]]) -> None:
    """Handle a push of a robot that keeps its own buffers (FedBN): ``master`` gets their mean.

    Such a robot never pulls buffers, so ``mirror`` follows its pushes. ``fleet``: share and mirror
    of each robot that takes part. Other arguments: see `apply`.
    """
    at = elements(partition, ids)
    mirror[at] -= RAW.floats(data)
    own = [(share, rows[at]) for share, rows in fleet or [(1.0, mirror)]]
    mean = sum(share * values for share, values in own) / sum(share for share, _ in own)
    integers = partition.are_integers[at - partition.buffers.start]
    most = np.max([values for _, values in own], axis=0)
    master[at] = np.where(integers, most, mean)


def combined(before: np.ndarray, after: np.ndarray, theirs: np.ndarray, integers: np.ndarray,
             weight: float) -> np.ndarray:
    """Return the fleet's new buffers.

    ``before`` and ``after``: the fleet's buffers without and with the change of a robot;
    ``theirs``: the buffers of this robot. A robot may have computed its change long ago, so the
    change may be larger than the present value. Then a variance could become negative. So the mean
    of numbers that are not negative is at least the robot's own share; in lock-step it always is.
    """
    positive = (before >= 0) & (theirs >= 0)
    after = np.where(positive, np.maximum(after, np.float32(weight) * theirs), after)
    return np.where(integers, np.maximum(before, theirs), after)
