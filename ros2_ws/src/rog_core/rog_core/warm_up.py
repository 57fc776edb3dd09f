"""Compiles all numba functions before training, by running iterations of a worker and a server."""

from __future__ import annotations

import numpy as np

from .codecs import codec_names
from .loopback import Loopback
from .methods import Team
from .protocol.config import SgdConfig
from .protocol.messages import Compute


def warm_up() -> None:
    """Compile every numba function, or load it from the cache on disk."""
    for codec in codec_names():
        _one_iteration(codec, 'rsp:2')
    _one_iteration('raw', 'rsp:2+local=1+momentum=0.5')


def _one_iteration(codec: str, sync: str) -> None:
    pair = Loopback.small([('w', (3, 400)), ('b', (9,))], sync, Team({'robot': 1.0}, codec))
    worker = pair.workers['robot']
    gradient = np.ones(worker.partition.elements, np.float32)
    wanted = pair.start()
    for weight_decay in (0.0, 1e-3):  # run both loops of `arrays._accumulate`
        assert [type(action) for _, action in wanted] == [Compute]
        sgd = SgdConfig(0.1, 0.9, weight_decay, True)
        pair.want('robot', worker.on_gradient(gradient, sgd, pair.now))
        wanted = pair.deliver()
