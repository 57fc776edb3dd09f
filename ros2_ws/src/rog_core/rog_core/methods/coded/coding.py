"""Gradient codes: which robot computes which shards with which weights, and how to decode.

The full gradient is the sum over P shards of the data. Each shard belongs to one group of robots,
and s + 1 robots of the group compute it. Each robot sends one weighted sum of the gradients of
its shards. If any s of these sums are missing, the server can still compute the exact sum over the
group's shards from the other sums.
Sources: DGH-GC, equations 1 to 4 and 15 to 17; Wang et al., Heterogeneity-aware gradient coding
for straggler tolerance, ICDCS 2019.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import ConfigError
from .grouping import checked

# Number of steps of a bisection. After so many steps, the two ends of the interval are adjacent
# float64 numbers.
HALVINGS = 100
# Largest coefficient allowed in decoding. With a coefficient of 115 (40 robots, 5 stragglers) the
# measured float32 error was 4e-6.
MAX_AMPLIFICATION = 150.0


def apportion(total: int, weights: ArrayLike, low: ArrayLike, high: ArrayLike) -> NDArray[np.int64]:
    """Divide a whole number into whole parts in proportion to weights, within bounds.

    Each part is clip(x * weight, low, high), rounded by the method of largest remainders.
    The number x is chosen so that the parts add up to ``total``. ``low``, ``high``: whole
    numbers, either one number for all parts or one for each part, with
    sum(low) <= total <= sum(high). Returns int64 (parts,).
    """
    array = checked(weights)
    floor, roof = np.broadcast_to(low, array.shape), np.broadcast_to(high, array.shape)
    below, above = 0.0, float(roof.max()) / array.min()
    for _ in range(HALVINGS):
        middle = (below + above) / 2
        if np.clip(middle * array, floor, roof).sum() < total:
            below = middle
        else:
            above = middle
    ideal = np.clip(above * array, floor, roof)
    parts = np.floor(ideal).astype(np.int64)
    parts[np.argsort(parts - ideal, kind='stable')[:total - parts.sum()]] += 1
    return parts


def allocate(partitions: int, stragglers: int, capacities: ArrayLike) -> NDArray[np.int64]:
    """Return how many shards each member of a group computes (equations 2 and 3).

    The numbers are proportional to the capacities and lie between 1 and ``partitions``. Their sum
    is partitions * (s + 1), with s = ``stragglers``. Raises `ConfigError` if the group has fewer
    than s + 1 members, or more members than this sum.
    """
    array = checked(capacities)
    total = partitions * (stragglers + 1)
    if stragglers >= len(array):
        raise ConfigError(f'a group of {len(array)} robots cannot tolerate {stragglers} '
                          f'stragglers; it takes at least {stragglers + 1} robots')
    if total < len(array):
        raise ConfigError(f'{partitions} shards, each held {stragglers + 1} times, are too few for '
                          f'{len(array)} robots; divide the data into more shards')
    return apportion(total, array, 1, partitions)


class GroupCode:
    """The code of one group of n members (robots) that compute d shards.

    Member j computes ``amounts[j]`` consecutive shards, cyclically; they begin where the
    shards of member j - 1 end (DGH-GC, equation 4). So every shard has s + 1 different
    holders: the members that compute it. Member j sends the sum of the gradients of its
    shards, weighted by row j of ``matrix`` B, float64 (n, d).

    In the paper DGH-GC, the entries of B are only 0 and 1. In general such a code cannot be
    decoded: for example, no two of the rows 1 1 0, 0 1 1 and 1 0 1 combine to 1 1 1. So the
    weights here come from heterogeneity-aware gradient coding (Wang et al.). C is a matrix
    of s + 1 rows, and any s + 1 columns of C are independent. Let H be the holders of a
    shard, and b the weights of this shard in B; b solves C[:, H] b = u. To decode when the
    members S are missing, choose lambda with lambda C[:, S] = 0 and lambda u = 1. The
    coefficients are a = lambda C, because a B = lambda C B = lambda u 1 = 1.

    Wang et al. draw C at random and use u = 1. Here the shards of all members lie end to
    end on a line from -1 to 1, and t_j is the middle of the shards of member j. C is the
    Vandermonde matrix of the places t, and u is the last unit vector. Then b and a have
    closed forms, and no equation has to be solved. The weight b of the holder h is 1 /
    prod(t_h - t_i) over the other holders i (divided differences). The coefficient a_j is
    the polynomial prod(t_j - t_i) over the missing members i.

    The holders of one shard lie far apart on the line, which keeps B small. In fleets of 12
    to 40 robots with capacities 1 to 5, the largest coefficient was 2.3 for s = 1, 6 for s
    = 2 and 18 for s = 3. With the best of 20 random matrices C, it was 12 to 150 for s = 1,
    100 to 4000 for s = 2 and 900 to 5000 for s = 3. Each row of B is scaled: its weight of
    largest magnitude becomes 1. If all amounts are equal and divide evenly, B is the
    paper's 0/1 matrix.

    ``members``: ranks of the robots. ``partitions``: ids of the shards, int64 (d,).
    ``amounts``: see `allocate`. ``stragglers``: s. ``amplification``: the largest coefficient
    for s missing members. Raises `ConfigError` if ``amplification`` is above
    `MAX_AMPLIFICATION`, because the float32 error may then exceed 1e-5.
    """

    def __init__(self, members: Sequence[int], partitions: ArrayLike, amounts: ArrayLike,
                 stragglers: int) -> None:
        self.members = tuple(members)
        self.partitions = np.asarray(partitions, np.int64)
        self.amounts = np.asarray(amounts, np.int64)
        self.stragglers = stragglers
        count, shards, total = len(self.members), len(self.partitions), self.amounts.sum()
        holders = np.repeat(np.arange(count), self.amounts).reshape(stragglers + 1, shards)
        self._place = (2 * np.cumsum(self.amounts) - self.amounts) / total - 1  # from -1 to 1
        apart = self._place[holders][:, None] - self._place[holders][None]
        apart[np.diag_indices(stragglers + 1)] = 1.0
        self.matrix = np.zeros((count, shards))
        self.matrix[holders, np.arange(shards)] = 1 / apart.prod(axis=1)
        largest = np.abs(self.matrix).argmax(axis=1)
        self._scale = self.matrix[np.arange(count), largest]
        self.matrix /= self._scale[:, None]
        self.amplification = self._amplification()
        if self.amplification > MAX_AMPLIFICATION:
            raise ConfigError(
                f'tolerating {stragglers} stragglers among {count} robots would multiply rounding '
                f'errors by {self.amplification:.0f}, more than {MAX_AMPLIFICATION:.0f}, so that '
                f'gradients would be wrong; tolerate fewer, or form more groups')

    def _amplification(self) -> float:
        """Return the largest coefficient that decoding can need.

        A member's coefficient is largest when the s members farthest from this member on the line
        are missing (see `GroupCode`).
        """
        apart = np.sort(np.abs(self._place[:, None] - self._place), axis=1)
        farthest = apart[:, len(self.members) - self.stragglers:].prod(axis=1)
        return float((farthest * np.abs(self._scale)).max())

    def decode(self, received: Collection[int]) -> NDArray[np.float64] | None:
        """Return the coefficients (n,) of the members' sums; a missing sum has coefficient 0.

        Returns None if more than `stragglers` sums are missing. If fewer sums are missing, several
        choices of coefficients are correct. Then the choice with the smallest norm is returned.
        """
        missing = [place for place, rank in enumerate(self.members) if rank not in received]
        spare = self.stragglers - len(missing)
        if spare < 0:
            return None
        apart = self._place[:, None] - self._place[missing]
        lines = (apart.prod(axis=1) * self._scale)[:, None] * np.vander(self._place, spare + 1)
        if spare:  # choose the ``spare`` free zeros of the polynomial so that the norm is smallest
            lines[:, 0] -= lines[:, 1:] @ np.linalg.lstsq(lines[:, 1:], lines[:, 0], rcond=None)[0]
        return lines[:, 0]


class GradientCode:
    """The gradient codes of all groups. Each of the shards 0..shards-1 belongs to one group.

    ``stragglers``: how many stragglers every group tolerates.
    """

    def __init__(self, groups: Sequence[GroupCode]) -> None:
        self.groups = list(groups)
        self.stragglers = min(group.stragglers for group in self.groups)
        self.shards = sum(len(group.partitions) for group in self.groups)
        self._seat = {rank: (group, place) for group in self.groups
                      for place, rank in enumerate(group.members)}

    def assignment(self, rank: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the shards that a robot computes, and their weights in the sum that it sends."""
        group, place = self._seat[rank]
        held = np.flatnonzero(group.matrix[place])
        return group.partitions[held], group.matrix[place, held]

    def decode(self, received: Collection[int]) -> dict[int, float] | None:
        """Return the coefficients with which the received sums add up to the gradient.

        The result maps ranks in ``received`` to coefficients. It is None if a group has more
        missing members than the group tolerates. Ranks that are not in the code are ignored.
        """
        coefficients: dict[int, float] = {}
        for group in self.groups:
            found = group.decode(received)
            if found is None:
                return None
            coefficients.update((rank, float(value)) for rank, value
                                in zip(group.members, found, strict=True) if rank in received)
        return coefficients

    def missing(self, received: Collection[int]) -> list[int]:
        """Return, sorted, the missing ranks of all groups that cannot be decoded yet."""
        late = [[rank for rank in group.members if rank not in received] for group in self.groups]
        return sorted(rank for group, ranks in zip(self.groups, late, strict=True)
                      if len(ranks) > group.stragglers for rank in ranks)
