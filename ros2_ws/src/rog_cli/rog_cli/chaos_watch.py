"""Check from outside what must hold while a fleet has faults. Sans-I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

CHECKSUM = re.compile(r'checksum of (\S+): ([0-9a-f]{8})')
FLAT_MIB, FLAT_SHARE = 32.0, 0.15  # growth of a process that counts as flat: the larger of both
AGE = 120.0                        # s that a process lives before its memory is judged
BUSY = 0.95                        # share of the time from which on a direction always had to wait


@dataclass(frozen=True)
class Seen:
    """One robot at one time: finished iterations, `away` at the server, and why it cannot work.

    ``unable``: kind of the fault that keeps the robot from working; empty: the robot can work.
    """

    iteration: int
    away: bool
    unable: str


def offered(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Return the rate that the shared air offered each robot, Mbit/s, in the worse direction.

    From two reports of `fleet_env.radio.Radio` with their times ``t``. A direction that was not
    busy all the time has had as much as it wanted: infinity.
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
    """What went wrong, at which time in s, at which robot or server."""

    t: float
    what: str
    target: str
    detail: str


@dataclass
class _Robot:
    iteration: int = -1
    moved: float = -math.inf      # when its iteration changed
    able_since: float = math.inf
    away: bool = False
    returned: float = math.inf    # when it became able again, until it has made an iteration
    cause: str = ''               # why it was not able
    told: bool = False            # of this standstill


@dataclass
class Watch:
    """Check observations in order of time and collect violations.

    :param bound: s within which a robot that can work must make an iteration.
    :param limit: s of silence after which the server may count a robot as away.
    """

    bound: float
    limit: float
    violations: list[Violation] = field(default_factory=list)
    returns: dict[str, list[float]] = field(default_factory=dict)  # cause -> s to an iteration
    pauses: dict[str, float] = field(default_factory=dict)  # longest s without iteration, if able
    _robots: dict[str, _Robot] = field(default_factory=dict)

    def observe(self, now: float, fleet: Mapping[str, Seen]) -> None:
        """Check the observations of all robots at one time."""
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
    """Return the growth of a process in MiB from (time s, MiB); None: too few samples.

    The growth is the median of the last quarter minus that of the second quarter.
    """
    if not samples or samples[-1][0] - samples[0][0] < AGE:
        return None
    begin, end = samples[0][0], samples[-1][0]
    quarter = (end - begin) / 4
    early = median(mib for t, mib in samples if quarter <= t - begin <= 2 * quarter)
    return median(mib for t, mib in samples if end - t <= quarter) - early


def grew(samples: Sequence[tuple[float, float]]) -> bool:
    """Return whether the memory of a process grows."""
    found = growth(samples)
    return found is not None and found > max(FLAT_MIB, FLAT_SHARE * samples[-1][1])


def checksums(lines: Iterable[str]) -> dict[str, str]:
    """Return transfer -> checksum of the rows after it, from a node's first log line of each."""
    found: dict[str, str] = {}
    for line in lines:
        if match := CHECKSUM.search(line):
            found.setdefault(*match.groups())
    return found


def mirrored(server: Mapping[str, str], robots: Iterable[Mapping[str, str]]
             ) -> tuple[int, list[str]]:
    """Return the number of transfers that both sides logged, and those with different rows."""
    here = {transfer: value for robot in robots for transfer, value in robot.items()}
    both = server.keys() & here.keys()
    return len(both), sorted(t for t in both if server[t] != here[t])
