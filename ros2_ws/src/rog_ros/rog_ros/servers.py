"""Decides which of two parameter servers in a namespace must end, and which the robots obey."""

from __future__ import annotations

import math
import os
import platform
from typing import Any

from rog_core.errors import shown
from rog_core.patience import Silence

from .signature import Signature

AT_ONCE = 2   # two servers began together if their status counts differ by at most this number
YOUNG = 10.0  # seconds after its start in which a server can still end in favour of another one
FRESH = 30.0  # maximum seconds between the time stamp of an authenticated status and our clock
NAMED = 80    # maximum characters that a message shows of the name of a machine or a method


def this_process() -> str:
    """Return the text that names this machine and this process in statuses."""
    return f'{platform.node()}, process {os.getpid()}'


def is_there(status: Any) -> bool:
    """Return whether the server was still serving when it sent this status."""
    return status.state != 'stopped'


class Others:
    """Decides whether a status shows that there is another server in our server's namespace.

    With a key, a status counts only if it is recent and signed with the key. Otherwise a stranger
    could stop our server, or keep it from starting, with a forged status or with a recorded status
    of a former server.

    :param signature: signature of the fleet key; None: the fleet has no key.
    :param run: identity of the run that our server resumes; 0: a new run. A status of this run does
        not count, because the lock of the run's directory decides: our server cannot lock it while
        the run's former server is alive.
    :param process: public number of our own process; 0: it publishes no statuses.
    """

    def __init__(self, signature: Signature | None, run: int = 0, process: int = 0) -> None:
        self._signature, self._run, self._process = signature, run, process
        self.refused = ''  # why the last status of another process did not count

    def shows(self, status: Any, now: float) -> bool:
        """Return whether ``status`` shows another server; ``now``: seconds since 1970."""
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
    """Return the error message of a server that does not start because of another server.

    :param status: status of the other server.
    :param place: namespace of both servers.
    """
    robots = ', '.join(robot.robot for robot in status.robots) or 'no robot yet'
    return (f'there is a parameter server at {place} already: {shown(status.host, NAMED)}, '
            f'{shown(status.sync, NAMED)}, with {shown(robots)}, for {status.elapsed:.0f} s. Stop '
            'it, or give this fleet its own network.namespace or network.domain_id')


def gives_way(mine: tuple[float, int, int], other: Any, age: float) -> bool:
    """Return whether our server ends because there is another server.

    The server that has trained for a shorter time ends, but only in the first `YOUNG` seconds after
    its start. If both times are equal, the server with fewer statuses ends. If the two counts also
    differ by at most `AT_ONCE`, the server whose process has the higher number ends.

    :param mine: three numbers of our server: seconds of training in its run, count of its last
        status, and public number of its process (the field ``incarnation`` of a status).
    :param other: status of the other server, which may be a moment old.
    :param age: seconds since the start of our server.
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
    """Decides whether an authenticated status of a server is new or repeated.

    Of two statuses of the same process, the one with the higher ``count`` is newer. Of two
    processes of the same run, the one with the higher ``start`` is newer. Of two statuses from
    different runs, the one with the later time stamp is newer. The time stamps are compared only
    with each other, never with the robot's clock.

    :param limit: if no new status has come for this many seconds, a status from another run is new
        even if its time stamp is earlier: a server may have moved to a machine whose clock is
        behind. The answer to the registration then proves which process is there.
    """

    def __init__(self, limit: float) -> None:
        self._status = Silence(limit)
        self._newest: Any = None

    def is_new(self, status: Any, now: float) -> bool:
        """Return whether an authenticated status is new.

        :param now: time in seconds on a monotonic clock.
        """
        if self._newest is not None and not self._follows(status, self._newest, now):
            return False
        self._newest = status
        self._status.hear(now)
        return True

    def _follows(self, status: Any, newest: Any, now: float) -> bool:
        if status.incarnation == newest.incarnation:
            return status.count > newest.count
        if status.run == newest.run:
            return status.start > newest.start
        return _made(status) > _made(newest) or self._status.is_silent(now)


def _made(status: Any) -> tuple[int, int]:
    stamp = status.header.stamp
    return stamp.sec, stamp.nanosec


class Loyalty:
    """Keeps a robot with the server that has accepted it, while messages of this server arrive.

    :param limit: seconds of silence after which the server counts as gone.
    """

    def __init__(self, limit: float) -> None:
        self._server = Silence(limit)
        self._place = (0, 0)  # run and start number of the server that has accepted the robot

    def listens(self, own: bool, now: float) -> bool:
        """Return whether the robot uses a message from a server.

        :param own: whether the message is from the server that has accepted the robot.
        """
        if own:
            self._server.hear(now)
        return own or self._server.is_silent(now)

    def note(self, own: bool, status: Any) -> None:
        """Record a status that the fleet key authenticates; ``own``: see `listens`.

        A server holds a lock on the run's directory until its process ends. So a status from a
        later start of the same run shows that the robot's server is dead, and the robot need
        not wait until ``limit`` has passed.

        Never call this with an unauthenticated status: anyone can read run and start, and could
        lead the robot away from a healthy server. Therefore a robot without a key always waits
        until ``limit`` has passed. DDS would not be faster, because it notices only after 30 s
        that the writer of a killed server is gone.
        """
        run, start = status.run, status.start
        if own:
            self._place = run, start
        elif run == self._place[0] and start > self._place[1]:
            self._server.hear(-math.inf)
