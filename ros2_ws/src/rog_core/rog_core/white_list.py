"""GSGM's white list: every robot contributes once per round, in the order in which they come."""

from __future__ import annotations

from typing import Any

from .policy import Fleet, Policy
from .sync import SyncMethod
from .update import Contribute, EndRound, Step


class WhiteList(Policy):
    """GSGM, Algorithm 2: who is on the list contributes at once and leaves it, the others queue.

    The list is what is left of the fleet, so who dies or joins holds up nobody for ever. It is
    recovered as soon as it is empty, as the paper's text says; its listing waits for the next push,
    which changes the order of nothing, but lets those in the queue wait for a whole iteration of
    the slowest. A robot that is held back otherwise, at a barrier (SVRG) or by the bound, left from
    a former method, is not waited for.
    """

    def __init__(self, method: SyncMethod) -> None:
        super().__init__(method)
        self._contributed: set[str] = set()  # in this round
        self._queue: list[str] = []
        self._list: list[str] = []           # who has yet to contribute to it

    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        """See `Policy.on_push`."""
        if robot not in self._queue:
            self._queue.append(robot)

    def steps(self, fleet: Fleet, gone: frozenset[str]) -> list[Step]:
        """See `Policy.steps`."""
        out: list[Step] = []
        while True:
            for robot in [r for r in self._queue if r not in self._contributed]:
                self._queue.remove(robot)
                self._contributed.add(robot)
                out.append(Contribute(robot))
            self._list = self._listed(fleet, gone)
            if not self._contributed or self._list:
                return out
            out.append(EndRound())
            self._contributed.clear()
            self.expected = frozenset()

    def _listed(self, fleet: Fleet, gone: frozenset[str]) -> list[str]:
        here = [name for name in fleet if not Policy.held_up_by(self, name, fleet)]
        away = sorted(self.expected - fleet.keys() - gone)
        return [name for name in here + away if name not in self._contributed]

    def held_up_by(self, robot: str, fleet: Fleet, least: float = 0.0) -> list[str]:
        """See `Policy.held_up_by`: who is in the queue waits for those still on the list."""
        if robot in self._queue:
            return self._list
        return super().held_up_by(robot, fleet, least)

    def state(self) -> dict[str, Any]:
        """See `Policy.state`."""
        return {'contributed': sorted(self._contributed), 'queue': list(self._queue),
                'list': list(self._list)}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Policy.load_state`."""
        self._contributed = set(map(str, state.get('contributed', ())))
        self._queue = list(map(str, state.get('queue', ())))
        self._list = list(map(str, state.get('list', ())))
        self.expected = frozenset(self._list)
