"""ASP: asynchronous parallel. Nobody waits, and nothing bounds how stale a gradient is."""

import math

from .base import Method


class Asp(Method):
    """``asp``."""

    name = 'asp'
    usage = 'asp'

    def bounds(self) -> tuple[float, float]:
        """See `Method.bounds`."""
        super().bounds()
        return math.inf, math.inf
