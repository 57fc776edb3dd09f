"""A method of your own: robots may be some iterations apart; important rows travel first.

Compare it with `bsp` in virtual time:

    rog compare examples/my_fleet.yaml --sync bsp,own_method:Lag:20,own_method:Lag:20+local
"""

from rog_core.messages import Sending
from rog_core.methods import Method
from rog_core.steps import Gradient, Local


class Lag(Method):
    """Lag:S: a robot waits when it is S iterations ahead of the slowest row.

    Each push and pull carries at least a quarter of the rows: first the overdue ones, then the
    most important ones. With +local, a robot makes 2 local steps of SGD in each iteration.
    """

    known = ('local',)                                 # options that users may add with +
    time_limited = True            # a transfer over a slow link ends early and omits some rows

    def bounds(self):
        """Return the bound at the start of the run and the largest bound, both in iterations."""
        threshold = self.spec.threshold(1)          # the S of Lag:S, at least 1
        return threshold, threshold

    def sending(self):
        """Return which rows a transfer sends first: overdue ones, then the most important ones."""
        return Sending(minimum=0.25, threshold=int(self.bound), by_importance=True)

    def grant(self, robot, iteration):
        """Return the number of the robot's next iteration and what the robot computes in it."""
        return iteration + 1, Local(2) if 'local' in self.options else Gradient()
