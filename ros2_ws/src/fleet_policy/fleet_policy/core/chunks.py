"""The queue: chunks of actions, keyed by the time of the observation from which they follow.

Time is counted in ticks of the control loop. Action k of a chunk is for tick t + k, where t is the
tick of the chunk's observation. The time at which the chunk arrives does not matter. So a late
chunk loses its first actions, a repeated chunk changes nothing, and chunks may arrive in any
order.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Actions = NDArray[np.floating[Any]]

# Maximum number of chunks that are kept; the chunks of the oldest observations are dropped first.
MOST = 64
TAKEN, REPEATED, LATE = 'taken', 'repeated', 'late'


@dataclass(frozen=True, eq=False)
class Chunk:
    """A chunk: n actions of d numbers (n, d), for the ticks from ``first`` on.

    ``observed``: time of the observation, in seconds.
    """

    first: int
    observed: float
    actions: Actions
    place: str = ''

    @property
    def end(self) -> int:
        """Return the first tick after the chunk."""
        return self.first + len(self.actions)


@dataclass(frozen=True, eq=False)
class Planned:
    """The numbers of an action, the time of its observation, and where the action was computed."""

    values: Actions
    observed: float
    place: str


class ActionQueue:
    """Stores chunks and returns the action for a tick.

    If several chunks have an action for a tick, the queue returns the action of the latest
    observation or, if ``half_life`` is not 0, the weighted mean of the actions.

    :param half_life: time in seconds. The weight of an action halves for each ``half_life`` by
        which its observation is older. ``observed`` of the mean is the mean of the
        observations' times, with the same weights.
    """

    def __init__(self, half_life: float = 0.0) -> None:
        self._half_life = half_life
        self._chunks: list[Chunk] = []   # in ascending order of `Chunk.first`

    def add(self, chunk: Chunk, tick: int) -> str:
        """Store a chunk that arrives at ``tick``, unless it is late or repeated.

        Return LATE if all ticks of the chunk are over, REPEATED if the queue has a chunk with
        the same first tick, which means the same observation, otherwise TAKEN.
        """
        if chunk.end <= tick:
            return LATE
        at = bisect_left(self._chunks, chunk.first, key=_first)
        if at < len(self._chunks) and self._chunks[at].first == chunk.first:
            return REPEATED
        self._chunks.insert(at, chunk)
        if len(self._chunks) > MOST:
            del self._chunks[0]
        return TAKEN

    def forget(self, tick: int) -> None:
        """Drop the chunks that neither ``tick`` nor a later tick needs."""
        self._chunks = [chunk for chunk in self._chunks if chunk.end > tick]
        if self._half_life:
            return
        kept: list[Chunk] = []
        # Drop a chunk if another chunk, of a later observation, has begun and does not end earlier.
        for chunk in self._chunks:
            if chunk.first <= tick:
                while kept and kept[-1].end <= chunk.end:
                    kept.pop()
            kept.append(chunk)
        self._chunks = kept

    def clear(self) -> None:
        """Drop all chunks."""
        self._chunks.clear()

    @property
    def latest(self) -> int | None:
        """Return the tick of the latest observation that has a chunk; None without chunks."""
        return self._chunks[-1].first if self._chunks else None

    def action(self, tick: int) -> Planned | None:
        """Return the action that is planned for a tick; None if there is none."""
        found = [chunk for chunk in self._chunks if chunk.first <= tick < chunk.end]
        if not found:
            return None
        latest = found[-1]
        if not self._half_life or len(found) == 1:
            return Planned(latest.actions[tick - latest.first], latest.observed, latest.place)
        observed = np.array([chunk.observed for chunk in found])
        weights = np.exp2((observed - latest.observed) / self._half_life)
        weights /= weights.sum()
        rows = np.stack([chunk.actions[tick - chunk.first] for chunk in found])
        return Planned(weights @ rows, float(weights @ observed), latest.place)

    def covered(self, tick: int) -> int:
        """Return how many consecutive ticks from ``tick`` on have an action."""
        end = tick
        for chunk in self._chunks:
            if chunk.first <= end < chunk.end:
                end = chunk.end
        return end - tick

    def planned(self, tick: int, most: int) -> Actions | None:
        """Return at most ``most`` actions, one per row: for ``tick`` and the ticks after it.

        Return None if ``tick`` has no action.
        """
        rows: list[Actions] = []
        while len(rows) < most and (found := self.action(tick + len(rows))) is not None:
            rows.append(found.values)
        return np.stack(rows) if rows else None


def _first(chunk: Chunk) -> int:
    return chunk.first
