"""A parameter server as a worker of another one: a fleet of fleets.

To the server above, a whole fleet is one robot that takes local steps. What the fleet has changed
in its model since it last gave account, its master rows then minus its master rows now, is what
the local steps of a robot come to; it is pushed, and what is pulled is added to the master rows,
from where the fleet's own pulls carry it to the robots. Neither protocol knows of the other, and
the fleet never waits: while the server above is out of reach, its change only grows.
"""

from __future__ import annotations

import math

from .accumulator import Accumulator
from .arrays import Array, copy_of
from .config import SgdConfig, TransferConfig
from .errors import ConfigError
from .messages import Action, Compute
from .partition import partition_of
from .server import ServerMachine
from .steps import Local
from .worker import WorkerMachine

# Learning rate and momentum are in the change already.
AS_IT_IS = SgdConfig(learning_rate=1.0, momentum=0.0, weight_decay=0.0, nesterov=False)


class Upstream:
    """What lies between a server and the worker that stands for its fleet at the server above.

    ``base``, float32 (elements,): the master rows as they would be without what the fleet has
    changed since its last account. So base - master is what has not been handed to the worker.
    It goes on where ``base`` was when a checkpoint was written, by default from now.

    An iteration of the worker is H iterations of the fleet, where H is the number of local steps
    that the method above asks for; more, where the server above takes longer than that.
    """

    def __init__(self, server: ServerMachine, worker: WorkerMachine, base: Array | None = None
                 ) -> None:
        self.server, self.worker = server, worker
        self.base = copy_of(server.master) if base is None else base
        self._handed: Array | None = None  # the last change that the worker was given
        self._kept = worker.accumulator.kept  # changes that the worker had kept before that
        self._accounted = server.iteration    # the fleet's iteration at the last account
        self._due = math.inf                  # iteration of the fleet at which one is due

    def go_on(self, order: Compute) -> None:
        """Carry out an order of the worker: take what it has pulled, and let the fleet work.

        Raises `ConfigError` if the method above does not ask for local steps.
        """
        if not isinstance(order.step, Local):
            raise ConfigError(
                f"the fleet above trains by '{self.worker.sync}', in which robots compute single "
                'gradients; a fleet can only take part in methods of local steps: local:H, '
                'diloco:H[:P] or rsp:T+local=H')
        self._take()
        self._due = self._accounted + order.step.steps

    def end(self) -> None:
        """Take the model with which the run above has ended; from now on nobody asks any more."""
        if self.worker.iteration:  # else it has never had the model above
            self._take()
        self._due = math.inf

    def _take(self) -> None:
        if self._handed is not None:
            if self.worker.accumulator.kept == self._kept:
                self.base += self._handed  # it was of no use for the iteration that was granted
            self._handed = None
        if not self.server.stopping:
            model = self._model()
            self.server.on_model_above(model - self.base)
            self.base = model

    def _model(self) -> Array:
        """The model above as the worker has it, with what the server above has not taken yet."""
        store = self.worker.accumulator
        if store.drift is not None:  # of steps that go on; the worker has seen to it
            return copy_of(store.model)
        return store.weights - store.pending

    @property
    def due(self) -> bool:
        """Whether the fleet has worked for as long as the server above asks for."""
        return self.server.iteration >= self._due

    def account(self) -> Array | None:
        """Return what the fleet has changed since the last account; None: nobody asks for it.

        It is for `WorkerMachine.on_gradient`, with the `SgdConfig` `AS_IT_IS`. Write a checkpoint
        before: one from before this would count the change a second time after a restart.
        """
        if math.isinf(self._due):
            return None
        change = self.base - self.server.master
        self._handed, self._kept = change, self.worker.accumulator.kept
        self.base, self._accounted, self._due = \
            copy_of(self.server.master), self.server.iteration, math.inf
        return change


def worker_above(server: ServerMachine, robot: str, incarnation: int, config: TransferConfig
                 ) -> WorkerMachine:
    """Return the worker that stands for a server's fleet; ``config``: as the fleet above has it.

    It has rows of its own, so granularity and codec may differ between the two fleets.
    """
    partition = partition_of([(p.name, p.shape) for p in server.partition.parameters],
                             config.granularity, config.codec)
    return WorkerMachine(robot, incarnation, Accumulator(partition, copy_of(server.master)), config)


def step_above(upstream: Upstream, now: float) -> list[Action]:
    """Give account if it is due; for shells in which server and worker run in one thread."""
    change = upstream.account() if upstream.due else None
    return [] if change is None else upstream.worker.on_gradient(change, AS_IT_IS, now)
