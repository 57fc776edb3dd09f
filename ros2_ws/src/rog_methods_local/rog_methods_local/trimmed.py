"""BSP with a trimmed mean, which bounds the influence of faulty robots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numba import njit
from rog_core.errors import ConfigError
from rog_core.methods.base import Fleet, Holding, Method, Model, Team
from rog_core.methods.method_spec import MethodSpec
from typing_extensions import override

_BLOCK = 1 << 14  # elements of each array that `trimmed_mean` processes at once, to fit the cache


class Trimmed(Holding, Method):
    """``trimmed:K``: BSP, but the mean of an element omits its K largest and K smallest values.

    Source: coordinate-wise trimmed mean, Yin et al., Byzantine-robust distributed learning: towards
    optimal statistical rates, ICML 2018. The server applies no push before all robots have pushed.
    Then it changes the model by the trimmed mean of the pushes. Up to K robots may send any values.
    The method needs 2 K + 1 robots; while fewer robots are present, it uses the median.
    """

    name = 'trimmed'
    usage = 'trimmed:K'
    known = ()

    def __init__(self, spec: MethodSpec, team: Team) -> None:
        super().__init__(spec, team)
        if team.capacities and len(team.capacities) <= 2 * self.cut:
            raise ConfigError(f"'{self}' leaves out {2 * self.cut} robots of each mean, and the "
                              f'fleet has {len(team.capacities)}; it needs at least '
                              f'{2 * self.cut + 1}')
        self._pushed: set[str] = set()     # robots that have pushed in this round
        self._robots: frozenset[str] = frozenset()  # robots of the fleet

    @override
    def bounds(self) -> tuple[float, float]:
        self.cut = self.spec.threshold(1)
        return 1, 1

    @override
    def begin(self, model: Model, iteration: int) -> None:
        super().begin(model, iteration)
        self._pushed.clear()

    @override
    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        self._pushed.add(robot)

    @override
    def settle(self, fleet: Fleet, gone: frozenset[str], robots: int) -> None:
        self._robots = frozenset(fleet)
        awaited = (self._robots | self.expected - gone) - self._pushed
        if not awaited and self._pushed:
            self.expected = frozenset()
            self.end_round(sorted(self._pushed))

    def end_round(self, robots: Iterable[str]) -> None:
        """Apply the trimmed mean of the pushes of these robots."""
        values = [self.held.pop(name) for name in robots if name in self.held]
        self._pushed.clear()
        if values:
            master = self.held_model.master
            master -= trimmed_mean(values, min(self.cut, (len(values) - 1) // 2))

    @override
    def flush(self, robots: int) -> None:
        # Apply also the pushes of robots that are gone, because the server has acknowledged them.
        self.end_round(list(self.held))

    @override
    def state(self) -> dict[str, Any]:
        return {'pushed': sorted(self._pushed), 'robots': sorted(self._robots)}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        self._pushed = set(map(str, state.get('pushed', ())))
        self.expected = frozenset(map(str, state.get('robots', ())))


def trimmed_mean(values: list[np.ndarray], cut: int) -> np.ndarray:
    """Return the mean of each element without its ``cut`` largest and smallest values, float32."""
    out = np.empty_like(values[0])
    for begin in range(0, out.size, _BLOCK):
        block = slice(begin, begin + _BLOCK)
        _trimmed_mean(np.stack([v[block] for v in values]), cut, out[block])
    return out


@njit(nogil=True, cache=True)
def _trimmed_mean(values, cut, out):
    """``values``: shape (arrays, elements)."""
    count, sorted_values = values.shape[0], np.empty(values.shape[0], np.float32)
    for k in range(out.size):
        for i in range(count):  # insertion sort, because there are few values
            value, at = values[i, k], i
            while at > 0 and sorted_values[at - 1] > value:
                sorted_values[at] = sorted_values[at - 1]
                at -= 1
            sorted_values[at] = value
        total = np.float64(0)
        for i in range(cut, count - cut):
            total += sorted_values[i]
        out[k] = total / (count - 2 * cut)
