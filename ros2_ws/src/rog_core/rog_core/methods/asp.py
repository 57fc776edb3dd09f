"""ASP, asynchronous parallel: no robot waits, and the staleness of gradients is unbounded."""

import math

from typing_extensions import override

from .base import Method


class Asp(Method):
    """``asp``: no robot waits for another, because the staleness bound is infinite."""

    name = 'asp'
    usage = 'asp'

    @override
    def bounds(self) -> tuple[float, float]:
        super().bounds()
        return math.inf, math.inf
