"""Update rules: how what the workers push changes the master rows.

A rule takes checked chunks as they arrive. `AveragedUpdate` applies each at once. The others hold a
push until the policy says in which order, or together with which others, it counts; what it says
are the steps below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arrays import Array, zeros_like
from .codecs import RAW, Codec
from .errors import ConfigError
from .mirror import Mirror
from .partition import RowPartition
from .sync import SyncMethod


@dataclass(frozen=True)
class Contribute:
    """Step: the push of this robot counts now, whole."""

    robot: str


@dataclass(frozen=True)
class EndRound:
    """Step: every robot has contributed once since the last such step."""


@dataclass(frozen=True)
class Decode:
    """Step: robot -> coefficient; with these the coded pushes sum to ``shards`` gradients."""

    coefficients: dict[str, float]
    shards: int


@dataclass(frozen=True)
class Discard:
    """Step: what these robots have pushed does not count; it is of a round that is over."""

    robots: tuple[str, ...]


Step = Contribute | EndRound | Decode | Discard


class AveragedUpdate:
    """The master rows fall by the mean of what the workers push (ROG, Algorithm 2, line 6)."""

    coded = False  # whether it is coded gradients that it takes

    def take(self, robot: str, partition: RowPartition, master: Array, ids: np.ndarray,
             codec: Codec, data: np.ndarray, workers: int) -> None:
        """Take one checked chunk of a push; there are ``workers`` workers."""
        codec.add(partition, master, ids, data, -1.0 / workers)

    def carry_out(self, step: Step, master: Array, workers: int) -> None:
        """Carry out a step of the policy; there is nothing to do where nothing is held."""

    def flush(self, master: Array, workers: int) -> None:
        """Let everything count that is held."""

    def state(self) -> dict[str, Array]:
        """What a restarted server needs, by name; float32 (elements,) each."""
        return {}

    def load_state(self, state: dict[str, Array]) -> None:
        """Take up what `state` returned."""


class Holding(AveragedUpdate):
    """Keeps pushes until their turn; ``momentum`` is the server's own, 0 up to 1."""

    def __init__(self, master: Array, momentum: float) -> None:
        self.momentum = momentum
        self.held: dict[str, Array] = {}
        self.velocity = zeros_like(master)

    def take(self, robot: str, partition: RowPartition, master: Array, ids: np.ndarray,
             codec: Codec, data: np.ndarray, workers: int) -> None:
        """See `AveragedUpdate.take`."""
        if robot not in self.held:
            self.held[robot] = zeros_like(master)
        codec.add(partition, self.held[robot], ids, data, 1.0)

    def state(self) -> dict[str, Array]:
        """See `AveragedUpdate.state`."""
        return {'velocity': self.velocity,
                **{f'held/{name}': held for name, held in self.held.items()}}

    def load_state(self, state: dict[str, Array]) -> None:
        """See `AveragedUpdate.load_state`."""
        self.velocity = state.get('velocity', self.velocity)
        self.held = {name.removeprefix('held/'): value for name, value in state.items()
                     if name.startswith('held/')}


class GlobalMomentum(Holding):
    """GSGM, Algorithm 2: momentum on the partly averaged gradient of the last round.

    Each contribution g moves the master rows by v' = (momentum * v + g) / workers, where v is the
    sum of the v' of the round before. The listing divides only where it averages; here pushes are
    steps of the averaged gradient, as everywhere: its learning rate is ours over the workers.
    Where a push holds only some rows, the others still move on by the momentum.
    """

    def __init__(self, master: Array, momentum: float) -> None:
        super().__init__(master, momentum)
        self.partly_averaged = zeros_like(master)

    def carry_out(self, step: Step, master: Array, workers: int) -> None:
        """See `AveragedUpdate.carry_out`."""
        if isinstance(step, Contribute) and step.robot in self.held:
            unbiased = self.held.pop(step.robot)
            unbiased += np.float32(self.momentum) * self.velocity
            unbiased *= np.float32(1 / workers)
            self.partly_averaged += unbiased
            master -= unbiased
        elif isinstance(step, EndRound):
            self.velocity = self.partly_averaged
            self.partly_averaged = zeros_like(self.velocity)

    def flush(self, master: Array, workers: int) -> None:
        """See `AveragedUpdate.flush`."""
        for robot in list(self.held):
            self.carry_out(Contribute(robot), master, workers)

    def state(self) -> dict[str, Array]:
        """See `AveragedUpdate.state`."""
        return {**super().state(), 'partly_averaged': self.partly_averaged}

    def load_state(self, state: dict[str, Array]) -> None:
        """See `AveragedUpdate.load_state`."""
        super().load_state(state)
        self.partly_averaged = state.get('partly_averaged', self.partly_averaged)


class DecodedUpdate(Holding):
    """Coded gradients: only together, decoded, are they a gradient, that of all shards' mean.

    Source: DGH-GC, Section 3, equation 1, with momentum on the server. ``codec``: every step is
    coded once and counts as it decodes (equation 22, no error feedback); None: it counts as it is.
    """

    coded = True

    def __init__(self, partition: RowPartition, master: Array, momentum: float,
                 codec: Codec | None) -> None:
        super().__init__(master, momentum)
        self.partition, self.codec = partition, codec

    def carry_out(self, step: Step, master: Array, workers: int) -> None:
        """See `AveragedUpdate.carry_out`."""
        if isinstance(step, Discard):
            for robot in step.robots:
                self.held.pop(robot, None)
        elif isinstance(step, Decode):
            self.velocity *= np.float32(self.momentum)
            for robot, coefficient in step.coefficients.items():
                self.velocity += np.float32(coefficient / step.shards) * self.held.pop(robot)
            master -= self.velocity if self.codec is None else self._quantised(self.codec)

    def _quantised(self, codec: Codec) -> Array:
        source = Mirror(self.partition, self.velocity)
        source.measure()
        ids = np.arange(self.partition.segments)
        out = zeros_like(self.velocity)
        codec.add(self.partition, out, ids, source.encode(codec, ids))
        return out


def update_of(method: SyncMethod, partition: RowPartition, master: Array, codec: Codec,
              momentum: float) -> AveragedUpdate:
    """Return a new update rule for a method; ``momentum`` is that of the fleet."""
    if not 0 <= momentum < 1:
        raise ConfigError(f'momentum is {momentum}; it must be at least 0 and below 1')
    if method.coded:
        lossy = None if 'feedback' in method.options or codec is RAW else codec
        return DecodedUpdate(partition, master, momentum, lossy)
    if method.family == 'gsgm':
        return GlobalMomentum(master, momentum)
    return AveragedUpdate()
