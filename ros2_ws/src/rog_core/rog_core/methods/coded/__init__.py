"""Gradient coding: no robot waits for stragglers, because several robots compute each shard.

Source: DGH-GC, and the schemes with which its paper compares it. `grouping` divides the robots
into groups. `coding` assigns shards to robots and decodes. `schemes` defines the grouping and
assignment of each method. `rounds` has the common base class of the methods.
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

    Every B rounds (see `Coded`), the robots that straggled most often are spread over the groups
    again.
    """

    name = usage = 'dgh-gc'
