"""Two parameter servers in one namespace: which one ends, and to which a robot listens."""

from __future__ import annotations

import math
import os
import platform
from importlib.metadata import distributions
from itertools import chain
from typing import Any

from rog_core.errors import shown

from .seal import Signature

PROVIDERS = ('rog_ros', 'rog_suite')  # distributions that this package is in: workspace, wheel
AT_ONCE = 2   # largest difference in statuses of servers that have begun at the same time
YOUNG = 10.0  # s in which a server that meets another one may still give way
FRESH = 30.0  # s for which a proved status of another server counts; clocks may differ by that
NAMED = 80    # characters that are shown of a machine's or a method's name


def this_process() -> str:
    """Return the machine and the process, as statuses name it."""
    return f'{platform.node()}, process {os.getpid()}'


def this_version() -> str:
    """Return the version of this software, as statuses name it."""
    found = next(chain.from_iterable(distributions(name=name) for name in PROVIDERS), None)
    return 'unknown' if found is None else found.version


def is_there(status: Any) -> bool:
    """Whether the server that sent this status still serves."""
    return status.state != 'stopped'


class Others:
    """Decides whether a status shows another server in the namespace of our own.

    With a key, only a recent status that the key proves counts. Otherwise a stranger could keep a
    server from starting, or end it, with a forged status, or a recorded one of a former server.

    :param signature: of the fleet's key; None: it has none.
    :param run: the run that our server resumes; 0: a new one. A status of this run does not count:
        its former server is dead, or still holds the lock of the directory, which then refuses us.
    :param process: public number of our process, if it publishes statuses.
    """

    def __init__(self, signature: Signature | None, run: int = 0, process: int = 0) -> None:
        self._signature, self._run, self._process = signature, run, process
        self.refused = ''  # why the last status of another process did not count

    def shows(self, status: Any, now: float) -> bool:
        """Whether another server is there; ``now``: time since 1970, s."""
        if status.incarnation == self._process or not is_there(status) \
                or self._run and status.run == self._run:
            return False
        if self._signature is not None:
            age = abs(now - status.header.stamp.sec)
            if not self._signature.proves(status):
                self.refused = 'it is not signed with our key'
                return False
            if age > FRESH:
                self.refused = (f'it was made {age:.0f} s ago or hence: somebody repeats it, or '
                                'the clocks of the machines differ')
                return False
        return True


def refusal(status: Any, place: str) -> str:
    """Return why a server does not start beside the one that sent this status."""
    robots = ', '.join(robot.robot for robot in status.robots) or 'no robot yet'
    return (f'there is a parameter server at {place} already: {shown(status.host, NAMED)}, '
            f'{shown(status.sync, NAMED)}, with {shown(robots)}, for {status.elapsed:.0f} s. Stop '
            'it, or give this fleet its own network.namespace or network.domain_id')


def gives_way(mine: tuple[float, int, int], other: Any, age: float) -> bool:
    """Whether our server ends because of another: the younger one does, if younger than `YOUNG`.

    :param mine: elapsed time of its run, s, the count of its last status, and its incarnation.
    :param other: the other's status, which may be a moment old.
    :param age: s since it was started.
    """
    elapsed, count, incarnation = mine
    if age >= YOUNG or not is_there(other):
        return False
    if elapsed != other.elapsed:
        return elapsed < other.elapsed
    if abs(count - other.count) > AT_ONCE:
        return count < other.count
    return incarnation > other.incarnation


class Order:
    """Decides which proved statuses of other servers are new; the rest are recordings.

    The order is that of the count within a process, of the start within a run, else of the servers'
    clocks. The robot's clock plays no part.

    :param limit: s without a new status after which a status of another process counts, whatever
        its time: a server may have moved to a machine whose clock is behind. The answer to a
        registration then proves which process is there.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._heard = -math.inf
        self._newest: Any = None

    def is_new(self, status: Any, now: float) -> bool:
        """Whether a proved status counts; ``now`` in s, any monotonic clock."""
        if self._newest is not None and not self._follows(status, self._newest, now):
            return False
        self._newest, self._heard = status, now
        return True

    def _follows(self, status: Any, newest: Any, now: float) -> bool:
        if status.incarnation == newest.incarnation:
            return status.count > newest.count
        if status.run == newest.run:
            return status.start > newest.start
        return _made(status) > _made(newest) or now - self._heard > self._limit


def _made(status: Any) -> tuple[int, int]:
    stamp = status.header.stamp
    return stamp.sec, stamp.nanosec


class Loyalty:
    """Keeps a robot with the server that has accepted it, as long as this server is heard.

    :param limit: s of silence after which the server counts as gone.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._heard = -math.inf
        self._place = (0, 0)  # run and start of the server that has accepted the robot

    def listens(self, own: bool, now: float) -> bool:
        """Whether a message counts; ``own``: it is from the server that has accepted the robot."""
        if own:
            self._heard = now
        return own or now - self._heard > self._limit

    def note(self, own: bool, status: Any) -> None:
        """Note a status that is proved with the fleet's key; ``own``: see `listens`.

        A status from a later start of our server's run says that ours is dead, since a server holds
        a lock on the run's directory as long as it lives. So the robot need not wait for silence.
        Never call this without a proof: anyone can read run and start, and could lead the robot
        away from a healthy server. That is why a fleet without a key waits. DDS does not help: it
        notices only after 30 s that the writer of a killed server is gone.
        """
        run, start = status.run, status.start
        if own:
            self._place = run, start
        elif run == self._place[0] and start > self._place[1]:
            self._heard = -math.inf
