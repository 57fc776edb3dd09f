"""What a page shows, whether it is heard now or was recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from rog_cli.fleet_state import Event, Fleet, FleetState

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class View:
    """All that a page shows at one moment; nothing in it changes any more.

    ``curves``: name as in `rog_cli.fleet_state.CURVES` -> robot -> points. ``notice``: what the
    reader has to know first. ``unable``: why no button can be pressed; empty if they can.
    """

    title: str
    fleet: Fleet = Fleet()
    curves: dict[str, dict[str, Points]] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    notice: str = ''
    unable: str = ''


def view_of(state: FleetState, now: float, title: str, notice: str = '', unable: str = '') -> View:
    """Return what a page shows of this state."""
    curves = {name: {robot: list(curve.points) for robot, curve in robots.items()}
              for name, robots in state.curves.items()}
    return View(title, state.shown(now), curves, tuple(state.events), notice, unable)


class Source(Protocol):
    """Where a page gets what it shows. ``live``: whether that changes, and can be controlled."""

    live: bool

    @property
    def view(self) -> View:
        """What is to be shown now; at once."""

    async def ask(self, service: str, **values: str) -> str:
        """Call a control service and return its answer; `ControlError` if it is refused."""
