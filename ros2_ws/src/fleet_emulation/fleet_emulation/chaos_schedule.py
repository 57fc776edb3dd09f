"""The faults that `rog chaos` injects; `schedule` draws their kinds and times from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .radio import Conditions

# The first line lists the faults of a robot, the second line the faults of the server.
KILL, PAUSE, BLACKOUT, LINK_IMPAIRMENT = 'kill', 'pause', 'blackout', 'link impairment'
RESTART, DISK_FULL = 'restart', 'disk full'
SERVER = 'server'

# Maps each fault to its shortest and its longest duration, in seconds, and its relative frequency.
OF_A_ROBOT = {KILL: (0.5, 60.0, 3), PAUSE: (1.0, 60.0, 3), BLACKOUT: (1.0, 120.0, 3),
              LINK_IMPAIRMENT: (5.0, 120.0, 4)}
OF_THE_SERVER = {RESTART: (0.5, 10.0, 1), DISK_FULL: (5.0, 30.0, 1)}
_ALL = {**OF_A_ROBOT, **OF_THE_SERVER}
GAP = 8.0        # mean time, in seconds, between the starts of two successive faults
QUIET = 60.0     # seconds without faults at the beginning and at the end of a long run; see `quiet`
APART = 30.0     # least time, in seconds, between two faults that must not overlap (see `schedule`)
PRESENT = 2      # least number of robots that are neither killed, paused nor in a blackout


@dataclass(frozen=True)
class Fault:
    """A fault of ``target``, a robot or the server, from ``start`` for ``duration`` seconds.

    ``kill``: SIGKILL; at the end the robot's process starts again. ``pause``: SIGSTOP; SIGCONT at
    the end. ``blackout``: no link. ``link impairment``: the link has ``conditions``. ``restart``:
    SIGKILL of the server; at the end it starts again from its checkpoint. ``disk full``: the disk
    with the server's directory is full.
    """

    start: float
    duration: float
    kind: str
    target: str
    conditions: Conditions = Conditions()

    @property
    def end(self) -> float:
        """Return the time at which the fault ends, in seconds from the start of the run."""
        return self.start + self.duration

    @property
    def absent(self) -> bool:
        """Return whether the fault is a kill, pause or blackout: its robot cannot take part."""
        return self.kind in (KILL, PAUSE, BLACKOUT)

    @property
    def takes_away(self) -> bool:
        """Return whether the fault keeps its target, a robot or the server, from taking part."""
        return self.absent or self.kind == RESTART

    def __str__(self) -> str:
        """Return one line that describes the fault."""
        c = self.conditions
        more = ''
        if self.kind == LINK_IMPAIRMENT:
            more = (f': loss {c.loss:.0%}, jitter {1e3 * c.jitter:.0f} ms, duplicates '
                    f'{c.duplicate:.0%}, reordered {c.reorder:.0%}')
        return f'{self.start:7.1f} s  {self.target:8} {self.kind} for {self.duration:.1f} s{more}'


def quiet(duration: float) -> float:
    """Return how many seconds at each end of a run of ``duration`` seconds have no faults."""
    return min(QUIET, duration / 6)


def schedule(seed: int, robots: Sequence[str], duration: float) -> list[Fault]:
    """Return the faults for a run of ``duration`` seconds, in order of their start.

    Equal arguments give equal schedules. Two faults are at least `APART` seconds apart if both
    make the same robot absent, both impair the same robot's link, or both are faults of the
    server. Other faults may overlap. At least `PRESENT` robots can always take part.
    """
    chance = random.Random(seed)
    found: list[Fault] = []
    for start in _beginnings(chance, duration):
        kind = chance.choices(list(_ALL), [often for *_, often in _ALL.values()])[0]
        shortest, longest, _ = _ALL[kind]
        # Draw the logarithm of the duration uniformly, because many real faults last only seconds.
        length = shortest * (longest / shortest) ** chance.random()
        fault = Fault(start, min(length, duration - quiet(duration) - start), kind,
                        SERVER if kind in OF_THE_SERVER else chance.choice(list(robots)),
                        _link_impairment(chance) if kind == LINK_IMPAIRMENT else Conditions())
        if fault.duration >= shortest and _fits(fault, found, len(robots)):
            found.append(fault)
    return found


def _beginnings(chance: random.Random, duration: float) -> Iterator[float]:
    at = quiet(duration)
    while (at := at + chance.expovariate(1 / GAP)) < duration - quiet(duration):
        yield at


def _link_impairment(chance: random.Random) -> Conditions:
    draw = chance.random
    return Conditions(loss=0.3 * draw(), delay=0.05 * draw(), jitter=0.05 * draw(),
                      duplicate=0.2 * draw(), reorder=0.2 * draw())


def _fits(fault: Fault, others: Sequence[Fault], robots: int) -> bool:
    together = [other for other in others if other.end + APART > fault.start]
    if any(other.target == fault.target and
           (other.absent == fault.absent or fault.target == SERVER) for other in together):
        return False
    away = {other.target for other in together if other.absent and other.end > fault.start}
    return not fault.absent or robots - len(away | {fault.target}) >= PRESENT
