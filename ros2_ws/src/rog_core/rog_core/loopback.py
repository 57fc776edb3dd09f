"""Delivers messages to state machines; `Loopback` connects a server and workers in one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .errors import RogError
from .methods import Team
from .model.partition import partition_of
from .protocol.config import ServerConfig, TransferConfig
from .protocol.messages import (
    Ack,
    Action,
    Chunk,
    End,
    Receipt,
    RegisterRequest,
    Send,
    TransferMessage,
)
from .server.server import Server
from .worker.accumulator import Accumulator
from .worker.worker import Worker

_METHODS = {Chunk: 'on_chunk', Ack: 'on_ack', End: 'on_end', Receipt: 'on_receipt'}


def handler(machine: Worker | Server, message: TransferMessage) -> Callable[..., Any]:
    """Return the method with which ``machine`` handles ``message``.

    The method of a server takes the name of the robot before the message.
    """
    method: Callable[..., Any] = getattr(machine, _METHODS[type(message)])
    return method


class Loopback:
    """A server and its workers in one process; every message arrives at once and in order.

    `rog_core.warm_up` and `rog_core.method_check` use this class, because it needs no links and no
    clock.
    """

    def __init__(self, server: Server, workers: list[Worker]) -> None:
        self.server, self.now = server, 0.0
        self.workers = {worker.robot: worker for worker in workers}
        self._todo: list[tuple[str, Action]] = []  # pairs (name, action); see `want`

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
        wanted: list[tuple[str, Action]] = []
        for _ in range(limit):
            if not self._todo:
                return wanted
            self.now += 1e-4
            name, action = self._todo.pop(0)
            if not isinstance(action, Send):
                wanted.append((name, action))
                continue
            message = action.message
            if isinstance(message, RegisterRequest):
                response, actions = self.server.on_register(message, self.now)
                self.want(name, self.workers[name].on_register_response(response, self.now))
                self.want('', actions)
            elif name:
                self.want('', handler(self.server, message)(name, message, self.now))
            else:
                worker = self.workers[action.robot]
                self.want(action.robot, handler(worker, message)(message, self.now))
        raise RogError(f'the machines still send messages after {limit} of them')
