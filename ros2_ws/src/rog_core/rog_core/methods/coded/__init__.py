"""Gradient coding: methods that tolerate stragglers, because every shard is with several robots.

Sources: DGH-GC, and the schemes that it is compared with. `grouping` says who is in which group,
`coding` who computes what and how it is decoded, `schemes` how that differs between the methods,
and `rounds` is the method.
"""

from .rounds import Coded


class Gc(Coded):
    """One group, everybody the same amount."""

    name = usage = 'gc'


class Hgc(Coded):
    """One group, amounts by capacity."""

    name = usage = 'hgc'


class Gcc(Coded):
    """Groups of equal size in order of rank, everybody the same amount."""

    name = usage = 'gcc'


class Dcgc(Coded):
    """As gcc; after every round its stragglers are spread over the groups."""

    name = usage = 'dcgc'


class DghGc(Coded):
    """Groups of equal capacity, amounts by capacity; regrouped now and then by who straggles."""

    name = usage = 'dgh-gc'
