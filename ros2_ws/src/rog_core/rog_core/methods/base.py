"""The base class of synchronisation methods.

A server asks its method four questions:

- Which robots may start their next iteration?
- What does a robot compute, and which rows does it send?
- How does a finished push change the master rows?
- What must a checkpoint contain?

`Method` answers every question as BSP does. Other methods are subclasses that override some
answers. A worker runs no code of a method: the server sends it numbers and the name of a step
(`rog_core.protocol.steps`).

The code does no I/O and reads no clock: it gets times as arguments, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from ..arrays import Array, joined, zeros_like
from ..codecs import Codec
from ..errors import ConfigError
from ..model.partition import RowPartition
from ..protocol.messages import Sending
from ..protocol.steps import Gradient, Step
from ..transfer.plan import SECOND, minimum_transmission
from .method_spec import EARLY, MethodSpec, suffix


@dataclass(frozen=True)
class Standing:
    """The progress of one robot, as a method sees it.

    ``iteration``: the last iteration that the robot has pushed. ``slowest``: the iteration
    of the robot's oldest row at the server; this equals ``iteration`` if staleness is not
    counted by row. ``rate``: measured throughput in bytes per second. ``loss``: loss of the
    robot's last batch; NaN if unknown.
    """

    iteration: int
    slowest: int
    rate: float = 0.0
    loss: float = float('nan')


Fleet = Mapping[str, Standing]


@dataclass(frozen=True)
class Team:
    """What the server knows about a fleet before training; a method may refuse the fleet.

    ``capacities`` maps each robot to its computing capacity, in order of rank; it is empty if
    any robot is allowed to join. ``codec``: name of the fleet's codec. ``momentum``:
    coefficient for methods that keep the momentum on the server. ``clip``: see
    `rog_core.server.push_filter`; with 0, pushes are never scaled down. ``above``: whether
    the fleet has a parent fleet, which changes the model between two pushes.
    """

    capacities: Mapping[str, float] = field(default_factory=dict)
    codec: str = 'raw'
    momentum: float = 0.0
    clip: float = 0.0
    above: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ConfigError(f'momentum is {self.momentum}; it must be at least 0 and below 1')

    def require_alone(self, text: str) -> None:
        """Raise `ConfigError`, which names the method ``text``, if the fleet has a parent fleet."""
        if self.above:
            raise ConfigError(f"'{text}' computes the gradients of a round on one model, which the "
                              'parent fleet may change meanwhile; choose another method, or train '
                              'without upstream')

    def require_robot(self, name: str) -> None:
        """Raise `ConfigError` if the robots are known and none of them is called ``name``."""
        if self.capacities and name not in self.capacities:
            raise ConfigError(f'robot must be one of {", ".join(self.capacities)}, got {name}')


@dataclass(frozen=True)
class Model:
    """The model on the server; ``master``: the master rows, flat float32 (elements,)."""

    partition: RowPartition
    master: Array
    codec: Codec

    def zeros(self) -> Array:
        """Return zeros of the size of the model, float32 (elements,)."""
        return zeros_like(self.master)


@dataclass(frozen=True)
class Contribute:
    """A change to make now: apply a robot's whole push, which the method has stored."""

    robot: str


@dataclass(frozen=True)
class EndRound:
    """A change to make now: end the round, because every robot has contributed once."""


@dataclass(frozen=True)
class Decode:
    """A change to make now: decode a round of coded gradients.

    ``coefficients`` maps each robot to the factor of its push. The pushes times their factors add
    up to the sum of the gradients of all ``shards`` shards of the data.
    """

    coefficients: dict[str, float]
    shards: int


@dataclass(frozen=True)
class Discard:
    """A change to make now: drop the pushes of these robots, because their round is over."""

    robots: tuple[str, ...]


Due = Contribute | EndRound | Decode | Discard


