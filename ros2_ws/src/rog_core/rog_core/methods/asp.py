"""ASP, asynchronous parallel: no robot waits, and the staleness of gradients is unbounded."""

import math

from .base import Method


class Asp(Method):
    """``asp``: no robot waits for another, because the staleness bound is infinite."""

    name = 'asp'
    usage = 'asp'

    def bounds(self) -> tuple[float, float]:
        """See `Method.bounds`."""
        super().bounds()
        return math.inf, math.inf
