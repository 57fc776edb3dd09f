"""The state that all parts of the parameter server share: the model, the method, the members."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from ..arrays import Array, all_finite, first_bad, joined
from ..codecs import Codec, get_codec
from ..errors import ConfigError
from ..methods import Method, Team
from ..methods.base import Model, Standing
from ..model.partition import RowPartition
from ..protocol.config import ServerConfig
from ..protocol.messages import Kind, Receipt
from ..protocol.states import (
    COUNTED,
    DRAINING,
    PULLING,
    RUNNING,
    STOPPING,
    TRAINING,
    WAITING,
)
from .aggregation import Aggregation
from .deadlines import Deadlines
from .member import Member

ACTIVE = (WAITING, PULLING, TRAINING, DRAINING)


class Shared:
    """The state of a server. ``master``: the model, flat float32 (elements,), changed in place.

    ``frozen``: values of the frozen parameters, flat float32; a model without them needs none.
    ``incarnation``: random 64-bit identity of this process. Raises `ConfigError` if the values of
    ``config`` cannot work, or the model is not finite.
    """

    def __init__(self, partition: RowPartition, master: Array, incarnation: int,
                 config: ServerConfig, frozen: Array | None = None) -> None:
        if not all_finite(master):
            raise ConfigError(f'parameter {partition.owner(first_bad(master))} of the model holds '
                              'NaN or infinite values; start from a model that is finite')
        self.partition, self.master, self.frozen = partition, master, frozen
        self.incarnation, self.config = incarnation, config
        self.codec: Codec = get_codec(config.transfer.codec)
        self.model = Model(partition, master, self.codec)
        self.aggregation = Aggregation(config.sync, self.model, Team(
            config.capacities, self.codec.name, config.momentum, config.clip, config.above))
        # maps each robot to the number of its pushes that were refused as implausible
        self.refused: Counter[str] = Counter()
        # maps a robot to the number of its pushes that were scaled down
        self.clipped: Counter[str] = Counter()
        self.state = RUNNING
        self.members: dict[str, Member] = {}
        # For each master row, the iteration of the newest push that carried this row.
        # A change by the parent fleet counts as a push of the present `iteration`.
        self.updated_at = np.zeros(partition.rows, np.int64)
        self.iteration = 0         # highest iteration pushed by any robot
        # After a restart of the server: for each robot, its incarnation and the receipt of its last
        # push, from the checkpoint.
        self.former_pushes: dict[str, tuple[int, Receipt]] = {}
        self.restarted = False     # whether the server has resumed and no robot has registered yet
        # After a restart, the server waits until this time for the robots that the method expects.
        self.missed_at = math.inf
        # Robots for which a restarted server no longer waits, unless they have registered again.
        self.missing: frozenset[str] = frozenset()
        self.deadlines = Deadlines(config.heartbeat_limit, config.patience)
        self.paused = False        # if true, no iteration is granted; transfers continue

    def grow(self) -> None:
        """Take up the rows of the frozen parameters, because a robot has unfrozen one of them."""
        if not self.partition.frozen:
            return
        assert self.frozen is not None, 'a model with frozen parameters needs their values'
        self.partition = self.partition.grown
        self.master = joined(self.master, self.frozen)
        self.model = Model(self.partition, self.master, self.codec)
        self.aggregation.grow(self.model)
        rows = self.partition.rows
        self.updated_at = _longer(self.updated_at, rows, 0)
        for member in self.members.values():
            member.mirror.grow(self.partition, self.master)
            member.versions = _longer(member.versions, rows, member.iteration)
            member.pulled_at = _longer(member.pulled_at, rows, member.iteration)
            member.trained = _longer(member.trained, rows, False)

    @property
    def method(self) -> Method:
        """The present method."""
        return self.aggregation.method

    @property
    def stopping(self) -> bool:
        """Whether the run is ending."""
        return self.state == STOPPING

    def living(self, robot: str) -> Member | None:
        """Return the member of this name; None if it is unknown, away or stopped."""
        member = self.members.get(robot)
        return member if member is not None and member.alive else None

    def is_member(self, robot: str, incarnation: int) -> bool:
        """Return whether this process of the robot is a member that is neither away nor stopped."""
        member = self.members.get(robot)
        return member is not None and member.incarnation == incarnation and member.alive

    def active(self) -> list[Member]:
        """Return the members that take part in training; see `rog_core.server.machine`."""
        return [m for m in self.members.values() if m.state in ACTIVE and m.place == COUNTED]

    def standings(self) -> dict[str, Standing]:
        """Return the progress of the active members, in the form that a method receives."""
        return {m.robot: m.standing for m in self.active()}

    def start_iteration(self, bound: float) -> int:
        """Return the highest iteration at which a new member neither waits nor delays a member."""
        slowest = [m.slowest for m in self.active()]
        if not slowest:
            return self.iteration
        newest = max(m.iteration for m in self.active())
        return newest if math.isinf(bound) else int(min(newest, min(slowest) + bound - 1))

    def count_slowest(self, member: Member) -> None:
        """Set ``member.slowest`` to the iteration of its oldest row.

        If the method does not count staleness by row, set it to the iteration of the member.
        """
        member.slowest = int(member.versions.min()) if self.method.by_row else member.iteration

    def partition_of(self, kind: Kind) -> RowPartition:
        """Return the partition whose segments a transfer of this kind carries."""
        return self.partition.raw_partition if kind.is_raw else self.partition


def _longer(values: np.ndarray, size: int, value: int) -> np.ndarray:
    return np.append(values, np.full(size - values.size, value, values.dtype))
