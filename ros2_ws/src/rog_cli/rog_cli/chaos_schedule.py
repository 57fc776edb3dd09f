"""What `rog chaos` breaks, and when: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fleet_env.radio import Conditions

KILL, PAUSE, BLACKOUT, WEATHER = 'kill', 'pause', 'blackout', 'weather'  # of a robot
RESTART, DISK_FULL = 'restart', 'disk full'                              # of the server
SERVER = 'server'

# Bounds of the duration in s, and how often among all.
OF_A_ROBOT = {KILL: (0.5, 60.0, 3), PAUSE: (1.0, 60.0, 3), BLACKOUT: (1.0, 120.0, 3),
              WEATHER: (5.0, 120.0, 4)}
OF_THE_SERVER = {RESTART: (0.5, 10.0, 1), DISK_FULL: (5.0, 30.0, 1)}
_ALL = {**OF_A_ROBOT, **OF_THE_SERVER}
GAP = 8.0        # s between two beginnings, on average
QUIET = 60.0     # s at the beginning, and at the end, in which nothing begins or lasts; see `quiet`
APART = 30.0     # s that the server, or a robot, is left alone after what has befallen it
PRESENT = 2      # robots that are neither killed, paused nor out of range at any moment


@dataclass(frozen=True)
class Mishap:
    """What happens to ``whom``, a robot or the server, from ``start`` for ``duration`` seconds.

    ``kill``: kill -9, started again at the end. ``pause``: SIGSTOP, SIGCONT. ``blackout``: no link.
    ``weather``: the link has ``conditions``. ``restart``: the server, killed -9, starts again at
    the end from its checkpoint. ``disk full``: of the server's directory.
    """

    start: float
    duration: float
    kind: str
    whom: str
    conditions: Conditions = Conditions()

    @property
    def end(self) -> float:
        """Time at which it is over, s."""
        return self.start + self.duration

    @property
    def absent(self) -> bool:
        """Whether a robot cannot take part meanwhile."""
        return self.kind in (KILL, PAUSE, BLACKOUT)

    @property
    def takes_away(self) -> bool:
        """Whether whom it befalls, a robot or the server, cannot take part meanwhile."""
        return self.absent or self.kind == RESTART

    def __str__(self) -> str:
        """Return a line for people."""
        c = self.conditions
        more = (f': loss {c.loss:.0%}, jitter {1e3 * c.jitter:.0f} ms, duplicates '
                f'{c.duplicate:.0%}, reordered {c.reorder:.0%}') if self.kind == WEATHER else ''
        return f'{self.start:7.1f} s  {self.whom:8} {self.kind} for {self.duration:.1f} s{more}'


def quiet(duration: float) -> float:
    """Return how long, in s, a run of so many seconds is left alone at both ends."""
    return min(QUIET, duration / 6)


def schedule(seed: int, robots: Sequence[str], duration: float) -> list[Mishap]:
    """Return what happens in ``duration`` seconds, in order; equal arguments, equal schedules.

    Mishaps overlap, but not two that take the same robot away, nor two of the server; `PRESENT`
    robots at least can always take part, and nothing happens while it is `quiet`.
    """
    chance = random.Random(seed)
    found: list[Mishap] = []
    for start in _beginnings(chance, duration):
        kind = chance.choices(list(_ALL), [often for *_, often in _ALL.values()])[0]
        shortest, longest, _ = _ALL[kind]
        # Short ones are as frequent as long ones: what goes wrong often does so within seconds.
        length = shortest * (longest / shortest) ** chance.random()
        mishap = Mishap(start, min(length, duration - quiet(duration) - start), kind,
                        SERVER if kind in OF_THE_SERVER else chance.choice(list(robots)),
                        _weather(chance) if kind == WEATHER else Conditions())
        if mishap.duration >= shortest and _fits(mishap, found, len(robots)):
            found.append(mishap)
    return found


def _beginnings(chance: random.Random, duration: float) -> Iterator[float]:
    at = quiet(duration)
    while (at := at + chance.expovariate(1 / GAP)) < duration - quiet(duration):
        yield at


def _weather(chance: random.Random) -> Conditions:
    draw = chance.random
    return Conditions(loss=0.3 * draw(), delay=0.05 * draw(), jitter=0.05 * draw(),
                      duplicate=0.2 * draw(), reorder=0.2 * draw())


def _fits(mishap: Mishap, others: Sequence[Mishap], robots: int) -> bool:
    together = [other for other in others if other.end + APART > mishap.start]
    if any(other.whom == mishap.whom and
           (other.absent == mishap.absent or mishap.whom == SERVER) for other in together):
        return False
    away = {other.whom for other in together if other.absent and other.end > mishap.start}
    return not mishap.absent or robots - len(away | {mishap.whom}) >= PRESENT
