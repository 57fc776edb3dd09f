"""Synchronisation methods: who may go on, and how much must be sent.

A method is named by a string, `bsp`, `ssp:4`, `asp`, `rsp:4`. ``bound`` is the number of iterations
by which a worker may not yet be ahead of the slowest row of the fleet if it is to go on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from .errors import ConfigError

MAX_THRESHOLD = 1000


@lru_cache
def minimum_transmission(threshold: int) -> float:
    """Share P of the rows that every transfer must carry: the solution of (1-P)^(S-1) = P.

    With it, all rows have been sent before the staleness threshold S is reached.
    Source: ROG, Section IV-B and Table I. S = 1 gives 1, S = 2 gives 0.5.
    """
    if threshold < 1:
        raise ConfigError(f'the staleness threshold is {threshold}; it must be at least 1')
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if (1 - middle) ** (threshold - 1) > middle:
            low = middle
        else:
            high = middle
    return high


@dataclass(frozen=True)
class SyncMethod:
    """A synchronisation method.

    ``bound``: a worker at iteration n waits while n - slowest >= bound (iterations; inf: never).
    ``adaptive``: rows go out in order of importance for the MTA time (ATP); else all rows, always.
    """

    name: str
    bound: float
    adaptive: bool = False

    @property
    def minimum(self) -> float:
        """Minimum transmission amount, share of the rows."""
        return minimum_transmission(int(self.bound)) if self.adaptive else 1.0

    def held_up_by(self, iteration: int, slowest: Mapping[str, int]) -> list[str]:
        """Robots whose slowest row keeps a worker at ``iteration`` waiting; empty: it may go on."""
        return [robot for robot, row in slowest.items() if iteration - row >= self.bound]

    def __str__(self) -> str:
        return self.name


def _threshold(method: str, text: str | None, low: int) -> int:
    if text is None:
        raise ConfigError(f"'{method}' needs a threshold, for example {method}:4")
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"the threshold of '{method}:{text}' is not a whole number") from None
    if not low <= value <= MAX_THRESHOLD:
        raise ConfigError(f"the threshold of '{method}:{text}' must be {low} to {MAX_THRESHOLD}")
    return value


def _no_threshold(method: str, text: str | None) -> None:
    if text is not None:
        raise ConfigError(f"'{method}' takes no threshold, but got '{text}'")


def parse_sync(text: str) -> SyncMethod:
    """Build the method that a string names. Raises `ConfigError` for anything else."""
    method, colon, rest = text.strip().partition(':')
    argument = rest if colon else None
    if method == 'bsp':  # every row of every worker has reached my iteration
        _no_threshold(method, argument)
        return SyncMethod('bsp', 1)
    if method == 'asp':
        _no_threshold(method, argument)
        return SyncMethod('asp', math.inf)
    if method == 'ssp':  # at most s iterations ahead; ssp:0 is bsp
        bound = _threshold(method, argument, 0)
        return SyncMethod(f'ssp:{bound}', bound + 1)
    if method == 'rsp':
        bound = _threshold(method, argument, 1)
        return SyncMethod(f'rsp:{bound}', bound, adaptive=True)
    raise ConfigError(f"synchronisation method '{text}' is unknown; "
                      'choose bsp, ssp:S, asp or rsp:T, for example rsp:4')
