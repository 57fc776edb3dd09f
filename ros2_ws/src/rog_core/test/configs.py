"""Makes configurations for tests; settings that a test does not name get typical values."""

from __future__ import annotations

import math
from dataclasses import replace

from rog_core.protocol.config import ServerConfig, SgdConfig, TransferConfig

SGD = SgdConfig(learning_rate=0.01, momentum=0.9, weight_decay=0.0, nesterov=True)


def transfer_config(codec='onebit', **changes):
    return replace(TransferConfig('row', codec), **changes)


def server_config(sync='rsp:4', codec='onebit', chunk_bytes=14000, **changes):
    return replace(ServerConfig(transfer_config(codec, chunk_bytes=chunk_bytes), sync,
                                momentum=0.0, heartbeat_limit=3.0, patience=math.inf,
                                capacities={}, drain_limit=math.inf, stop_limit=math.inf),
                   **changes)
