"""What a plan minimises: the latency, the energy under a deadline, or a weighted sum of the two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Objective:
    """What a plan minimises: by default the latency.

    With `weight` (s/J), a plan minimises latency + weight * energy of the device. With `deadline`
    (s), it minimises the energy among the plans that meet the deadline, or the latency if no plan
    meets it.

    :raises ValueError: both `weight` and `deadline` are given, `weight` is negative or not finite,
        or `deadline` is not above 0 or not finite.
    """

    weight: float = 0.0
    deadline: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float('inf'):
            raise ValueError(f'weight must be at least 0 s/J, got {self.weight}')
        if self.deadline is not None and not 0 < self.deadline < float('inf'):
            raise ValueError(f'deadline must be above 0 s, got {self.deadline}')
        if self.deadline is not None and self.weight:
            raise ValueError('an objective must have a weight of energy or a deadline, not both')

    def score(self, seconds: np.ndarray, joules: np.ndarray) -> np.ndarray:
        """Return the value to minimise, for latencies and energies of any shape."""
        if self.deadline is None:
            return seconds + self.weight * joules if self.weight else seconds
        return np.where(seconds <= self.deadline, joules, 1e9 * (1 + seconds))
