"""The role of a method that says who may take part, and which robots may go on."""

from __future__ import annotations

import math
from typing import Any

from .role import Fleet, Role


class Gate(Role):
    """BSP's gate, or SSP's and ASP's if the bound is larger: a robot waits for those far behind."""

    # After a restart, the server waits for these robots until the heartbeat limit has passed.
    expected: frozenset[str] = frozenset()

    def refusal(self, robot: str) -> str:
        """Return why this robot cannot take part; empty if it can."""
        return ''

    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        """Handle the end of a push.

        ``fleet``: the progress after this push of the robots that are not retired, and of this one.
        """

    def on_wait(self, robot: str, seconds: float) -> None:
        """Handle the end of a wait: a robot has waited ``seconds`` for other robots."""

    def held_up_by(self, robot: str, fleet: Fleet, least: float = 0.0) -> list[str]:
        """Return the robots for which this robot must wait; empty if this robot may continue.

        ``least``: lower limit of the bound. After a change to a method with a smaller bound, the
        old bound still applies until every robot has pushed under the new method.
        """
        if self.at_barrier(robot, fleet):  # a barrier counts iterations, not rows
            own = fleet[robot].iteration
            return [name for name, other in fleet.items() if other.iteration < own]
        behind = self.behind(robot, fleet, max(self.bound_of(robot), least))
        here = fleet[robot]
        if robot in behind and here.iteration - here.slowest < max(self.bound, least):
            # The robot's own rows are no reason to wait: `sending` allows rows of this age.
            behind.remove(robot)
        return behind

    def bound_of(self, robot: str) -> float:
        """Return the staleness bound of this robot.

        A method may set a different bound for each robot.
        """
        return self.bound

    def at_barrier(self, robot: str, fleet: Fleet) -> bool:
        """Return whether this robot must wait until all other robots reach its iteration."""
        return False

    @staticmethod
    def behind(robot: str, fleet: Fleet, bound: float) -> list[str]:
        """Return the robots whose slowest row is ``bound`` or more iterations behind ``robot``."""
        iteration = fleet[robot].iteration
        return [name for name, other in fleet.items() if iteration - other.slowest >= bound]

    @property
    def deadline(self) -> float:
        """Time in seconds at which the server must call `on_time`; infinity means never."""
        return math.inf

    def on_time(self, now: float) -> None:
        """Update the method at the time `deadline`.

        After this call, the server checks which robots may continue.
        """

    # -- restart -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the JSON values that a checkpoint must contain to resume this method."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Resume from the values that `state` returned.

        Raises TypeError or ValueError if the values do not fit this method.
        """
