"""A method of your own: robots may be apart, and most rows may stay behind on a bad link.

Try it in virtual time, beside the method to beat:

    rog compare examples/my_fleet.yaml --sync bsp,own_method:Lag:20,own_method:Lag:20+local
"""

from rog_core.messages import Sending
from rog_core.methods import Method
from rog_core.steps import Gradient, Local


class Lag(Method):
    """Lag:S: nobody is S exchanges ahead; a quarter of the rows, the most important ones, arrive.

    With +local an exchange, which is one push and one pull, comes after 2 local steps of SGD.
    """

    known = ('local',)                                 # its options

    def bounds(self):
        """Who may go on: within S of the slowest, now and at any later time of the run."""
        threshold = self.spec.threshold(1)          # the S of Lag:S, at least 1
        return threshold, threshold

    def sending(self):
        """Which rows travel: by importance, and a transfer may end after a quarter of them."""
        return Sending(minimum=0.25, threshold=int(self.bound), by_importance=True)

    def grant(self, robot, iteration):
        """What a robot computes next: its next gradient, or several steps on its own model."""
        return iteration + 1, Local(2) if 'local' in self.options else Gradient()
