"""Gradient coding in rounds: a round ends as soon as the server can decode its pushes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from typing_extensions import override

from ...arrays import difference_magnitude
from ...codecs import RAW
from ...errors import ConfigError
from ...protocol.steps import Shards, Step
from ..base import Fleet, Method, Model, Rolling, Team
from ..method_spec import MethodSpec
from .schemes import Scheme

# Default arguments: stragglers per group, number of groups, rounds between two regroupings. With 0
# groups, `Scheme` chooses the number.
DEFAULTS = (1, 0, 50)


class Coded(Rolling, Method):
    """Base of GC, HGC, GCC, DCGC and DGH-GC: all robots compute on the same model, in rounds.

    ``gc[:S[:K[:B]]]``: each group tolerates S stragglers. GCC, DCGC and DGH-GC form K groups.
    DGH-GC regroups its robots every B rounds, DCGC after every round (see `Scheme`).

    A round is an iteration. It ends when its pushes can be decoded to the mean gradient of all
    shards; a single coded gradient is useless by itself. A robot that has not pushed when the
    round ends is a straggler: the server ends its push early, and the robot continues with the
    present round. If too many robots leave, the pushes of a round can never be decoded. The papers
    do not treat this case. Here the server gives up the round and makes a new code for the
    remaining robots. If a robot comes back, the code of the next round includes it again.
    """

    known = ('feedback',)

    def __init__(self, spec: MethodSpec, team: Team) -> None:
        super().__init__(spec, team)
        if not team.capacities:
            raise ConfigError(f"'{self}' codes gradients for a fleet that is known from the "
                              'beginning; give the server the robots of the fleet with their '
                              'capacities, as fleet files do')
        if team.clip:
            raise ConfigError(f"'{self}' decodes sums of coded gradients, which is wrong as soon "
                              'as one of them is scaled down; choose another method, or '
                              'server.clip: 0')
        team.require_alone(spec.text)
        stragglers, groups, every = self.numbers_of_code()
        self._names = list(team.capacities)
        self.expected = frozenset(team.capacities)
        self._rank = {name: rank for rank, name in enumerate(self._names)}
        try:
            self._scheme = Scheme(self.name, list(team.capacities.values()), stragglers, groups,
                                  every)
        except ConfigError as error:  # the error names only ranks, so add the robots' names
            names = ', '.join(f'{n} {c:g}' for n, c in team.capacities.items())
            raise ConfigError(f"'{self}': {error}. The capacities are {names}") from error
        self._there = frozenset(self._rank.values())  # ranks of the robots in the present code
        self._round = 1
        self._received: list[int] = []  # ranks of the received pushes, in order of arrival
        self._late: list[str] = []
        self._broken: set[str] = set()  # robots whose push was dropped while they were gone

    @classmethod
    @override
    def by_default(cls, spec: MethodSpec) -> frozenset[str]:
        return frozenset({'feedback'})

    @override
    def bounds(self) -> tuple[float, float]:
        self.numbers_of_code()
        return 1, 1

    def numbers_of_code(self) -> tuple[int, int, int]:
        """Return three numbers: stragglers per group, groups, and rounds between regroupings."""
        spec = self.spec
        if len(spec.arguments) > len(DEFAULTS):
            raise ConfigError(f"'{spec.text}' must have at most stragglers, groups and rounds, "
                              'for example dgh-gc:1:3:50')
        given = [spec.integer(a, low)
                 for a, low in zip(spec.arguments, (0, 0, 1), strict=False)]
        stragglers, groups, every = (*given, *DEFAULTS[len(given):])
        return stragglers, groups, every

    @override
    def begin(self, model: Model, iteration: int) -> None:
        super().begin(model, iteration)
        self._round = iteration + 1

    @override
    def refusal(self, robot: str) -> str:
        if robot in self._rank:
            return ''
        return f"'{self}' codes only for its robots, {', '.join(self._names)}, got '{robot}'"

    @override
    def on_join(self, robot: str) -> None:
        self._broken.discard(robot)
        if self._rank[robot] in self._received:
            self._received.remove(self._rank[robot])
        self.discard(robot)

    @override
    def in_time(self, robot: str, iteration: int) -> bool:
        return iteration == self._round

    @override
    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        if fleet[robot].iteration == self._round:
            self._received.append(self._rank[robot])
        else:
            self._late.append(robot)

    @override
    def settle(self, fleet: Fleet, gone: frozenset[str], robots: int) -> None:
        lost = self._ranks(gone).difference(self._received)
        self._broken.update(self._named(lost))
        self.discard(*self._late, *self._named(lost))
        self._late = []
        present = frozenset(self._rank.values()) - lost
        code = self._scheme.code
        coefficients = code.decode(self._received) if self._received else None
        if coefficients is not None:
            names = {self._names[rank]: value for rank, value in coefficients.items()}
            self.decode(names, code.shards)
            self._scheme.round_over(self._prompt())
            if present - self._there:  # a robot has come back
                self._restrict(present)
        elif present and code.decode(present & self._there) is None:
            self._restrict(present)
            self.discard(*self._named(self._received))
        else:
            return
        self._received.clear()
        self._round += 1

    def _prompt(self) -> list[int]:
        """Return the ranks that pushed first in this round; all other ranks count as stragglers.

        The number of stragglers is fixed: it is the number that all groups together tolerate.
        The pushes that are missing at the end of the round do not show all stragglers. If a group
        has more than S stragglers, the round continues until only S of its pushes are missing.
        """
        code = self._scheme.code
        return self._received[:len(self._there) - len(code.groups) * code.stragglers]

    def _restrict(self, present: frozenset[int]) -> None:
        self._scheme.restrict(set(present))
        self._there = present

    def _ranks(self, robots: Iterable[str]) -> frozenset[int]:
        return frozenset(self._rank[name] for name in robots if name in self._rank)

    def _named(self, ranks: Iterable[int]) -> tuple[str, ...]:
        return tuple(self._names[rank] for rank in sorted(ranks))

    @override
    def held_up_by(self, robot: str, fleet: Fleet, least: float = 0.0) -> list[str]:
        rank = self._rank[robot]
        if rank in self._there and rank not in self._received:
            return []
        return list(self._named(self._scheme.code.missing(self._received)))

    @override
    def grant(self, robot: str, iteration: int) -> tuple[int, Step]:
        code = self._scheme.code
        shards, weights = code.assignment(self._rank[robot])
        return self._round, Shards(code.shards, tuple(shards.tolist()), tuple(weights.tolist()),
                                   'feedback' in self.options)

    # -- decoding --------------------------------------------------------------------------------

    @override
    def takes(self, step: Step) -> bool:
        return isinstance(step, Shards)

    @override
    def pushed(self, robot: str, complete: bool, fleet: Fleet, now: float) -> None:
        broken = robot in self._broken
        self._broken.discard(robot)
        if broken or not complete and self.in_time(robot, fleet[robot].iteration):
            self.on_join(robot)  # an incomplete push is dropped
        else:
            super().pushed(robot, complete, fleet, now)

    def discard(self, *robots: str) -> None:
        """Drop the pushes of these robots."""
        for robot in robots:
            self.held.pop(robot, None)

    def decode(self, coefficients: Mapping[str, float], shards: int) -> None:
        """Decode a round (DGH-GC, equation 1); here the server also applies the momentum.

        ``coefficients`` maps each robot to the factor of its push. The pushes times their factors
        add up to the sum of the gradients of all ``shards`` shards of the data.
        """
        self.velocity *= np.float32(self.team.momentum)
        for robot, coefficient in coefficients.items():
            self.velocity += np.float32(coefficient / shards) * self.held.pop(robot)
        master, codec = self.held_model.master, self.held_model.codec
        exact = 'feedback' in self.options or codec is RAW
        master -= self.velocity if exact else self._coded_once()

    def _coded_once(self) -> np.ndarray:
        """Return the server's momentum after encoding and decoding it once (equation 22).

        There is no error feedback.
        """
        model = self.held_model
        rows, out = model.partition, model.zeros()
        magnitude = difference_magnitude(self.velocity, out, rows.offsets)
        ids = np.arange(rows.segments)
        values = model.codec.difference(rows, self.velocity, out, ids, magnitude)
        model.codec.add(rows, out, ids, values)
        return out

    # -- restart ---------------------------------------------------------------------------------

    @override
    def state(self) -> dict[str, Any]:
        return {'round': self._round}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        self._round = int(state.get('round', self._round))
