"""Configuration of the state machines; `fleet_env.settings.fleet` has the defaults of all settings.

Each class method `of` accepts any object that has the sections of a fleet file as attributes: the
settings of a fleet, or the parameters of a node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError


@dataclass(frozen=True)
class TransferConfig:
    """How rows are formed, encoded, ranked and sent.

    ``granularity`` and ``codec`` must be the same on workers and server. ``buffers``: 'average' if
    all robots have the fleet's buffers, 'local' if each robot keeps its own (FedBN).

    For ``chunk_bytes`` (bytes), ``chunk_time`` (seconds) and ``traffic``, see the arguments
    ``max_chunk``, ``chunk_time`` and ``scale`` of `rog_core.transfer.link.RowLink`.
    ``importance_magnitude``, ``importance_age``: see `rog_core.transfer.plan.importance`.
    """

    granularity: str
    codec: str
    chunk_bytes: int = 14000
    chunk_time: float = 0.004
    traffic: float = 1.0
    buffers: str = 'average'
    importance_magnitude: float = 1.0
    importance_age: float = 1.0

    @classmethod
    def of(cls, settings: Any, traffic: float = 1.0) -> TransferConfig:
        """Make the configuration from ``settings.training`` and ``settings.network``."""
        training, network = settings.training, settings.network
        return cls(training.granularity, training.codec, network.chunk_bytes, network.chunk_time,
                   traffic, training.buffers)


@dataclass(frozen=True)
class SgdConfig:
    """Stochastic gradient descent on a worker: its learning rate, momentum and weight decay.

    ``momentum`` has no effect with methods that keep momentum on the server (GSGM, gradient
    coding).
    """

    learning_rate: float
    momentum: float
    weight_decay: float
    nesterov: bool

    def check(self) -> None:
        """Raise `ConfigError` unless all numbers are finite and not negative."""
        for name, value in (('lr', self.learning_rate), ('momentum', self.momentum),
                            ('weight_decay', self.weight_decay)):
            if not 0 <= value < math.inf:
                raise ConfigError(f'{name} is {value}; it must be a number that is not negative')

    @classmethod
    def of(cls, settings: Any) -> SgdConfig:
        """Make the configuration from ``settings.training``."""
        training = settings.training
        return cls(training.learning_rate, training.momentum, training.weight_decay,
                   training.nesterov)


@dataclass(frozen=True)
class ServerConfig:
    """Configuration of the server.

    ``sync``: the method. ``momentum``: coefficient for methods that keep the momentum on
    the server. ``heartbeat_limit``: seconds without a heartbeat after which a member is
    away. ``patience``: seconds without progress after which other robots no longer wait for
    a member; if ``patience`` is 0, `rog_core.patience.fleet_patience` computes this
    time. ``drain_limit``: seconds that the transfer of the final model may take.
    ``stop_limit``: seconds that the end of the run may take. ``capacities``: maps each
    robot of the fleet, in order of rank, to its computing capacity; empty if the fleet is
    not known from the beginning.

    ``implausible``: a push is refused if its norm is more than this many times the usual
    norm; 0: no limit. ``clip``: a push whose norm is more than this many times the median
    norm is scaled down to this limit; 0: no limit. For ``implausible`` and ``clip`` see
    `rog_core.server.push_filter`. ``above``: whether this is the server of a child fleet,
    see `rog_core.upstream`.
    """

    transfer: TransferConfig
    sync: str
    momentum: float
    heartbeat_limit: float
    patience: float
    capacities: Mapping[str, float]
    clip: float = 0.0
    above: bool = False
    drain_limit: float = 5.0
    stop_limit: float = 60.0
    implausible: float = 100.0

    @classmethod
    def of(cls, settings: Any, capacities: Mapping[str, float], traffic: float = 1.0
           ) -> ServerConfig:
        """Make the server's configuration from the settings of a fleet file.

        ``capacities``: maps each robot to its capacity. ``traffic``: see `TransferConfig`.
        """
        return cls(TransferConfig.of(settings, traffic), settings.training.sync,
                   settings.training.momentum, settings.heartbeat.limit, settings.server.patience,
                   dict(capacities), settings.server.clip, bool(settings.upstream.robot))
