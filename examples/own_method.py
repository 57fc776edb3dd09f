"""A method of your own: robots may be some iterations apart; a bad link carries few rows.

Try it in virtual time, beside the method to beat:

    rog compare examples/my_fleet.yaml --sync bsp,own_method:Lag:20,own_method:Lag:20+local
"""

from rog_core.messages import Sending
from rog_core.methods import Method
from rog_core.steps import Gradient, Local


class Lag(Method):
    """Lag:S: a robot waits when S exchanges ahead; a quarter of the rows always arrives.

    With +local an exchange, which is one push and one pull, comes after 2 local steps of SGD.
    """

    known = ('local',)                                 # its options

    def bounds(self):
        """Return how far ahead of the slowest a robot waits: now, and at most in the whole run."""
        threshold = self.spec.threshold(1)          # the S of Lag:S, at least 1
        return threshold, threshold

    def sending(self):
        """Return which rows a transfer sends: at least a quarter, the most important ones first."""
        return Sending(minimum=0.25, threshold=int(self.bound), by_importance=True)

    def grant(self, robot, iteration):
        """Return the robot's next iteration, and what it computes: a gradient, or two steps."""
        return iteration + 1, Local(2) if 'local' in self.options else Gradient()
