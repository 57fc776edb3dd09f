"""Runs one worker and one server in this process, as the `Link` of a `RogOptimizer`."""

from __future__ import annotations

from configs import server_config
from rog_core.arrays import copy_of
from rog_core.loopback import Loopback
from rog_core.method_check import check_named
from rog_core.methods import Team
from rog_core.protocol.messages import Compute
from rog_core.server.server import Server


class InProcessLink:
    """A link whose `join` and `exchange` run both machines until the worker must compute."""

    def __init__(self, sync='bsp', codec='raw'):
        check_named(sync, Team())
        self.config = server_config(sync, codec)
        self.machine = self.server = self.pair = None

    def join(self, machine):
        self.machine = machine
        store = machine.accumulator
        self.server = Server(
            machine.partition, copy_of(store.weights), 1, self.config,
            store.frozen() if machine.partition.frozen else None)
        self.pair = Loopback(self.server, [machine])
        return self._granted(self.pair.start())

    def exchange(self, gradient, sgd):
        self.pair.want(self.machine.robot, self.machine.on_gradient(gradient, sgd, self.pair.now))
        return self._granted(self.pair.deliver())

    @staticmethod
    def _granted(wanted):
        """Return the last order to compute a gradient; None if the run is over."""
        granted = [action for _, action in wanted if isinstance(action, Compute)]
        return granted[-1] if granted else None
