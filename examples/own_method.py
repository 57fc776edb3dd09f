"""A method of your own: robots may be some iterations apart; a bad link carries few rows.

Compare it with `bsp` in virtual time:

    rog compare examples/my_fleet.yaml --sync bsp,own_method:Lag:20,own_method:Lag:20+local
"""

from rog_core.messages import Sending
from rog_core.methods import Method
from rog_core.steps import Gradient, Local


class Lag(Method):
    """Lag:S: a robot waits when it is S exchanges ahead of the slowest robot.

    An exchange is one push and one pull; each carries at least a quarter of the rows. With the
    option +local, a robot makes 2 local steps of SGD before each exchange.
    """

    known = ('local',)                                 # options that users may add with +

    def bounds(self):
        """Return the present staleness bound and the largest one of the run, both in iterations."""
        threshold = self.spec.threshold(1)          # the S of Lag:S, at least 1
        return threshold, threshold

    def sending(self):
        """Return which rows a transfer sends: at least a quarter, the most important ones first."""
        return Sending(minimum=0.25, threshold=int(self.bound), by_importance=True)

    def grant(self, robot, iteration):
        """Return the number of the robot's next iteration and what the robot computes in it."""
        return iteration + 1, Local(2) if 'local' in self.options else Gradient()
