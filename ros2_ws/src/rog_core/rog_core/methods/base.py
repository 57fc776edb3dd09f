"""The base class of synchronisation methods: a gate, orders and an update.

A method is a subclass that overrides what differs from BSP, or that puts other roles before
`Method`: ``class DiLoCo(Outer, Method)``. A worker runs no code of a method: the server sends it
numbers and the name of a step (`rog_core.protocol.steps`).

The code does no I/O and reads no clock: it gets times as arguments, in seconds.
"""

from __future__ import annotations

from .gate import Gate
from .orders import Orders
from .role import Fleet, Model, Standing, Team
from .update import Holding, Rolling, Update

__all__ = ['Fleet', 'Gate', 'Holding', 'Method', 'Model', 'Orders', 'Rolling', 'Standing', 'Team',
           'Update']


class Method(Gate, Orders, Update):
    """BSP: all robots push all rows, then start the next iteration; base of all other methods."""

    def pushed(self, robot: str, complete: bool, fleet: Fleet, now: float) -> None:
        """Handle the end of a push; ``complete``: the server has received all rows."""
        self.on_push(robot, fleet, now)
