"""Rounds of coded gradients: the server goes on once the pushes of a round can be decoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .errors import ConfigError
from .messages import Work
from .policy import Fleet, Policy
from .schemes import Scheme
from .sync import SyncMethod
from .update import Decode, Discard, Step


class CodedRounds(Policy):
    """GC, HGC, GCC, DCGC, DGH-GC: all compute on the same model; stragglers are not waited for.

    A round is an iteration. It is over when what has been pushed of it can be decoded; who is still
    computing then is a straggler: its push is cut short, and it goes on with the round that is open
    then. When so many robots have left that a round can never be decoded, it is given up and the
    code made anew for those that are there (the papers say nothing of that); it counts everybody
    again from the round after their return.
    """

    def __init__(self, method: SyncMethod, capacities: Mapping[str, float]) -> None:
        super().__init__(method)
        if not capacities:
            raise ConfigError(f"'{method}' codes gradients for a fleet that is known from the "
                              'beginning; give the server the robots of the fleet with their '
                              'capacities, as fleet files do')
        stragglers, groups, every = method.coding
        self._names = list(capacities)
        self.expected = frozenset(capacities)
        self._rank = {name: rank for rank, name in enumerate(self._names)}
        try:
            self._scheme = Scheme(method.family, list(capacities.values()), stragglers, groups,
                                  every)
        except ConfigError as error:  # whose robots are ranks
            names = ', '.join(f'{n} {c:g}' for n, c in capacities.items())
            raise ConfigError(f"'{method}': {error}. The capacities are {names}") from error
        self._there = frozenset(self._rank.values())  # whom the code counts on
        self._round = 1
        self._received: list[int] = []  # in the order in which they came
        self._late: list[str] = []

    def begin(self, iteration: int) -> None:
        """See `Policy.begin`."""
        self._round = iteration + 1

    def refusal(self, robot: str) -> str:
        """See `Policy.refusal`."""
        if robot in self._rank:
            return ''
        return (f"'{robot}' is none of the robots that '{self.method}' codes for: "
                f'{", ".join(self._names)}')

    def on_join(self, robot: str) -> list[Step]:
        """See `Policy.on_join`."""
        if self._rank[robot] in self._received:
            self._received.remove(self._rank[robot])
        return [Discard((robot,))]

    def in_time(self, robot: str, iteration: int) -> bool:
        """See `Policy.in_time`."""
        return iteration == self._round

    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        """See `Policy.on_push`."""
        if fleet[robot].iteration == self._round:
            self._received.append(self._rank[robot])
        else:
            self._late.append(robot)

    def steps(self, fleet: Fleet, gone: frozenset[str]) -> list[Step]:
        """See `Policy.steps`."""
        lost = self._ranks(gone).difference(self._received)
        out: list[Step] = []
        if self._late or lost:
            out.append(Discard((*self._late, *self._named(lost))))
            self._late = []
        present = frozenset(self._rank.values()) - lost
        code = self._scheme.code
        coefficients = code.decode(self._received) if self._received else None
        if coefficients is not None:
            names = {self._names[rank]: value for rank, value in coefficients.items()}
            out.append(Decode(names, code.shards))
            self._scheme.round_over(self._prompt())
            if present - self._there:  # somebody is back
                self._restrict(present)
        elif present and code.decode(present & self._there) is None:
            self._restrict(present)
            out.append(Discard(self._named(self._received)))
        else:
            return out
        self._received.clear()
        self._round += 1
        return out

    def _prompt(self) -> list[int]:
        """Robots that were no stragglers of this round: those of the fleet that came first.

        As many straggle as the groups tolerate together, wherever they are. Who is missing when the
        round can be decoded would never be more than one group tolerates, and so would not tell of
        stragglers that share a group: those the group has waited for.
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

    def held_up_by(self, robot: str, fleet: Fleet, least: float = 0.0) -> list[str]:
        """See `Policy.held_up_by`: who has pushed waits until the round can be decoded."""
        rank = self._rank[robot]
        if rank in self._there and rank not in self._received:
            return []
        return list(self._named(self._scheme.code.missing(self._received)))

    def grant(self, robot: str, iteration: int) -> tuple[int, Work | None]:
        """See `Policy.grant`."""
        code = self._scheme.code
        shards, weights = code.assignment(self._rank[robot])
        return self._round, Work(code.shards, tuple(shards.tolist()), tuple(weights.tolist()))

    def state(self) -> dict[str, Any]:
        """See `Policy.state`."""
        return {'round': self._round}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Policy.load_state`."""
        self._round = int(state.get('round', self._round))