class Method:
    """BSP: all robots push all rows, then start the next iteration; base of all other methods.

    ``spec``: the parsed name, arguments and options. ``team``: see `Team`. Raises `ConfigError` if
    arguments or options are invalid, or if the method does not fit the team.

    ``bound``: the staleness bound in iterations. A robot at iteration n waits while
    n - slowest >= bound, where slowest is the lowest `Standing.slowest` of the fleet. If the bound
    is infinity, no robot waits. ``most``: the largest value of ``bound`` during the run.
    """

    name: ClassVar[str] = 'bsp'
    usage: ClassVar[str] = 'bsp'                  # how users write the method
    # Names of the method's options, in the order in which `named` writes them.
    known: ClassVar[tuple[str, ...]] = ('svrg',)

    # After a restart, the server waits for these robots until the heartbeat limit has passed.
    expected: frozenset[str] = frozenset()

    def __init__(self, spec: MethodSpec, team: Team) -> None:
        self.spec, self.team = spec, team
        self.options, self.numbers = spec.options(
            self.known, self.by_default(spec), self.numbered(), self.ranges())
        self.bound, self.most = self._two_numbers(self.bounds())
        self.model: Model | None = None

    # -- name, arguments and options -------------------------------------------------------------

    @classmethod
    def by_default(cls, spec: MethodSpec) -> frozenset[str]:
        """Return the options that are on unless the user switches them off."""
        return frozenset()

    @classmethod
    def numbered(cls) -> tuple[str, ...]:
        """Return the options that have a whole number as their value."""
        return ('svrg',)

    @classmethod
    def ranges(cls) -> Mapping[str, tuple[float, float]]:
        """Return the options that have a real number as their value, with its allowed range.

        A range is (lowest value, highest value).
        """
        return {}

    def bounds(self) -> tuple[float, float]:
        """Read the arguments; return the values of ``bound`` and ``most``."""
        if self.spec.arguments:
            raise ConfigError(f"'{self.spec.text}': {self.spec.name} takes no threshold")
        return 1, 1

    def _two_numbers(self, given: Any) -> tuple[float, float]:
        if isinstance(given, (tuple, list)) and len(given) == 2 \
                and all(isinstance(number, Real) for number in given):
            return given[0], given[1]
        raise ConfigError(f"'{self.spec.text}': bounds() must return two numbers, bound and most, "
                          f'got {given!r}')

    def __str__(self) -> str:
        """Return the name with arguments and options, for people and logs."""
        return self.asked

    def named(self, *arguments: object) -> str:
        """Return this method's name with the given arguments and its non-default options."""
        options = [text if (number := self.numbers.get(text[1:])) is None else
                   f'{text}={number:.9g}' for text
                   in suffix(self.known, self.options, self.by_default(self.spec))]
        return ':'.join(map(str, (self.spec.name, *arguments))) + ''.join(options)

    @cached_property
    def asked(self) -> str:
        """The text (name, arguments, options) from which a restarted server builds this method."""
        return self.named(*self.spec.arguments)

    # -- who may take part, who may continue -----------------------------------------------------

    @property
    def early(self) -> bool:
        """Whether a transfer may end before all rows have been sent (ATP)."""
        return bool(self.options & EARLY)

    @property
    def by_row(self) -> bool:
        """Whether staleness is counted for every row.

        Otherwise staleness is counted for each robot, in iterations. The two counts differ only
        if some transfers left rows unsent. After a change of the method, transfers of the
        previous method can be among them.
        """
        return not self.early

    @property
    def row_bound(self) -> float:
        """Staleness bound of every row of a robot; infinity if staleness is not counted by row."""
        return self.bound if self.by_row else float('inf')

    def refusal(self, robot: str) -> str:
        """Return why this robot cannot take part; empty if it can."""
        return ''

    def unfit(self, model: Model) -> str:
        """Return why this method cannot train this model; empty if it can."""
        return ''

    def on_join(self, robot: str) -> list[Due]:
        """Handle a robot that joins or rejoins; a push that it has not finished will not continue.

        A method that applies only complete pushes drops the unfinished push. Returns the changes
        that the server must now make to the model.
        """
        return []

    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        """Handle the end of a push; ``fleet`` is the progress after this push."""

    def on_wait(self, robot: str, seconds: float) -> None:
        """Handle the end of a wait: a robot has waited ``seconds`` for other robots."""

    def held_up_by(self, robot: str, fleet: Fleet, least: float = 0.0) -> list[str]:
        """Return the robots for which this robot must wait; empty if this robot may continue.

        ``least``: lower limit of the bound. After a change to a method with a smaller bound, the
        old bound still applies until every robot has pushed under the new method.
        """
        if self.at_barrier(robot, fleet):  # a barrier counts iterations, not rows
            own = fleet[robot].iteration
            return [name for name, other in fleet.items() if other.iteration < own]
        behind = self.behind(robot, fleet, max(self.bound_of(robot), least))
        here = fleet[robot]
        if robot in behind and here.iteration - here.slowest < max(self.bound, least):
            # The robot's own rows are no reason to wait: `sending` allows rows of this age.
            behind.remove(robot)
        return behind

    def bound_of(self, robot: str) -> float:
        """Return the staleness bound of this robot.

        A method may set a different bound for each robot.
        """
        return self.bound

    def at_barrier(self, robot: str, fleet: Fleet) -> bool:
        """Return whether this robot must wait until all other robots reach its iteration."""
        return False

    @staticmethod
    def behind(robot: str, fleet: Fleet, bound: float) -> list[str]:
        """Return the robots whose slowest row is ``bound`` or more iterations behind ``robot``."""
        iteration = fleet[robot].iteration
        return [name for name, other in fleet.items() if iteration - other.slowest >= bound]

    @property
    def deadline(self) -> float:
        """Time in seconds at which the server must call `on_time`; infinity means never."""
        return math.inf

    def on_time(self, now: float) -> None:
        """Update the method at the time `deadline`.

        After this call, the server checks which robots may continue.
        """

    # -- what a robot computes and sends ---------------------------------------------------------

    @property
    def pipelined(self) -> bool:
        """Whether a robot computes its next gradient during the transfer; see `goes_ahead`."""
        return 'pipeline' in self.options

    def goes_ahead(self, staleness: int) -> bool:
        """Return whether a robot may compute its next gradient while its push is under way.

        ``staleness``: present staleness of the robot, in iterations.
        """
        return self.pipelined and staleness + 1 < self.bound

    @property
    def shrinks(self) -> bool:
        """Whether a transfer uses `rog_core.codecs.SMALLER` if the fleet's codec needs too long.

        The fleet's codec needs too long if the mandatory rows would take longer than
        `Command.patience`.
        """
        return 'sparse' in self.options

    @property
    def time_limited(self) -> bool:
        """Whether a transfer stops at the end of the MTA time; otherwise all its rows are sent."""
        return 'timeout' in self.options

    def sending(self) -> Sending:
        """Return the rules by which rows are chosen for a transfer, in either direction."""
        if not self.early:
            return Sending()
        mta = minimum_transmission(int(self.bound))
        minimum = mta if 'minimum' in self.options else 0.0
        if 'second' in self.options:
            minimum += max((more for least, more in SECOND if self.bound >= least), default=0.0)
        return Sending(min(minimum, 1.0), int(self.bound) if self.by_row else 0,
                       'order' in self.options, 0.0 if 'minimum' in self.options else mta)

    def grant(self, robot: str, iteration: int) -> tuple[int, Step]:
        """Return the iteration and the step that a robot computes after it pushed ``iteration``."""
        return iteration + 1, Gradient()

    # -- how a push changes the model ------------------------------------------------------------

    def begin(self, model: Model, iteration: int) -> None:
        """Start to train this model; ``iteration``: highest iteration pushed or granted so far."""
        self.model = model

    def grow(self, model: Model) -> None:
        """Continue with ``model``, to which the rows of the frozen parameters were added."""
        former = self.arrays()
        self.model = model
        self.load_arrays({name: joined(values, zeros_like(model.master[len(values):]))
                          for name, values in former.items()})

    def takes(self, step: Step) -> bool:
        """Return whether this method accepts a push whose gradient was computed with this step."""
        return step.additive

    def in_time(self, robot: str, iteration: int) -> bool:
        """Return whether the server may still use a push of this iteration.

        If not, the server ends the push early.
        """
        return True

    def take(self, robot: str, ids: np.ndarray, codec: Codec, data: np.ndarray, robots: int
             ) -> None:
        """Apply some checked rows of a push; the fleet has ``robots`` robots.

        Subtracts the rows, divided by ``robots``, from the master rows (ROG, Algorithm 2, line 6).
        """
        model = self.held_model
        codec.add(model.partition, model.master, ids, data, -1.0 / robots)

    def close(self, robot: str, complete: bool, fleet: Fleet, now: float) -> list[Due]:
        """Handle the end of a push; ``complete``: the server has received all rows.

        Returns the changes that the server must now make to the model.
        """
        self.on_push(robot, fleet, now)
        return []

    def take_full_gradient(self, robot: str, iteration: int, ids: np.ndarray, data: np.ndarray
                           ) -> None:
        """Store some rows (raw, already checked) of a robot's full gradient; see step `Full`."""

    def close_full_gradient(self, robot: str, iteration: int, complete: bool) -> None:
        """Handle the end of a push of a full gradient; ``complete``: all rows have arrived."""

    def full_gradient_for(self, iteration: int, current: bool) -> Array | None:
        """Return the fleet's full gradient, to be sent instead of a pull; None: send a pull.

        ``iteration``: the last iteration that the robot has pushed. ``current``: whether the robot
        has the model of that iteration.
        """
        return None

    def dues(self, fleet: Fleet, gone: frozenset[str]) -> list[Due]:
        """Return the changes to make to the model now; the server calls this after every event.

        ``gone``: robots that have left, are away or are retired, and robots that have not
        registered again after a restart of the server.
        """
        return []

    def carry_out(self, due: Due, robots: int) -> None:
        """Make one change ``due`` to the model; the fleet has ``robots`` robots, at least 1."""

    def flush(self, robots: int) -> None:
        """Apply all stored pushes to the model, because the method or the run ends."""

    @property
    def held_model(self) -> Model:
        """The model given to `begin`."""
        assert self.model is not None, 'begin() comes first'
        return self.model

    # -- restart ---------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the JSON values that a checkpoint must contain to resume this method."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Resume from the values that `state` returned.

        Raises TypeError or ValueError if the values do not fit this method.
        """

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that a checkpoint must contain, by name; each float32 (elements,)."""
        return {}

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        """Resume from the arrays that `arrays` returned."""


