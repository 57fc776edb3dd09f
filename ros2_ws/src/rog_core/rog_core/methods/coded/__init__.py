"""Gradient coding: no robot waits for stragglers, since several robots hold every shard.

Sources: DGH-GC, and the schemes that it is compared with. `grouping` divides the robots into
groups, `coding` assigns shards to robots and decodes, `schemes` defines how the methods differ in
grouping and assignment, and `rounds` has their common base class.
"""

from .rounds import Coded


class Gc(Coded):
    """One group; all robots compute the same number of shards."""

    name = usage = 'gc'


class Hgc(Coded):
    """One group; the number of shards of a robot follows its computing capacity."""

    name = usage = 'hgc'


class Gcc(Coded):
    """Groups of equal size in order of rank; all robots compute the same number of shards."""

    name = usage = 'gcc'


class Dcgc(Coded):
    """As gcc; after every round the stragglers of that round are spread over the groups."""

    name = usage = 'dcgc'


class DghGc(Coded):
    """Groups of equal capacity, shards by capacity; regrouped by how often robots straggle."""

    name = usage = 'dgh-gc'
