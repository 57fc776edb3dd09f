"""The scenarios as data: the links of the robots, and the events with their times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rog_core.errors import ConfigError

What = Literal['link down', 'link up', 'kill', 'start']
STEADY = 20.0     # rate in Mbit/s of links without a record; the slow robot's link is slower
SLOW = 1.0        # rate in Mbit/s of the slow robot's link
VICTIM = 'robot2'
SERVER = 'server'


@dataclass(frozen=True)
class Event:
    """An event of a run, at the time ``share`` * duration of the run + ``after`` seconds.

    ``share``: 0 to 1. ``whom``: name of the robot that the event concerns, or ``server``.
    """

    what: What
    whom: str
    share: float
    after: float = 0.0

    def at(self, minutes: float) -> float:
        """Return the event's time in a run of ``minutes``: seconds after the records start."""
        return 60 * minutes * self.share + self.after


@dataclass(frozen=True)
class Scenario:
    """The conditions of a run: the links and the events.

    ``record``: the record that the links replay (a key of `rog_studies.rivals.records_of`); '' if
    the links have constant rates. ``rates``: pairs (name of a robot, constant rate of its link in
    Mbit/s) for all robots whose rate is not `STEADY`.
    """

    name: str
    help: str
    record: str = ''
    rates: tuple[tuple[str, float], ...] = ()
    events: tuple[Event, ...] = ()

    def schedule(self, minutes: float) -> list[tuple[float, Event]]:
        """Return (time in s, event) for each event of a run of ``minutes``, in order of time.

        :raises ConfigError: the run ends before an event happens.
        """
        found = sorted(((event.at(minutes), event) for event in self.events), key=lambda e: e[0])
        if found and found[-1][0] >= 60 * minutes:
            last = found[-1]
            raise ConfigError(f'--minutes must be long enough for scenario {self.name}: '
                              f'{last[1].what} of {last[1].whom} comes {last[0]:g} s after the '
                              f'beginning, got {minutes:g} minutes')
        return found


def _again(whom: str) -> tuple[Event, ...]:
    return Event('kill', whom, 1 / 3), Event('start', whom, 1 / 3, 10.0)


SCENARIOS = {scenario.name: scenario for scenario in (
    Scenario('outdoor', 'the published outdoor record', 'published'),
    Scenario('reversed', 'the outdoor record backwards', 'reversed'),
    Scenario('indoor', 'the indoor record', 'indoors'),
    Scenario('slow', f'{VICTIM} has {SLOW:g} Mbit/s, the others {STEADY:g}',
             rates=((VICTIM, SLOW),)),
    Scenario('outage', f'the link of {VICTIM} is dead for 60 s', events=(
        Event('link down', VICTIM, 1 / 3), Event('link up', VICTIM, 1 / 3, 60.0))),
    Scenario('lost', f'the link of {VICTIM} dies and stays dead', events=(
        Event('link down', VICTIM, 1 / 3),)),
    Scenario('robot-restart', f'{VICTIM} is killed, and started again 10 s later',
             events=_again(VICTIM)),
    Scenario('server-restart', 'the server is killed, and started again 10 s later',
             events=_again(SERVER)))}
DEFAULT = ('outdoor', 'slow', 'outage', 'lost', 'robot-restart', 'server-restart')


def chosen(names: list[str]) -> list[Scenario]:
    """Return the scenarios with these names; if ``names`` is empty, the scenarios of `DEFAULT`.

    :raises ConfigError: one of the names is not the name of a scenario.
    """
    for name in names:
        if name not in SCENARIOS:
            raise ConfigError(f'--scenarios must name some of {", ".join(SCENARIOS)}, got {name!r}')
    return [SCENARIOS[name] for name in names or DEFAULT]
