"""Logs and records which robots are away or paused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rog_core.protocol.states import AWAY
from rog_core.server.member import Member

from .run_files import RunFiles


class Presence:
    """Remembers, logs and records when robots go away, pause and come back.

    :param limit: seconds without a heartbeat after which a robot is away.
    """

    def __init__(self, files: RunFiles, limit: float, log: Any) -> None:
        self.away: set[str] = set()       # robots that are reported as away
        self.paused: set[str] = set()     # robots that have left the fleet for a pause
        self.limit, self.log = limit, log
        self._files = files

    def on_joined(self, robot: str, iteration: int) -> None:
        """Record that a robot has registered at ``iteration``."""
        self.log.info(f'{robot} joins at iteration {iteration}')
        if robot in self.away:
            self.away.discard(robot)
            self._files.fault(robot, 'rejoined', f'at iteration {iteration}')

    def on_status(self, robot: str, paused: bool) -> None:
        """Record whether the status of a robot says that it is paused."""
        if paused == (robot in self.paused):
            return
        (self.paused.add if paused else self.paused.discard)(robot)
        self.log.info(f'{robot} has paused; the others go on' if paused else
                       f'{robot} is back from its pause')

    def report_away(self, members: Iterable[Member]) -> None:
        """Report the robots that have become away since the last call."""
        for member in members:
            if member.state == AWAY and member.robot not in self.away:
                self.away.add(member.robot)
                self.log.warning(f'{member.robot} is away: no heartbeat for {self.limit:g} s')
                self._files.fault(member.robot, 'peer_lost', 'no heartbeat; the others go on')
