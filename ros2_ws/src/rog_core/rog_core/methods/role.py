"""What every role of a method knows: its name, arguments and options, the bound, and the team.

A method consists of three roles. Its *gate* (`rog_core.methods.gate`) says which robots may go on,
its *orders* (`rog_core.methods.orders`) which rows a robot sends and what it computes, and its
*update* (`rog_core.methods.update`) how pushes change the model and what a checkpoint keeps.
`rog_core.methods.base.Method` puts them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from ..codecs import Codec
from ..errors import ConfigError
from ..model.partition import RowPartition
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
    master: np.ndarray
    codec: Codec

    def zeros(self) -> np.ndarray:
        """Return zeros of the size of the model, float32 (elements,)."""
        return np.zeros_like(self.master)


class Role:
    """The base of the three roles.

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

    def __init__(self, spec: MethodSpec, team: Team) -> None:
        self.spec, self.team = spec, team
        self.options, self.numbers = spec.options(
            self.known, self.by_default(spec), self.numbered(), self.ranges())
        self.bound, self.most = self._two_numbers(self.bounds())

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
