"""Gradient coding schemes: the groups, their shards, and when the groups change.

    gc      one group, the same number of shards for every robot
    hgc     one group, shards in proportion to capacity
    gcc     groups of equal size in order of rank, the same number of shards for every robot
    dcgc    like gcc; after every round the stragglers of that round are spread over the groups
    dgh-gc  groups of equal capacity, shards in proportion to capacity; every B rounds the robots
            that straggled most often are spread over the groups

Source: DGH-GC, Sections 2 and 4.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import ConfigError
from ...protocol.steps import MAX_SHARDS
from .coding import GradientCode, GroupCode, allocate, apportion
from .grouping import (
    Groups,
    check_shares,
    checked,
    comparable,
    regroup,
    static_grouping,
)

SCHEMES = ('gc', 'hgc', 'gcc', 'dcgc', 'dgh-gc')
BY_CAPACITY = ('hgc', 'dgh-gc')
GROUPED = ('gcc', 'dcgc', 'dgh-gc')
REGROUPED = ('dcgc', 'dgh-gc')


def number_of_shards(capacities: ArrayLike) -> int:
    """Return the number of shards for a fleet.

    Each capacity is divided by the lowest capacity and rounded. The number of shards is the
    sum of these quotients, but at most `MAX_SHARDS`. If there are more robots than
    `MAX_SHARDS`, the number of shards is the number of robots.
    """
    array = checked(capacities)
    shares = np.minimum(np.rint(array / array.min()), MAX_SHARDS)
    return max(min(int(shares.sum()), MAX_SHARDS), len(array))


class Scheme:
    """The gradient code of a fleet, which may change during a run.

    ``capacities``: computing speed by rank, in any unit; similar capacities (`comparable`) count as
    equal. ``stragglers``: number of stragglers that every group tolerates. ``groups``: number of
    groups (gcc, dcgc, dgh-gc); 0: the number from DGH-GC, equation 13. If this equation has no
    solution, gcc and dcgc form as many groups as possible. ``every``: rounds between two
    regroupings (dgh-gc). ``code``: the present code. The number of its shards never changes.

    Raises `ConfigError` if the fleet cannot tolerate this number of stragglers.
    """

    def __init__(self, name: str, capacities: ArrayLike, stragglers: int = 1, groups: int = 0,
                 every: int = 50) -> None:
        if name not in SCHEMES:
            raise ConfigError(f"gradient coding scheme '{name}' is unknown; choose one of "
                              f"{', '.join(SCHEMES)}")
        if every < 1:
            raise ConfigError('number of rounds between two regroupings must be at least 1, got '
                              f'{every}')
        self.name, self.stragglers, self.groups = name, stragglers, groups
        self._every = every if name == 'dgh-gc' else 1
        self._shards = number_of_shards(capacities)
        self._capacities = comparable(capacities)
        count = len(self._capacities)
        # By rank: the weight by which shards are divided among robots. Robots of equal weight may
        # be exchanged between groups.
        self._worth = self._capacities if name in BY_CAPACITY else np.ones(count)
        self._late, self._rounds = np.zeros(count), 0
        ranks = list(range(count))
        self._members, self.code = self._formed(ranks, stragglers, groups)

    def round_over(self, received: Collection[int]) -> bool:
        """Count the ranks not in ``received`` as stragglers; return whether `code` has changed.

        Only dcgc and dgh-gc count stragglers and change the groups: dcgc after every round, dgh-gc
        after every ``every`` rounds.

        E_real is the expected number of stragglers that the groups tolerate with the observed
        frequencies; E_start is this number if all robots straggle equally often. The paper
        regroups when E_real falls below E_start. But different frequencies inside a group raise
        E_real, so this condition hardly ever holds, even if better groups exist. Therefore this
        function changes the groups if an exchange of robots can raise E_real.

        Example: 12 robots in two groups (s = 1); one robot straggles in 90 % of the rounds,
        another robot in 20 %. With both robots in one group, E_real is 0.92 and E_start is 0.88.
        With one of them in each group, E_real is 1.1.
        """
        if self.name not in REGROUPED:
            return False
        self._rounds += 1
        self._late[[rank for members in self._members for rank in members
                    if rank not in received]] += 1
        if self._rounds < self._every:
            return False
        frequencies = self._late / self._rounds
        self._late, self._rounds = np.zeros_like(self._late), 0
        found = regroup(self._members, self._worth, frequencies, self.code.stragglers)
        if found == self._members:
            return False
        self._members, self.code = found, self._coded(found, self.code.stragglers)
        return True

    def restrict(self, ranks: Collection[int]) -> bool:
        """Build a new code for these robots only; return whether the code has changed.

        The number of shards does not change. If the requested number of groups or stragglers no
        longer fits, the code tolerates as many stragglers as possible, perhaps 0. If ``ranks`` is
        empty, the code does not change.
        """
        here = sorted(set(ranks))
        if not here or here == sorted(rank for members in self._members for rank in members):
            return False
        tries = [(s, k) for s in range(self.stragglers, -1, -1) for k in {self.groups, 0}]
        for stragglers, groups in sorted(tries, reverse=True):
            try:
                self._members, self.code = self._formed(here, stragglers, groups)
            except ConfigError:
                continue
            return True
        raise AssertionError('without stragglers every fleet has a code')

    def holds(self, rank: int) -> NDArray[np.int64]:
        """Return the shards, sorted, that a robot may have to compute until the next `restrict`.

        These are the robot's own shards. In dcgc and dgh-gc, the result also contains the
        shards of the robots with which this robot may be exchanged. The result is empty for a
        robot that is not part of the code.
        """
        present = [other for members in self._members for other in members]
        alike = [other for other in present if other == rank or
                 (self.name in REGROUPED and self._worth[other] == self._worth[rank])]
        if rank not in present:
            return np.zeros(0, np.int64)
        return np.unique(np.concatenate([self.code.assignment(other)[0] for other in alike]))

    def _formed(self, ranks: list[int], stragglers: int,
                groups: int) -> tuple[Groups, GradientCode]:
        """Divide ``ranks`` into groups; return the groups and their code."""
        members = self._grouped(ranks, stragglers, groups)
        return members, self._coded(members, stragglers)

    def _grouped(self, ranks: list[int], stragglers: int, groups: int) -> Groups:
        capacities = self._capacities[ranks]
        if self.name == 'dgh-gc':
            found = static_grouping(capacities, stragglers, groups)
        elif self.name in GROUPED:
            k = groups or _number_of_groups(capacities, stragglers)
            check_shares(np.ones(len(ranks)), stragglers)
            if not 1 <= k <= len(ranks) // (stragglers + 1):
                raise ConfigError(f'{len(ranks)} robots do not make {k} groups of at least '
                                  f'{stragglers + 1}, which {stragglers} stragglers require; '
                                  'choose fewer groups or tolerate fewer stragglers')
            found = [part.tolist() for part in np.array_split(np.arange(len(ranks)), k)]
        else:
            check_shares(self._worth[ranks], stragglers)
            found = [list(range(len(ranks)))]
        return [[ranks[place] for place in members] for members in found]

    def _coded(self, groups: Groups, stragglers: int) -> GradientCode:
        """Return the code of the groups; divide the shards in proportion to the groups' weights."""
        worth = [self._worth[members] for members in groups]
        least = [-(-len(members) // (stragglers + 1)) for members in groups]
        counts = apportion(self._shards, [w.sum() for w in worth], least, self._shards)
        shards = np.split(np.arange(self._shards), np.cumsum(counts)[:-1])
        return GradientCode([
            GroupCode(members, own, allocate(len(own), stragglers, w), stragglers)
            for members, own, w in zip(groups, shards, worth, strict=True)])


def _number_of_groups(capacities: NDArray[np.float64], stragglers: int) -> int:
    """Return the number of groups that dgh-gc would form.

    If dgh-gc finds no valid grouping, return the largest possible number of groups of at least
    ``stragglers`` + 1 robots each, but at least 1.
    """
    try:
        return len(static_grouping(capacities, stragglers))
    except ConfigError:
        return max(len(capacities) // (stragglers + 1), 1)
