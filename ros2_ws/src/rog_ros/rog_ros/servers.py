"""Two parameter servers at one place: who gives way, and to which of them a robot listens."""

from __future__ import annotations

import math
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

YOUNG = 10.0  # s in which a server that meets another one may still give way


def this_process() -> str:
    """Return the machine and the process, as statuses name it."""
    return f'{platform.node()}, process {os.getpid()}'


def this_version() -> str:
    """Return the version of this software, as statuses name it."""
    try:
        return version('rog_ros')
    except PackageNotFoundError:  # a workspace that was built, not installed
        return 'unknown'


def is_there(status: Any) -> bool:
    """Whether the server that sent this status still serves."""
    return status.state != 'stopped'


def refusal(status: Any, place: str) -> str:
    """Return why a server does not start beside the one that sent this status."""
    robots = ', '.join(robot.robot for robot in status.robots) or 'no robot yet'
    return (f'there is a parameter server at {place} already: {status.host}, {status.sync}, with '
            f'{robots}, for {status.elapsed:.0f} s. Stop it, or give this fleet its own '
            'network.namespace or network.domain_id')


def gives_way(mine: tuple[float, int], other: Any, age: float) -> bool:
    """Whether a server ends because of another one: the younger does, while it is young.

    :param mine: elapsed time of its run, s, and incarnation; ``other``: the other's status.
    :param age: s since it was started.
    """
    return age < YOUNG and is_there(other) \
        and (-mine[0], mine[1]) > (-other.elapsed, other.incarnation)


class Loyalty:
    """A robot stays with the server that has accepted it, as long as it hears of it.

    :param limit: s of silence after which that one counts as gone.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._heard = -math.inf

    def listens(self, own: bool, now: float) -> bool:
        """Whether a message counts; ``own``: it is from the server that has accepted the robot."""
        if own:
            self._heard = now
        return own or now - self._heard > self._limit
