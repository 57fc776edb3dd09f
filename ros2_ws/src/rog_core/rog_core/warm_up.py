"""Compiles all numba functions before training, by an iteration of one worker and a server."""

from __future__ import annotations

import numpy as np

from .accumulator import Accumulator
from .codecs import EXAMPLES
from .config import ServerConfig, SgdConfig, TransferConfig
from .dispatch import Loopback
from .messages import Compute
from .partition import partition_of
from .server import ServerMachine
from .worker import WorkerMachine


def warm_up() -> None:
    """Compile every kernel, or load it from the cache on disk."""
    for codec in EXAMPLES:
        _one_iteration(codec)


def _one_iteration(codec: str) -> None:
    transfer = TransferConfig('row', codec, 1.0, 1.0, 14000, 0.004)
    partition = partition_of([('w', (3, 400)), ('b', (9,))], transfer.granularity, codec)
    store = Accumulator(partition, np.zeros(partition.elements, np.float32))
    worker = WorkerMachine('robot', 1, store, transfer)
    server = ServerMachine(partition, np.ones(partition.elements, np.float32), 2,
                           ServerConfig(transfer, 'rsp:2', 0.0, 3.0, 1.0, {}))
    pair = Loopback(server, [worker])
    wanted = pair.start()
    for weight_decay in (0.0, 1e-3):  # each has a loop of its own
        assert [type(action) for _, action in wanted] == [Compute]
        sgd = SgdConfig(0.1, 0.9, weight_decay, True)
        pair.want('robot', worker.on_gradient(np.ones(partition.elements, np.float32), sgd,
                                              pair.now))
        wanted = pair.deliver()
