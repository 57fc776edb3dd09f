"""Gradient coding: no robot waits for stragglers, because several robots compute each shard.

Sources: DGH-GC, and the schemes that it is compared with. `grouping` divides the robots into
groups, `coding` assigns shards to robots and decodes, `schemes` defines how the methods differ in
grouping and assignment, and `rounds` has their common base class.
"""

from .rounds import Coded


class Gc(Coded):
    """``gc``: one group; all robots compute the same number of shards."""

    name = usage = 'gc'


class Hgc(Coded):
    """``hgc``: one group; a robot's number of shards is in proportion to its capacity."""

    name = usage = 'hgc'


class Gcc(Coded):
    """``gcc``: groups of equal size in order of rank; every robot has the same number of shards."""

    name = usage = 'gcc'


class Dcgc(Coded):
    """``dcgc``: like gcc, but stragglers move to other groups.

    After each round, the stragglers of this round are spread over the groups.
    """

    name = usage = 'dcgc'


class DghGc(Coded):
    """``dgh-gc``: groups of equal capacity, shards in proportion to the robots' capacities.

    Every B rounds, the robots that straggled most often are spread over the groups again.
    """

    name = usage = 'dgh-gc'