class Holding(Method):
    """Base of methods that store each push and apply it later.

    For example, a method may apply all pushes at the end of a round.
    """

    @override
    def begin(self, model: Model, iteration: int) -> None:
        super().begin(model, iteration)
        # For each robot: sum of its pushed rows, float32 (elements,).
        self.held: dict[str, Array] = {}

    @override
    def take(self, robot: str, ids: np.ndarray, codec: Codec, data: np.ndarray, robots: int
             ) -> None:
        model = self.held_model
        if robot not in self.held:
            self.held[robot] = model.zeros()
        codec.add(model.partition, self.held[robot], ids, data, 1.0)

    @override
    def arrays(self) -> dict[str, Array]:
        return {f'held/{name}': held for name, held in self.held.items()}

    @override
    def load_arrays(self, arrays: dict[str, Array]) -> None:
        self.held = {name.removeprefix('held/'): value for name, value in arrays.items()
                     if name.startswith('held/')}


class Rolling(Holding):
    """Base of methods that store each push and keep the momentum on the server."""

    @override
    def begin(self, model: Model, iteration: int) -> None:
        super().begin(model, iteration)
        self.velocity = model.zeros()

    @override
    def arrays(self) -> dict[str, Array]:
        return {'velocity': self.velocity, **super().arrays()}

    @override
    def load_arrays(self, arrays: dict[str, Array]) -> None:
        super().load_arrays(arrays)
        self.velocity = arrays.get('velocity', self.velocity)
