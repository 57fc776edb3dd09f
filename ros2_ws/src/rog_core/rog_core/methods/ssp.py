"""SSP, stale synchronous parallel: a robot is at most S iterations ahead of the slowest robot."""

from typing_extensions import override

from .base import Method


class Ssp(Method):
    """``ssp:S``: a robot may be at most S iterations ahead of the slowest robot; ssp:0 is BSP.

    With the option ``+early``, ATP chooses the rows; staleness is still counted in iterations.

    Source: Ho et al., More effective distributed ML via a stale synchronous parallel parameter
    server, NIPS 2013.
    """

    name = 'ssp'
    usage = 'ssp:S'
    known = ('early', 'order', 'timeout', 'minimum', 'svrg')

    @override
    def bounds(self) -> tuple[float, float]:
        bound = self.spec.threshold(0) + 1
        return bound, bound
