"""Simulates two levels of fleets: child fleets, each with robots, and a parent server above them.
"""

from __future__ import annotations

import numpy as np
from fleet import Fleet, Robot
from rog_core.arrays import copy_of
from rog_core.protocol.states import STOPPED
from rog_core.upstream import AS_IT_IS, Upstream

# The simulation runs each fleet in turn for this time, in seconds. So events of different fleets
# may happen in the wrong order.
STEP = 0.02


class Below(Fleet):
    """A child fleet, whose server is a robot of the parent fleet.

    ``own``: sum of the changes that the child's own robots made.
    """

    def __init__(self, *arguments, **options):
        # Sum of the changes that the child's robots have subtracted from the master rows, float64
        # (elements,).
        self.own = 0.0
        super().__init__(*arguments, **options)

    def start_server(self, master, state=None):
        super().start_server(master, state)

        def counted(call):
            def counting(*arguments):
                before = self.server.master.astype(np.float64)
                call(*arguments)
                self.own = self.own + before - self.server.master
            return counting
        for name in ('take', 'settle'):
            setattr(self.update, name, counted(getattr(self.update, name)))


class FleetAsRobot(Robot):
    def __init__(self, name, above, incarnation, below, base=None):
        super().__init__(name, above, incarnation)
        self.below, self.upstream = below, Upstream(below.server, self.machine, base)

    @property
    def not_kept(self):
        """Return the change that the child fleet's worker has received but not yet accumulated.

        If there is no such change, return 0.
        """
        up = self.upstream
        given = up._handed is not None and self.store.kept == up._kept
        return up._handed.astype(np.float64) if given else 0.0


class Above(Fleet):
    """The parent fleet. Its robots are the child fleets.

    ``saved`` maps a child's name to its checkpoint.
    """

    def __init__(self, seed, below, sync, **options):
        self.below, self.saved = below, {}
        super().__init__(seed, 0, sync, **options)
        for name in below:
            self.start_robot(name)
            self.save(name)

    def start_robot(self, name, base=None):
        if name in self.robots:
            self.kill_robot(name)
        robot = self.robots[name] = FleetAsRobot(name, self, next(self.lives), self.below[name],
                                                 base)
        self.lives_of_robots.append(robot)
        self.act(name, robot.machine.start(self.now), robot)

    def save(self, name):
        """Write the checkpoint of a child fleet's server."""
        below = self.below[name]
        self.saved[name] = below.checkpoint(), copy_of(self.robots[name].upstream.base), below.own

    def crash_below(self, name):
        """Kill a child's server and restart it from its checkpoint.

        Then the child registers with the parent again.
        """
        below, (checkpoint, base, own) = self.below[name], self.saved[name]
        self.counts['crash below'] += 1
        self.robots[name].upstream = None
        below.restart_server(checkpoint)
        below.own = own
        self.start_robot(name, base)
        self.save(name)

    def compute(self, robot, order):
        self.counts['compute'] += 1
        self.check_start(robot, order.iteration)
        before = robot.below.server.master.copy()
        robot.upstream.go_on(order)
        self.counts['changed below'] += bool((robot.below.server.master != before).any())

    def account(self, name):
        """Save a child fleet's checkpoint, and let the child report its changes to the parent."""
        robot = self.robots[name]
        change = robot.upstream.account()
        if change is not None and robot.alive and robot.machine.state != STOPPED:
            self.save(name)
            self.counts['account'] += 1
            self.act(name, robot.machine.on_gradient(change, AS_IT_IS, self.now), robot)

    def run(self, seconds):
        until = self.now + seconds
        while self.now < until - 1e-9 and not self.stopped:
            super().run(min(STEP, until - self.now))
            for name, below in self.below.items():
                below.run(self.now - below.now)
                if self.robots[name].upstream.due:
                    self.account(name)

    def check_below(self):
        """Check that each change was handed to the parent once, or is still kept by the child."""
        for name, below in self.below.items():
            robot = self.robots[name]
            lives = [life for life in self.lives_of_robots if life.name == name]
            handed = sum(life.store.produced for life in lives) + robot.not_kept
            left = robot.upstream.base.astype(np.float64) - below.server.master
            assert np.allclose(handed + left, below.own, rtol=1e-4, atol=1e-4), \
                (name, np.abs(handed + left - below.own).max())
            self.counts['below checked'] += bool(np.any(handed))
            self.counts['below checked in between'] += bool(left.any())

    def check(self):
        super().check()
        for below in self.below.values():
            below.check()
        self.check_below()


def two_levels(seed, above, below=('rsp:3', 'rsp:3'), codec='onebit', robots=2, **options):
    """Return a parent fleet with method ``above``, and a child fleet for each method in ``below``.
    """
    fleets = {f'fleet{k}': Below(seed + k, robots, sync, codec)
              for k, sync in enumerate(below)}
    return Above(seed + 100, fleets, above, codec=codec, **options)
