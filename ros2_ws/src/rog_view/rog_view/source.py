"""The content of a page, and the interface of the source from which it comes.

A source is a live fleet or a recording.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from rog_cli.display.fleet_state import Fleet, FleetState
from rog_ros.happened import Event

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class View:
    """The content of a page at one moment; immutable.

    ``curves``: maps each name in `CURVES` of `rog_cli.display.fleet_state` to a dict from robot to
    points (time in seconds, value). ``notice``: message at the top of the page. ``unable``: reason
    why the buttons are disabled; empty if they are enabled.
    """

    title: str
    fleet: Fleet = Fleet()
    curves: dict[str, dict[str, Points]] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    notice: str = ''
    unable: str = ''


def view_of(state: FleetState, now: float, title: str, notice: str = '', unable: str = '') -> View:
    """Return the view of ``state`` at time ``now``.

    :param now: time in seconds, on the clock with which ``state`` received its messages.
    """
    curves = {name: {robot: list(curve.points) for robot, curve in robots.items()}
              for name, robots in state.curves.items()}
    return View(title, state.shown(now), curves, tuple(state.events), notice, unable)


class Source(Protocol):
    """The source of a page's views.

    ``live``: whether the source is a running fleet; otherwise it is a recording.
    """

    live: bool

    @property
    def view(self) -> View:
        """Return the present view without waiting."""

    async def ask(self, service: str, **values: str) -> str:
        """Call a control service and return its answer.

        Raise `ControlError` if the call is refused.
        """
