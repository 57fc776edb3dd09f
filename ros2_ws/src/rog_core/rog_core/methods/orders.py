"""The role of a method that says which rows a robot sends, and what it computes."""

from __future__ import annotations

from ..protocol.messages import Sending
from ..protocol.steps import Gradient, Step
from ..transfer.plan import SECOND, minimum_transmission
from .role import Role


class Orders(Role):
    """BSP's orders, or ROG's with the options of ATP: robots compute gradients and send rows."""

    @property
    def pipelined(self) -> bool:
        """Whether a robot computes its next gradient during the transfer; see `goes_ahead`."""
        return 'pipeline' in self.options

    def goes_ahead(self, staleness: int) -> bool:
        """Return whether a robot may compute its next gradient while its push is under way.

        ``staleness``: present staleness of the robot, in iterations.
        """
        return self.pipelined and staleness + 1 < self.bound

    @property
    def shrinks(self) -> bool:
        """Whether a transfer uses `rog_core.codecs.SMALLER` if the fleet's codec needs too long.

        The fleet's codec needs too long if the mandatory rows would take longer than
        `Command.patience`.
        """
        return 'sparse' in self.options

    @property
    def time_limited(self) -> bool:
        """Whether a transfer stops at the end of the MTA time; otherwise all its rows are sent."""
        return 'timeout' in self.options

    def sending(self) -> Sending:
        """Return the rules by which rows are chosen for a transfer, in either direction."""
        if not self.early:
            return Sending()
        mta = minimum_transmission(int(self.bound))
        minimum = mta if 'minimum' in self.options else 0.0
        if 'second' in self.options:
            minimum += max((more for least, more in SECOND if self.bound >= least), default=0.0)
        return Sending(min(minimum, 1.0), int(self.bound) if self.by_row else 0,
                       'order' in self.options, 0.0 if 'minimum' in self.options else mta)

    def grant(self, robot: str, iteration: int) -> tuple[int, Step]:
        """Return the iteration and the step that a robot computes after it pushed ``iteration``."""
        return iteration + 1, Gradient()
