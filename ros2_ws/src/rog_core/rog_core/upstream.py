"""Lets a parameter server act as a worker of another parameter server: a fleet of fleets.

For the parent fleet's server, a whole child fleet is one robot that makes local steps. An
*account* is one push of the child fleet. It carries the change of the child fleet's model since
the previous account: the former master rows minus the present master rows. Rows that the child
fleet pulls from the parent fleet are added to its master rows, and its robots receive them with
their own pulls. The two protocols are independent. The child fleet never waits: if the parent
fleet's server cannot be reached, the next change simply becomes larger.
"""

from __future__ import annotations

import math

import numpy as np

from .errors import ConfigError
from .model.partition import Role, partition_of
from .protocol.config import SgdConfig, TransferConfig
from .protocol.messages import Action, Compute
from .protocol.steps import Local
from .server.server import Server
from .worker.accumulator import Accumulator
from .worker.worker import Worker

# With these settings, a worker pushes the child fleet's change unscaled, because the change
# already includes learning rate and momentum.
AS_IT_IS = SgdConfig(learning_rate=1.0, momentum=0.0, weight_decay=0.0, nesterov=False)


class Upstream:
    """Connects a child fleet's server with the worker that represents it in the parent fleet.

    An *account* is one push of the child fleet: the change of its model since the previous
    account. ``base``, float32 (elements,): the master rows without the child fleet's changes since
    the last account. So base - master is the change that the worker has not received yet. After a
    restart, pass the ``base`` of the checkpoint. The default is the present master rows.

    During one iteration of the worker, the child fleet makes at least H iterations. H is the
    number of local steps that the parent fleet's method orders. If the parent fleet takes longer,
    the child fleet makes more iterations.
    """

    def __init__(self, server: Server, worker: Worker, base: np.ndarray | None = None
                 ) -> None:
        self.server, self.worker = server, worker
        self.base = server.master.copy() if base is None else base
        self._handed: np.ndarray | None = None  # last result of `account`; None after `_take`
        self._kept = worker.accumulator.kept  # `Accumulator.kept` at the last call of `account`
        self._accounted = server.iteration    # `server.iteration` at the last call of `account`
        self._due = math.inf                  # `server.iteration` at which the next push is due

    def go_on(self, order: Compute) -> None:
        """Execute the worker's order: apply the pulled rows, and schedule the next account.

        Raises `ConfigError` if the parent fleet's method does not order local steps.
        """
        if not isinstance(order.step, Local):
            raise ConfigError(
                f"the parent fleet's method must have local steps, got '{self.worker.sync}': train "
                'the parent fleet with local:H, diloco:H[:P] or rsp:T+local=H')
        self._take()
        self._due = self._accounted + order.step.steps

    def end(self) -> None:
        """Apply the final model of the parent fleet; then no further account is due."""
        if self.worker.iteration:  # 0: the worker has never received the parent fleet's model
            self._take()
        self._due = math.inf

    def _take(self) -> None:
        if self._handed is not None:
            if self.worker.accumulator.kept == self._kept:
                # The worker has dropped the change, because it belonged to another iteration. So
                # the next push must include this change.
                self.base += self._handed
            self._handed = None
        if not self.server.stopping:
            model = self._model()
            self._lengthen(model)
            self.server.on_model_above(self.base, model)
            self.base = model

    def _lengthen(self, model: np.ndarray) -> None:
        """Add the frozen parameters to ``base`` if a robot has unfrozen one of them."""
        if len(model) > len(self.base):
            assert self.server.frozen is not None
            self.base = np.concatenate([self.base, self.server.frozen])

    def _model(self) -> np.ndarray:
        """Return the worker's copy of the parent fleet's model, plus the worker's pending changes.

        A change is pending until it has arrived at the parent fleet's server.
        """
        store = self.worker.accumulator
        if store.drift is None:
            return store.weights - store.pending
        model = store.model.copy()  # in a step `Phase`, it includes the pending changes
        model[store.partition.buffers] = store.own
        return model

    @property
    def due(self) -> bool:
        """Whether the child fleet has made enough iterations for the next account."""
        return self.server.iteration >= self._due

    def account(self) -> np.ndarray | None:
        """Return the child fleet's change since the last account; None if no account is ordered.

        Write a checkpoint before you pass the change to `Worker.on_gradient` with
        `AS_IT_IS`. Otherwise the server could restart from an older checkpoint, and the change
        would be applied twice.
        """
        if math.isinf(self._due):
            return None
        self._lengthen(self.server.master)
        change = self.base - self.server.master
        known = self.server.partition
        if known is known.grown:  # the robots may have changed what was frozen at first
            self.worker.switched = tuple(
                k for k, p in enumerate(known.parameters) if p.role == Role.FROZEN)
        self._handed, self._kept = change, self.worker.accumulator.kept
        self.base, self._accounted, self._due = \
            self.server.master.copy(), self.server.iteration, math.inf
        return change


def worker_above(server: Server, robot: str, incarnation: int, config: TransferConfig
                 ) -> Worker:
    """Return the worker that represents a server's fleet in the parent fleet.

    ``config``: the configuration of the parent fleet. The worker makes its own division of the
    model into rows, so granularity and codec may differ between the two fleets.
    """
    partition = partition_of(server.partition.listing.parameters, config.granularity, config.codec)

    def frozen() -> np.ndarray:
        assert server.frozen is not None
        return server.frozen
    store = Accumulator(partition, server.master[:partition.elements].copy(), frozen=frozen)
    return Worker(robot, incarnation, store, config)


def step_above(upstream: Upstream, now: float) -> list[Action]:
    """Push the child fleet's change if it is due; return the worker's actions.

    For programs that run server and worker in one thread.
    """
    change = upstream.account() if upstream.due else None
    return [] if change is None else upstream.worker.on_gradient(change, AS_IT_IS, now)
