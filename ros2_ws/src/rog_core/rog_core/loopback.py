"""`Loopback` connects the state machines of a server and of workers in one process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from .errors import RogError
from .methods import Team
from .model.partition import partition_of
from .protocol.config import ServerConfig, TransferConfig
from .protocol.messages import Action, RegisterRequest, Send
from .server.server import Server
from .shell import Shell, handler
from .worker.accumulator import Accumulator
from .worker.worker import Worker


class Loopback:
    """A server and its workers in one process; every message arrives at once and in order.

    `rog_core.warm_up` and `rog_core.method_check` use this class, because it needs no links and no
    clock.
    """

    def __init__(self, server: Server, workers: list[Worker]) -> None:
        self.server, self.now = server, 0.0
        self.workers = {worker.robot: worker for worker in workers}
        self._todo: list[tuple[str, Action]] = []    # pairs (name, action); see `want`
        self._wanted: list[tuple[str, Action]] = []  # the same, of what `deliver` will return
        self._shells = {name: self._shell(name) for name in ('', *self.workers)}

    @classmethod
    def small(cls, shapes: Iterable[tuple[str, Sequence[int]]], sync: str, team: Team) -> Loopback:
        """Return a fleet with the robots in ``team``; it trains a model with the method ``sync``.

        ``shapes``: (name, shape) of each parameter of the model. All parameters are zero at first.
        """
        transfer = TransferConfig('row', team.codec)
        partition = partition_of(shapes, transfer.granularity, transfer.codec)
        zeros = np.zeros(partition.elements, np.float32)
        server = Server(partition, zeros, 1, ServerConfig(
            transfer, sync, team.momentum, heartbeat_limit=3.0, patience=math.inf,
            capacities=team.capacities, drain_limit=1.0, stop_limit=math.inf, implausible=0.0))
        return cls(server, [
            Worker(name, k, Accumulator(partition, zeros.copy()), transfer)
            for k, name in enumerate(team.capacities, start=2)])

    def start(self) -> list[tuple[str, Action]]:
        """Register all workers with the server; return the result of `deliver`."""
        for name, worker in self.workers.items():
            self.want(name, worker.start(self.now))
        return self.deliver()

    def want(self, name: str, actions: list[Action]) -> None:
        """Queue actions of the worker ``name`` for `deliver`; an empty name means the server."""
        self._todo += [(name, action) for action in actions]

    def deliver(self, limit: int = 100_000) -> list[tuple[str, Action]]:
        """Deliver messages until none is left; return all other actions, as pairs (name, action).

        ``name``: see `want`. Raises `RogError` if the machines still send after ``limit`` actions.
        """
        for _ in range(limit):
            if not self._todo:
                wanted, self._wanted = self._wanted, []
                return wanted
            self.now += 1e-4
            name, action = self._todo.pop(0)
            self._shells[name].carry_out([action])
        raise RogError(f'the machines still send messages after {limit} of them')

    def _shell(self, name: str) -> Shell:
        """Return the shell of a worker; an empty name means the server."""
        def keep(action: Action) -> None:
            self._wanted.append((name, action))
        return Shell(partial(self._to_server, name) if name else self._to_worker,
                     partial(self._register, name), keep, keep, keep)

    def _register(self, name: str, request: RegisterRequest) -> None:
        response, actions = self.server.on_register(request, self.now)
        self.want(name, self.workers[name].on_register_response(response, self.now))
        self.want('', actions)

    def _to_server(self, name: str, send: Send) -> None:
        self.want('', handler(self.server, send.message)(name, send.message, self.now))

    def _to_worker(self, send: Send) -> None:
        worker = self.workers[send.robot]
        self.want(send.robot, handler(worker, send.message)(send.message, self.now))
