"""One worker and one server in this process, messages delivered at once and in order."""

from __future__ import annotations

from rog_core.arrays import copy_of
from rog_core.messages import Ack, Chunk, Compute, End, Receipt, RegisterRequest, Send, Stop
from rog_core.server import ServerMachine

CALLS = {Chunk: 'on_chunk', Ack: 'on_ack', End: 'on_end', Receipt: 'on_receipt'}


class InProcessLink:
    """The `Link` of a `RogOptimizer`: join and exchange run both machines until it is our turn."""

    def __init__(self, sync='bsp', codec='raw'):
        self.sync, self.codec, self.now = sync, codec, 0.0
        self.machine = self.server = None
        self.granted = None

    def join(self, machine):
        self.machine = machine
        store = machine.accumulator
        self.server = ServerMachine(machine.partition, copy_of(store.weights), 1, self.sync,
                                    self.codec)
        return self.run(machine.start(self.now))

    def exchange(self, accumulate):
        return self.run(self.machine.on_gradient(self.now, accumulate))

    def run(self, actions):
        """Carry messages until the worker may compute; None if the run is over."""
        self.granted = None
        queue = [(self.machine, action) for action in actions]
        for _ in range(100_000):
            if not queue:
                return self.granted
            self.now += 1e-4
            source, action = queue.pop(0)
            if isinstance(action, Compute):
                self.granted = action
            elif isinstance(action, Send) and isinstance(action.message, RegisterRequest):
                response, more = self.server.on_register(action.message, self.now)
                queue += [(self.machine, a) for a in
                          self.machine.on_register_response(response, self.now)]
                queue += [(self.server, a) for a in more]
            elif isinstance(action, Send):
                name = CALLS[type(action.message)]
                if source is self.machine:
                    more = getattr(self.server, name)(action.robot, action.message, self.now)
                    queue += [(self.server, a) for a in more]
                else:
                    more = getattr(self.machine, name)(action.message, self.now)
                    queue += [(self.machine, a) for a in more]
            else:
                assert isinstance(action, Stop)
        raise AssertionError('the machines talk for ever')
