"""Computes the staleness of all rows independently of the server's own bookkeeping."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from rog_core.methods.coded import Coded
from rog_core.model.partition import Role


class Versions:
    """For each member and segment, the iteration of the newest applied push with this segment.

    The values come from the chunks that a test observes, not from the server's own versions.
    """

    def __init__(self, partition):
        self.partition = partition
        # List of (member, iteration at which it joined, iteration of each segment).
        self.members: list = []

    def entry(self, member):
        for known in self.members:
            if known[0] is member:
                return known
        self.members.append((member, member.iteration,
                             np.full(self.partition.segments, member.iteration)))
        return self.members[-1]

    def forget(self, member):
        """Forget the versions of a member that returns after it was retired.

        `entry` then starts again from the member's present iteration.
        """
        self.members = [known for known in self.members if known[0] is not member]

    def applied(self, member, chunk, ids):
        versions = self.entry(member)[2]
        versions[ids] = np.maximum(versions[ids], chunk.transfer.iteration)

    def check(self, member, switched=()):
        """Check that the server counts no row as newer than the row's oldest segment.

        ``switched``: parameters whose rows were not trained all the time; they are not checked.
        """
        seen = np.minimum.reduceat(self.entry(member)[2], self.partition.first_segment)
        rows = self.partition.trained() & self.partition.trained(
            k for k in switched if self.partition.parameters[k].role == Role.TRAINED)
        rows, seen = rows[:member.versions.size], seen[:member.versions.size]
        assert (member.versions <= seen)[rows].all(), (member.robot, member.versions, seen)
        assert member.slowest in (member.versions.min(), member.iteration)


def loosest(method):
    """Return the largest staleness bound that holds for every row with this method.

    It is infinite if the method does not count staleness by row (`by_row`). With coded gradients it
    is infinite too, because the pushes of a straggler do not count.
    """
    return method.most if method.by_row and not isinstance(method, Coded) else math.inf


class Staleness:
    """Finds the staleness bound of each member while a running fleet changes its method.

    After a change to a tighter bound, the looser bound holds until every member has pushed under
    the tighter bound. It also holds for the iterations that were granted before that time.

    ``told``: function that maps the name of a method, as robots receive it, to the method.
    """

    def __init__(self, told):
        self.bound_of = cache(lambda sync: loosest(told(sync)))
        self.pushed_under: dict = {}   # maps an incarnation to the bound at its last push
        # Maps an incarnation to the bound at its last complete push.
        self.complied: dict = {}
        self.members: dict = {}        # maps an incarnation to its member at the server
        # Maps a robot's name to a pair: the robot's pull, and the bound at the start of this pull.
        self.granted: dict = {}

    def pushes(self, machine):
        life = machine.incarnation
        bound = self.pushed_under[life] = self.bound_of(machine.command.sync)
        self.complied[life] = max(self.complied.get(life, 0), bound)

    def starts(self, machine):
        life = machine.incarnation
        # A worker that computes ahead may start the next iteration before its push is complete.
        # Such a push does not count here.
        if life in self.pushed_under and machine.push is None:
            self.complied[life] = self.pushed_under[life]

    def grants(self, server):
        """Record, for every pull that has begun, the staleness bound that holds for it."""
        active, present = server.active(), self.bound_of(str(server.method))
        for member in active:
            life = member.incarnation
            # For a member that has just joined, record only the bound of the present method.
            if self.members.get(life) is not member:
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
        """Check that ``iteration`` is within the bound for every row of every active member.

        Return the number of active members.
        """
        active = fleet.server.active()
        bound = self.granted[robot.name][1]
        for member in active:
            fleet.versions.check(member, fleet.ever_switched)
            ahead = (iteration - 1) - member.versions.min()
            assert ahead < bound, (robot.name, iteration, member.robot, member.versions.min(),
                                   bound)
        return len(active)
