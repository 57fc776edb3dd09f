"""A synchronisation method: everything that makes it different from the others.

The server asks its method who may go on, what a worker is told (which rows travel, which step it
computes next), how a finished push changes the master rows, and what is kept across a restart.
`Method` answers every question as BSP does; a method of its own overrides what differs, in one
file. Workers know nothing of methods: they are told plain numbers and the name of a step.

No I/O, no clock: times come in as arguments, in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ..arrays import Array, zeros_like
from ..codecs import Codec
from ..errors import ConfigError
from ..messages import Sending
from ..partition import RowPartition
from ..steps import Gradient, Step
from ..transfer.plan import SECOND, minimum_transmission
from .written import EARLY, Written, suffix


@dataclass(frozen=True)
class Standing:
    """What a method knows of one robot.

    ``iteration``: last one pushed. ``slowest``: iteration of its oldest row (of all, where
    staleness does not count by row). ``rate``: measured throughput, bytes/s. ``loss``: that of its
    last batch; NaN: unknown.
    """

    iteration: int
    slowest: int
    rate: float = 0.0
    loss: float = float('nan')


Fleet = Mapping[str, Standing]


@dataclass(frozen=True)
class Team:
    """What is known of a fleet before it trains, and what a method may refuse.

    ``capacities``: robot -> computing capacity, in order of rank; empty: anybody may join.
    ``codec``: name of the fleet's. ``momentum``: of the methods where it is the server's.
    """

    capacities: Mapping[str, float] = field(default_factory=dict)
    codec: str = 'raw'
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ConfigError(f'momentum is {self.momentum}; it must be at least 0 and below 1')


@dataclass(frozen=True)
class Model:
    """The model that pushes change: its master rows, flat float32 (elements,)."""

    partition: RowPartition
    master: Array
    codec: Codec

    def zeros(self) -> Array:
        """Return storage of the size of the model, float32 (elements,), all 0."""
        return zeros_like(self.master)


@dataclass(frozen=True)
class Contribute:
    """Due: the push of this robot counts now, whole."""

    robot: str


@dataclass(frozen=True)
class EndRound:
    """Due: every robot has contributed once since the last such change."""


@dataclass(frozen=True)
class Decode:
    """Due: robot -> coefficient; with these the coded pushes sum to ``shards`` gradients."""

    coefficients: dict[str, float]
    shards: int


@dataclass(frozen=True)
class Discard:
    """Due: what these robots have pushed does not count; it is of a round that is over."""

    robots: tuple[str, ...]


Due = Contribute | EndRound | Decode | Discard


class Method:
    """BSP: all rows of all robots, one iteration after the other; and what all have in common.

    ``written``: as the user wrote it; ``team``: see `Team`. Raises `ConfigError` where arguments or
    options make no sense, or the method does not fit the team.

    ``bound``: a robot at iteration n waits while n - slowest >= bound (iterations; infinity:
    never). ``most``: the loosest bound that the method may come to allow.
    """

    name: ClassVar[str] = 'bsp'
    usage: ClassVar[str] = 'bsp'                  # how it is written
    known: ClassVar[tuple[str, ...]] = ('svrg',)  # its options, in the order in which they stand

    # Robots that a restarted server waits for, until they have had the time to come back.
    expected: frozenset[str] = frozenset()

    def __init__(self, written: Written, team: Team) -> None:
        self.written, self.team = written, team
        self.options, self.numbers = written.options(
            self.known, self.by_default(written), self.numbered())
        self.bound, self.most = self.bounds()
        self.model: Model | None = None

    # -- how it is written -----------------------------------------------------------------------

    @classmethod
    def by_default(cls, written: Written) -> frozenset[str]:
        """Return the options that are on unless they are switched off."""
        return frozenset()

    @classmethod
    def numbered(cls) -> tuple[str, ...]:
        """Return the options that may be given a number."""
        return ('svrg',)

    def bounds(self) -> tuple[float, float]:
        """Read the arguments; return ``bound`` and ``most``."""
        if self.written.arguments:
            raise ConfigError(f"'{self.written.text}': {self.written.name} takes no threshold")
        return 1, 1

    def __str__(self) -> str:
        """Return the name, every option in its place, as people are told."""
        return self.named(*self.written.arguments)

    def named(self, *arguments: object) -> str:
        """Return the name of this method with these arguments and its own options."""
        options = [text + f'={number}' if (number := self.numbers.get(text[1:])) else text for text
                   in suffix(self.known, self.options, self.by_default(self.written))]
        return ':'.join(map(str, (self.written.name, *arguments))) + ''.join(options)

    @property
    def asked(self) -> str:
        """Name to begin again with, after a restart."""
        return self.named(*self.written.arguments)

    # -- who may take part, who may go on --------------------------------------------------------

    @property
    def early(self) -> bool:
        """Whether transfers stop early (ATP); else all rows travel, always."""
        return bool(self.options & EARLY)

    @property
    def by_row(self) -> bool:
        """Whether staleness counts for every row, instead of for a robot's iterations.

        Where all rows travel it is the same, but for rows left behind by a former method.
        """
        return not self.early

    @property
    def row_bound(self) -> float:
        """Bound that every row of a robot keeps if its pushes follow this method."""
        return self.bound if self.by_row else float('inf')

    def refusal(self, robot: str) -> str:
        """Why this robot cannot take part; empty: it can."""
        return ''

    def on_join(self, robot: str) -> list[Due]:
        """A robot joins or comes back, or its push broke off; what it had pushed does not count.

        Returns the changes of the model that this makes due.
        """
        return []

    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        """A robot has pushed; ``fleet`` counts it."""

    def on_wait(self, robot: str, seconds: float) -> None:
        """A robot has waited so long for others before it might go on."""

    def held_up_by(self, robot: str, fleet: Fleet, least: float = 0.0) -> list[str]:
        """Robots for whom this one must wait; empty: it may go on.

        ``least``: a looser bound that still holds, from before the method was changed.
        """
        if self.at_barrier(robot, fleet):  # who is here may have left rows behind
            own = fleet[robot].iteration
            return [name for name, other in fleet.items() if other.iteration < own]
        return self.behind(robot, fleet, max(self.bound_of(robot), least))

    def bound_of(self, robot: str) -> float:
        """Iterations by which this robot may not yet be ahead of the slowest."""
        return self.bound

    def at_barrier(self, robot: str, fleet: Fleet) -> bool:
        """Whether all must have come as far as this robot, in iterations."""
        return False

    @staticmethod
    def behind(robot: str, fleet: Fleet, bound: float) -> list[str]:
        """Robots whose slowest row is ``bound`` or more iterations behind this one."""
        iteration = fleet[robot].iteration
        return [name for name, other in fleet.items() if iteration - other.slowest >= bound]

    # -- what a robot is told --------------------------------------------------------------------

    @property
    def pipelined(self) -> bool:
        """Whether a robot computes the next gradient while rows travel, within the bound."""
        return 'pipeline' in self.options

    @property
    def shrinks(self) -> bool:
        """Whether rows go out in the smaller code when the fleet has no time for the ordinary."""
        return 'sparse' in self.options

    @property
    def time_limited(self) -> bool:
        """Whether a transfer stops when the MTA time is over; else all its rows travel."""
        return 'timeout' in self.options

    def sending(self) -> Sending:
        """Return which rows a transfer carries, in either direction."""
        if not self.early:
            return Sending()
        mta = minimum_transmission(int(self.bound))
        minimum = mta if 'minimum' in self.options else 0.0
        if 'second' in self.options:
            minimum += max((more for least, more in SECOND if self.bound >= least), default=0.0)
        return Sending(min(minimum, 1.0), int(self.bound) if self.by_row else 0,
                       'order' in self.options, 0.0 if 'minimum' in self.options else mta)

    def grant(self, robot: str, iteration: int) -> tuple[int, Step]:
        """Return what a robot that has pushed ``iteration`` computes next: iteration and step."""
        return iteration + 1, Gradient()

    # -- how a push counts -----------------------------------------------------------------------

    def begin(self, model: Model, iteration: int) -> None:
        """Take over a model, from a fleet whose highest iteration, pushed or granted, is this."""
        self.model = model

    def takes(self, step: Step) -> bool:
        """Whether a push of a robot that was told this step counts under this method."""
        return step.additive

    def in_time(self, robot: str, iteration: int) -> bool:
        """Whether a push of this iteration still counts."""
        return True

    def take(self, robot: str, ids: np.ndarray, codec: Codec, data: np.ndarray, robots: int
             ) -> None:
        """Take some checked rows of a push; there are ``robots`` robots.

        The master rows fall by the mean of what the robots push (ROG, Algorithm 2, line 6).
        """
        model = self.held_model
        codec.add(model.partition, model.master, ids, data, -1.0 / robots)

    def close(self, robot: str, whole: bool, fleet: Fleet, now: float) -> list[Due]:
        """The push of a robot is over; ``whole``: the server has all of it.

        Returns the changes of the model that are due because of it alone.
        """
        self.on_push(robot, fleet, now)
        return []

    def take_whole(self, robot: str, iteration: int, ids: np.ndarray, data: np.ndarray) -> None:
        """Take some checked rows of what travels whole (`rog_core.steps.Full`), raw."""

    def close_whole(self, robot: str, iteration: int, whole: bool) -> None:
        """Such a transfer is over; ``whole``: the server has all of it."""

    def whole_for(self, iteration: int, current: bool) -> Array | None:
        """What a robot that has pushed ``iteration`` gets whole instead of rows; None: rows.

        ``current``: it holds the model of that iteration.
        """
        return None

    def dues(self, fleet: Fleet, gone: frozenset[str]) -> list[Due]:
        """Return the changes of the model that are due now, after any event.

        ``gone``: robots that were there and left.
        """
        return []

    def carry_out(self, due: Due, robots: int) -> None:
        """Change the model; there are ``robots`` robots, at least 1."""

    def flush(self, robots: int) -> None:
        """Let everything count that is held: the method, or the run, is over."""

    @property
    def held_model(self) -> Model:
        """The model that it has taken over."""
        assert self.model is not None, 'begin() comes first'
        return self.model

    # -- restart ---------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what a restarted server needs to go on, as plain values (JSON)."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned; TypeError or ValueError if it is not of this method."""

    def arrays(self) -> dict[str, Array]:
        """Return the same of arrays, by name; float32 (elements,) each."""
        return {}

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        """Take up what `arrays` returned."""


class Holding(Method):
    """A method that keeps pushes until their turn; momentum is the server's."""

    def begin(self, model: Model, iteration: int) -> None:
        """See `Method.begin`."""
        super().begin(model, iteration)
        self.held: dict[str, Array] = {}  # robot -> what it has pushed, float32 (elements,)
        self.velocity = model.zeros()

    def take(self, robot: str, ids: np.ndarray, codec: Codec, data: np.ndarray, robots: int
             ) -> None:
        """See `Method.take`."""
        model = self.held_model
        if robot not in self.held:
            self.held[robot] = model.zeros()
        codec.add(model.partition, self.held[robot], ids, data, 1.0)

    def arrays(self) -> dict[str, Array]:
        """See `Method.arrays`."""
        return {'velocity': self.velocity,
                **{f'held/{name}': held for name, held in self.held.items()}}

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        """See `Method.load_arrays`."""
        self.velocity = arrays.get('velocity', self.velocity)
        self.held = {name.removeprefix('held/'): value for name, value in arrays.items()
                     if name.startswith('held/')}


