"""Checks a fleet in which faults are injected.

Robots must make progress, memory must not grow, and server and robots must hold equal
rows. The checks use no I/O and no clock.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

CHECKSUM = re.compile(r'checksum of (\S+): ([0-9a-f]{8})')
# The memory of a process may grow by FLAT_MIB MiB, or by the share FLAT_SHARE of the memory that it
# has at the end, whichever is more.
FLAT_MIB, FLAT_SHARE = 32.0, 0.15
AGE = 120.0                        # least lifetime, in seconds, of a process whose memory is judged
# A direction of a link counts as busy if it had frames to send for at least this share of the time.
BUSY = 0.95


@dataclass(frozen=True)
class Seen:
    """The state of one robot at one time.

    ``iteration``: number of iterations that it has finished. ``away``: whether the server counts
    the robot as away. ``unable``: why the robot cannot work, such as the kind of a fault, or '' if
    it can work.
    """

    iteration: int
    away: bool
    unable: str


def offered(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Return for each robot the rate in Mbit/s that the shared air offered it.

    This rate is the lower of the rates of uplink and downlink. If a direction was not busy all
    the time, the air did not limit it, so its rate counts as infinity. ``before`` and
    ``after``: two reports of `fleet_emulation.radio.Radio`, each with its time ``t``.
    """
    seconds = after['t'] - before['t']
    found = {}
    for robot, now in after['robots'].items():
        former = before['robots'][robot]
        found[robot] = min(
            math.inf if now[way]['busy'] - former[way]['busy'] < BUSY * seconds
            else (now[way]['bytes'] - former[way]['bytes']) * 8e-6 / seconds
            for way in ('uplink', 'downlink'))
    return found


@dataclass(frozen=True)
class Violation:
    """A violation of the checks.

    ``t``: time in seconds. ``what``: kind of the violation. ``target``: the robot, server or
    transfer.
    """

    t: float
    what: str
    target: str
    detail: str


@dataclass
class _Robot:
    iteration: int = -1
    moved: float = -math.inf      # time in seconds at which the iteration last changed
    able_since: float = math.inf
    away: bool = False
    # time at which the robot could work again; infinity after its next iteration
    returned: float = math.inf
    cause: str = ''               # why the robot could not work before `returned`
    told: bool = False            # whether the missing progress has been reported


@dataclass
class Watch:
    """Checks observations, which must come in order of time, and collects violations.

    :param bound: seconds within which a robot that can work must make an iteration.
    :param limit: seconds. If a robot has been able to work for this time, a change of its state to
        away is a violation.
    """

    bound: float
    limit: float
    violations: list[Violation] = field(default_factory=list)
    # Maps each cause of an absence to a list: for each return of a robot, the seconds until its
    # next iteration.
    returns: dict[str, list[float]] = field(default_factory=dict)
    # Maps each robot to the longest time, in seconds, during which it made no iteration
    # although it could work.
    pauses: dict[str, float] = field(default_factory=dict)
    _robots: dict[str, _Robot] = field(default_factory=dict)

    def observe(self, now: float, fleet: Mapping[str, Seen]) -> None:
        """Check the states of all robots at the time ``now``."""
        for name, seen in fleet.items():
            known = self._robots.get(name)
            if known is None:
                known = self._robots[name] = _Robot(able_since=math.inf if seen.unable else now)
            self._ability(known, seen, now)
            if seen.iteration != known.iteration:
                self._progress(known, seen, now)
            still = now - max(known.moved, known.able_since)
            if not seen.unable:
                self.pauses[name] = max(self.pauses.get(name, 0.0), still)
            if not seen.unable and still > self.bound and not known.told:
                known.told = True
                self.report(now, 'no progress', name, f'it can work, but has made no iteration for '
                            f'{still:.0f} s (at {seen.iteration})')
            if seen.away and not known.away and now - known.able_since > self.limit:
                self.report(now, 'false death', name, 'the server calls it away, but for '
                            f'{now - known.able_since:.0f} s it has been able to work')
            known.away = seen.away

    @staticmethod
    def _ability(known: _Robot, seen: Seen, now: float) -> None:
        if seen.unable:
            known.able_since, known.returned, known.cause = math.inf, math.inf, seen.unable
        elif known.able_since == math.inf:
            known.able_since, known.returned, known.told = now, now, False

    def _progress(self, known: _Robot, seen: Seen, now: float) -> None:
        if known.returned < math.inf:
            self.returns.setdefault(known.cause, []).append(round(now - known.returned, 2))
            known.returned = math.inf
        known.iteration, known.moved, known.told = seen.iteration, now, False

    def report(self, now: float, what: str, target: str, detail: str) -> None:
        """Add a violation."""
        self.violations.append(Violation(round(now, 2), what, target, detail))


def growth(samples: Sequence[tuple[float, float]]) -> float | None:
    """Return by how many MiB the memory of a process grew.

    The samples are divided into four quarters of equal time. The growth is the median of the last
    quarter minus the median of the second quarter. Return None if the samples cover less than
    `AGE` seconds.

    :param samples: (time in seconds, memory in MiB) of each sample.
    """
    if not samples or samples[-1][0] - samples[0][0] < AGE:
        return None
    begin, end = samples[0][0], samples[-1][0]
    quarter = (end - begin) / 4
    early = median(mib for t, mib in samples if quarter <= t - begin <= 2 * quarter)
    return median(mib for t, mib in samples if end - t <= quarter) - early


def grew(samples: Sequence[tuple[float, float]]) -> bool:
    """Return whether the memory of a process grew by more than is allowed.

    The memory may grow by `FLAT_MIB` MiB or by the share `FLAT_SHARE` of the last sample,
    whichever is more.
    """
    found = growth(samples)
    return found is not None and found > max(FLAT_MIB, FLAT_SHARE * samples[-1][1])


def checksums(lines: Iterable[str]) -> dict[str, str]:
    """Return the checksum of the model's rows after each transfer, from the log lines of a node.

    If several lines name a transfer, the first line counts.
    """
    found: dict[str, str] = {}
    for line in lines:
        if match := CHECKSUM.search(line):
            found.setdefault(*match.groups())
    return found


def mirrored(server: Mapping[str, str], robots: Iterable[Mapping[str, str]]
             ) -> tuple[int, list[str]]:
    """Return how many transfers both sides logged, and those after which the rows differed.

    The rows differ if the server and the robot logged different checksums after the same transfer.
    """
    here = {transfer: value for robot in robots for transfer, value in robot.items()}
    both = server.keys() & here.keys()
    return len(both), sorted(t for t in both if server[t] != here[t])
