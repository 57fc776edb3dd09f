"""Connects this server to its parent fleet, in which this fleet takes part as a robot.

This module runs a worker in the parent fleet, which can use another DDS domain. The worker is a
robot's node (`rog_worker`) on its own thread. Worker and server exchange only orders and changes of
the model, as a robot's node and its training thread do. However, neither waits for the other: the
server's thread carries out an order when the order arrives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fleet_ros.environment import domain_of
from fleet_ros.exposure import reaching, require_key
from fleet_ros.spinning import Spinning
from rclpy.context import Context
from rclpy.parameter import Parameter
from rog_core.errors import ConfigError
from rog_core.protocol.config import TransferConfig
from rog_core.protocol.messages import Compute
from rog_core.protocol.states import PUSHING, STOPPED
from rog_core.server.server import Server
from rog_core.upstream import AS_IT_IS, Upstream, worker_above
from rog_core.worker.worker import Worker
from rog_ros.parameters import ServerSettings, upstream_parameters
from rog_ros.signature import process_of
from rog_worker.node import WorkerNode


class FleetWorker(WorkerNode):
    """The worker that represents this fleet in its parent fleet.

    ``order``: the last order of the parent fleet, which says how far this fleet trains before its
    next push. It is None if there is no order yet, or if the parent fleet's run is over.
    ``ended``: whether the parent fleet's run is over. ``closing``: whether the parent fleet's
    server is ending the run, and waits for the last changes.

    :param ordered: called when an order arrives, and when ``ended`` or ``closing`` becomes true.
    """

    def __init__(self, settings: ServerSettings, context: Context, ordered: Callable[[], None]
                 ) -> None:
        above = settings.upstream
        super().__init__(
            context=context, namespace=f'{above.namespace}/{above.robot}',
            use_global_arguments=False, parameter_overrides=[
                Parameter(name, value=value)
                for name, value in upstream_parameters(settings).items()])
        self._ordered = ordered
        self.order: Compute | None = None
        self.ended = self.closing = False

    def begin(self, machine: Worker) -> None:
        """Register with the parent fleet's server. Any thread may call this."""
        self.machine = machine
        self._started.trigger()

    def hand_up(self, change: np.ndarray) -> None:
        """Push the model's change, as the last order requires. Any thread may call this."""
        self._computed = change, AS_IT_IS
        self._ready.trigger()

    def _grant(self, order: Compute | None) -> None:
        self.order, self.ended, self.closing = order, order is None, False
        self._ordered()

    def _on_fleet(self, message: Any) -> None:
        super()._on_fleet(message)
        if self.machine is not None and message.state == 'stopping' and not self.closing \
                and message.incarnation == process_of(self.machine.server):
            self.closing = True
            self._ordered()


class ParentFleet:
    """Connects a server's node with the parent fleet. Only the server's thread may call it.

    :param here: namespace and DDS domain of this fleet.
    :param create_guard: makes a guard condition of the server's node, which calls a function.
    :param base: `Upstream.base` from the checkpoint, float32 (elements,); None: the checkpoint
        has none, or there is no checkpoint.
    :param save: function that writes a checkpoint.
    """

    def __init__(self, server: Server, settings: ServerSettings, here: tuple[str, int],
                 create_guard: Callable[[Callable[[], None]], Any], base: np.ndarray | None,
                 save: Callable[[], None], log: Any) -> None:
        above = settings.upstream
        domain = domain_of(above)
        if (above.namespace, domain) == here:
            raise ConfigError('the parent fleet must have another domain or namespace than this '
                              'fleet: change upstream.domain_id or upstream.namespace')
        self.name = f'{above.namespace}/{above.robot}'
        self._save, self._log = save, log
        self._robots: dict[str, tuple[float, float]] = {}  # robot -> its last (loss, accuracy)
        self._taken: Compute | None = None                 # the last order that was carried out
        self._context = Context()
        ordered = create_guard(self.go_on)
        with reaching(above):
            require_key(above.key, settings.security.open)
            self._context.init([], initialize_logging=False, domain_id=domain)
            self._worker = FleetWorker(settings, self._context, ordered.trigger)
        machine = worker_above(server, above.robot, self._worker.incarnation,
                               TransferConfig.of(self._worker.settings))
        self._upstream = Upstream(server, machine, base)
        self._spinning: Spinning | None = None
        self._over = False
        ordered.trigger()  # makes the server's node call `go_on`, which starts the worker

    def go_on(self) -> None:
        """Carry out the last order of the parent fleet, or react to the end of its run.

        The first call starts the worker that represents this fleet.
        """
        worker, order = self._worker, self._worker.order
        if self._over:
            return
        if self._spinning is None:
            self._spinning = Spinning(worker)
            worker.begin(self._upstream.worker)
        if worker.ended:
            self._upstream.end()
            self._log.warning(f'the fleet above has ended for {self.name}'
                              + f': {worker.error}' * bool(worker.error)
                              + '; this fleet goes on by itself')
            self._close()
            worker.report(state=STOPPED)  # the parent fleet's server waits for this last status
            return
        if order is not None and order is not self._taken:
            self._taken = order
            try:
                self._upstream.go_on(order)
            except ConfigError as error:
                self._log.error(f'{error}. This fleet goes on by itself')
                self._leave()
                return
        self.look()
        if worker.closing:
            self.account()

    def look(self) -> None:
        """Push the change if this fleet has made the iterations that the parent fleet requires."""
        if self._upstream.due:
            self.account()

    def account(self) -> None:
        """Push the model's change since the last push, if the parent fleet's server awaits it."""
        change = None if self._over else self._upstream.account()
        if change is not None:
            self._save()  # must happen before the push, see `Upstream.account`
            self._worker.hand_up(change)

    def note(self, robot: str, loss: float, accuracy: float) -> None:
        """Record a robot's loss and accuracy; the worker reports the means over the robots."""
        self._robots[robot] = loss, accuracy
        losses, accuracies = zip(*self._robots.values(), strict=True)
        worker, machine = self._worker, self._worker.machine
        worker.loss = _mean_of_known(losses)
        worker.evaluation = 0 if machine is None else machine.finished, _mean_of_known(accuracies)

    @property
    def base(self) -> np.ndarray:
        """The array `Upstream.base`, which a checkpoint must contain."""
        return self._upstream.base

    @property
    def pushing(self) -> bool:
        """Whether the last change is still being pushed."""
        machine = self._worker.machine
        return not self._over and machine is not None and machine.state == PUSHING

    @property
    def state(self) -> str:
        """State of the worker, for display."""
        machine = self._worker.machine
        return 'ended' if self._over or machine is None else machine.state

    def _close(self) -> None:
        self._over = True
        if self._spinning is not None:
            self._spinning.close()
            self._spinning = None

    def _leave(self) -> None:
        if not self._over:
            self._close()
            self._worker.leave()

    def close(self) -> None:
        """Leave the parent fleet."""
        self._leave()
        self._worker.destroy_node()
        self._context.try_shutdown()


def _mean_of_known(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan
