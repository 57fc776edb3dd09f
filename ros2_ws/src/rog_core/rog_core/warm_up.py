"""Compile the kernels before time matters, by letting two machines talk to each other once."""

from __future__ import annotations

import numpy as np

from .accumulator import Accumulator
from .codecs import EXAMPLES
from .dispatch import handler
from .messages import Action, Compute, RegisterRequest, Send
from .partition import partition_of
from .server import ServerMachine
from .worker import WorkerMachine


def warm_up() -> None:
    """Compile every kernel, or load it from the cache on disk."""
    for codec in EXAMPLES:
        _one_iteration(codec)


def _one_iteration(codec: str) -> None:
    partition = partition_of([('w', (3, 400)), ('b', (9,))], 'row', codec)
    store = Accumulator(partition, np.zeros(partition.elements, np.float32))
    worker = WorkerMachine('robot', 1, store, codec)
    server = ServerMachine(partition, np.ones(partition.elements, np.float32), 2, 'rsp:2',
                           codec)
    todo: list[tuple[bool, Action]] = [(True, a) for a in worker.start(0.0)]
    computed = 0
    while todo:
        of_worker, action = todo.pop(0)
        if isinstance(action, Compute) and computed < 2:
            computed += 1
            store.accumulate(np.ones(partition.elements, np.float32), 0.1, 0.9, computed * 1e-3)
            todo += [(True, a) for a in worker.on_gradient(0.0)]
        elif isinstance(action, Send):
            todo += _deliver(worker, server, of_worker, action)


def _deliver(worker: WorkerMachine, server: ServerMachine, of_worker: bool, action: Send
             ) -> list[tuple[bool, Action]]:
    message = action.message
    if isinstance(message, RegisterRequest):
        response, actions = server.on_register(message, 0.0)
        return [*((True, a) for a in worker.on_register_response(response, 0.0)),
                *((False, a) for a in actions)]
    machine = server if of_worker else worker
    arguments = (action.robot, message, 0.0) if of_worker else (message, 0.0)
    return [(not of_worker, a) for a in handler(machine, message)(*arguments)]
