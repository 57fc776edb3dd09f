"""What the tests know of staleness by themselves, apart from the server's own bookkeeping."""

from __future__ import annotations

import math

import numpy as np
from rog_core.methods.coded import Coded


class Versions:
    """Iteration at which each segment of each member was last applied, as seen from outside."""

    def __init__(self, partition):
        self.partition = partition
        self.members: list = []  # (member, iteration at which it began, version per segment)

    def entry(self, member):
        for known in self.members:
            if known[0] is member:
                return known
        self.members.append((member, member.iteration,
                             np.full(self.partition.segments, member.iteration)))
        return self.members[-1]

    def forget(self, member):
        """It was retired and is back: its rows count from now on."""
        self.members = [known for known in self.members if known[0] is not member]

    def applied(self, member, chunk, ids):
        versions = self.entry(member)[2]
        versions[ids] = np.maximum(versions[ids], chunk.transfer.iteration)

    def check(self, member):
        """The server never takes a row for newer than its oldest segment."""
        seen = np.minimum.reduceat(self.entry(member)[2], self.partition.first_segment)
        assert (member.versions <= seen).all(), (member.robot, member.versions, seen)
        assert member.slowest in (member.versions.min(), member.iteration)


def loosest(method):
    """Iterations by which a row may be behind at most under this method.

    With coded gradients the rows of a straggler stay behind: what it pushed does not count.
    """
    return method.most if method.by_row and not isinstance(method, Coded) else math.inf


class Staleness:
    """Which bound holds for whom, while the method of a running fleet changes.

    The looser bound holds until every member has pushed under the tighter one, and for what was
    granted until then. ``told``: name of a method, as robots are told it, -> the method.
    """

    def __init__(self, told):
        self.told = told
        self.pushed_under: dict = {}   # incarnation -> bound at its last push
        self.complied: dict = {}       # incarnation -> the same, once that push is over
        self.members: dict = {}        # incarnation -> its member at the server
        self.granted: dict = {}        # robot name -> (pull, bound that held when it began)

    def pushes(self, machine):
        life = machine.incarnation
        bound = self.pushed_under[life] = loosest(self.told(machine.command.sync))
        self.complied[life] = max(self.complied.get(life, 0), bound)

    def starts(self, machine):
        life = machine.incarnation
        if life in self.pushed_under and machine.push is None:  # else it computes ahead
            self.complied[life] = self.pushed_under[life]

    def grants(self, server):
        """Note the bound that holds for every pull that has begun."""
        active, present = server.active(), loosest(self.told(str(server.method)))
        for member in active:
            life = member.incarnation
            if self.members.get(life) is not member:  # has just joined, within the present bound
                self.members[life] = member
                self.complied[life] = present
                self.pushed_under.pop(life, None)
        for member in active:
            pull = member.sender and member.sender.transfer
            if pull and self.granted.get(member.robot, (None, 0))[0] != pull:
                bounds = [self.complied[m.incarnation] for m in active]
                self.granted[member.robot] = pull, max([present, *bounds])

    def forget(self, member):
        self.members.pop(member.incarnation, None)

    def check(self, robot, iteration, fleet):
        """Compare the iteration with every row of every member; returns the number of members."""
        active = fleet.server.active()
        bound = self.granted[robot.name][1]
        for member in active:
            fleet.versions.check(member)
            ahead = (iteration - 1) - member.versions.min()
            assert ahead < bound, (robot.name, iteration, member.robot, member.versions.min(),
                                   bound)
        return len(active)
