"""GSGM: every robot contributes once per round, and the server keeps one global momentum."""

from __future__ import annotations

from typing import Any

import numpy as np
from typing_extensions import override

from ..errors import ConfigError
from ..protocol.steps import Gradient, Step
from .base import Fleet, Method, Model, Rolling, Team
from .method_spec import EARLY, MethodSpec


class Gsgm(Rolling, Method):
    """GSGM: every robot contributes once per round, and the server keeps one global momentum.

    ``gsgm``: a push has all rows. ``gsgm:T``: ATP chooses the rows; their staleness is at most T.

    Source: GSGM, Algorithm 2. If a robot on the white list pushes, the server applies the
    push at once, and the robot leaves the list. The push of a robot that is not on the list
    waits in a queue. When the list is empty, the round ends and all robots are on the list
    again. The list is computed from the robots that are present, so a robot that dies or
    joins cannot block the others. A robot that waits for another reason (a barrier of SVRG,
    or the bound T) is not on the list.

    Here the next round starts as soon as the list is empty, as the paper's text says. In
    the paper's listing, the next round starts only with the next push. The listing gives
    the same order of contributions, but robots in the queue wait longer, by one iteration
    of the slowest robot.

    For each contribution g, the server computes v' = (momentum * v + g) / robots and subtracts v'
    from the master rows. Here v is the sum of all v' of the previous round. In the paper's listing,
    v is an average over the robots, but the step of a push is not divided by the number of robots.
    Here every push is divided, as in all our methods. So the paper's learning rate equals our
    learning rate divided by the number of robots. The momentum also moves rows that a push does not
    contain.
    """

    name = 'gsgm'
    usage = 'gsgm'
    known = ('early', 'order', 'timeout', 'minimum', 'svrg')

    def __init__(self, spec: MethodSpec, team: Team) -> None:
        super().__init__(spec, team)
        if self.early and not spec.arguments:
            raise ConfigError(f"'{spec.text}': early transmission needs the bound of a row's "
                              'staleness, for example gsgm:4')
        self._contributed: set[str] = set()  # robots that have contributed in this round
        self._queue: list[str] = []
        # the white list: robots that can still contribute in this round
        self._list: list[str] = []

    @classmethod
    @override
    def by_default(cls, spec: MethodSpec) -> frozenset[str]:
        return EARLY if spec.arguments else frozenset()

    @override
    def bounds(self) -> tuple[float, float]:
        # Without T the bound is 2, which delays no robot further: a robot that is 2 iterations
        # ahead has a push in the queue, so it waits for the white list anyway.
        bound = self.spec.threshold(2) if self.spec.arguments else 2
        return bound, bound

    @property
    @override
    def by_row(self) -> bool:
        return True

    @override
    def grant(self, robot: str, iteration: int) -> tuple[int, Step]:
        # the server, not the robots, applies the momentum
        return iteration + 1, Gradient(momentum=False)

    # -- the white list --------------------------------------------------------------------------

    @override
    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        if robot not in self._queue:
            self._queue.append(robot)

    @override
    def settle(self, fleet: Fleet, gone: frozenset[str], robots: int) -> None:
        while True:
            for robot in [r for r in self._queue if r not in self._contributed]:
                self._queue.remove(robot)
                self._contributed.add(robot)
                self.contribute(robot, robots)
            self._list = self._listed(fleet, gone)
            if not self._contributed or self._list:
                return
            self.end_round()
            self._contributed.clear()
            self.expected = frozenset()

    def _listed(self, fleet: Fleet, gone: frozenset[str]) -> list[str]:
        held_up = super().held_up_by
        here = [name for name in fleet if not held_up(name, fleet)]
        away = sorted(self.expected - fleet.keys() - gone)
        return [name for name in here + away if name not in self._contributed]

    @override
    def held_up_by(self, robot: str, fleet: Fleet, least: float = 0.0) -> list[str]:
        if robot in self._queue:
            return self._list
        return super().held_up_by(robot, fleet, least)

    # -- the global momentum ---------------------------------------------------------------------

    @override
    def begin(self, model: Model, iteration: int) -> None:
        super().begin(model, iteration)
        self.partly_averaged = model.zeros()

    def contribute(self, robot: str, robots: int) -> None:
        """Apply the push of a robot, if it has pushed any rows."""
        if robot not in self.held:
            return
        unbiased = self.held.pop(robot)
        unbiased += np.float32(self.team.momentum) * self.velocity
        unbiased *= np.float32(1 / robots)
        self.partly_averaged += unbiased
        master = self.held_model.master
        master -= unbiased

    def end_round(self) -> None:
        """Begin the next round, because every robot has contributed once."""
        self.velocity = self.partly_averaged
        self.partly_averaged = self.held_model.zeros()

    @override
    def flush(self, robots: int) -> None:
        for robot in list(self.held):
            self.contribute(robot, robots)

    # -- restart ---------------------------------------------------------------------------------

    @override
    def state(self) -> dict[str, Any]:
        return {'contributed': sorted(self._contributed), 'queue': list(self._queue),
                'list': list(self._list)}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        self._contributed = set(map(str, state.get('contributed', ())))
        self._queue = list(map(str, state.get('queue', ())))
        self._list = list(map(str, state.get('list', ())))
        self.expected = frozenset(self._list)

    @override
    def arrays(self) -> dict[str, np.ndarray]:
        return {**super().arrays(), 'partly_averaged': self.partly_averaged}

    @override
    def load_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        super().load_arrays(arrays)
        self.partly_averaged = arrays.get('partly_averaged', self.partly_averaged)
