"""The outer step of methods whose robots make local steps: Nesterov momentum on the server.

Source: DiLoCo (arXiv 2311.08105), Algorithm 1. A robot pushes its model before the local steps
minus its model after them. Let delta be the mean of these pushes over the robots. Then
velocity = momentum * velocity + delta; model -= rate * (delta + momentum * velocity). With rate = 1
and momentum = 0, this is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numba import njit
from typing_extensions import override

from ..codecs import Codec
from ..codecs.base import Segments
from ..errors import ConfigError
from .method_spec import MethodSpec
from .role import Model, Team
from .update import Update


class Outer(Update):
    """Applies pushes with the rate and momentum of the options ``rate=R`` and ``momentum=B``.

    The defaults are `usual_rate` and `usual_momentum`: 1 and 0 in this class. With these values,
    pushes are applied as in `Update`.

    Every row has its own momentum, so that rows may arrive one by one. When a row arrives, it is
    multiplied by the rate and applied. The momentum of a row is updated and applied after every n
    pushes of the row, where n is the number of robots (delayed Nesterov, Liu et al., arXiv
    2401.09135). If every robot pushes the row once in a round, the momentum is applied at the end
    of the round, and the result equals DiLoCo's step.
    """

    usual_rate, usual_momentum = 1.0, 0.0

    def __init__(self, spec: MethodSpec, team: Team) -> None:
        super().__init__(spec, team)
        self.rate = self.numbers.get('rate', self.usual_rate)
        self.momentum = self.numbers.get('momentum', self.usual_momentum)
        for name in self.options & {*self.ranges(), *self.numbered()} - {*self.numbers}:
            raise ConfigError(f"'{spec.text}': {name} needs a number, for example {name}=1")

    @classmethod
    @override
    def ranges(cls) -> Mapping[str, tuple[float, float]]:
        return {'rate': (0.01, 10.0), 'momentum': (0.0, 0.999)}

    def needed(self, option: str) -> int:
        """Return the value of an option whose value is a whole number."""
        return int(self.numbers[option])

    @override
    def begin(self, model: Model, iteration: int) -> None:
        super().begin(model, iteration)
        if self.momentum:
            self.velocity, self.total = model.zeros(), model.zeros()
            # For each segment: the number of pushes that are summed in ``total``.
            self.count = np.zeros(model.partition.segments, np.int64)

    @override
    def take(self, robot: str, ids: np.ndarray, codec: Codec, data: np.ndarray, robots: int
             ) -> None:
        model = self.held_model
        codec.add(model.partition, model.master, ids, data, -self.rate / robots)
        if not self.momentum:
            return
        codec.add(model.partition, self.total, ids, data, 1.0 / robots)
        self.count[ids] += 1
        due = ids[self.count[ids] >= robots]
        if due.size:
            self.count[due] = 0
            add_momentum(model.partition, model.master, self.velocity, self.total, due, self.rate,
                         self.momentum)

    @override
    def arrays(self) -> dict[str, np.ndarray]:
        if not self.momentum:
            return super().arrays()
        lengths = self.held_model.partition.lengths
        count = np.repeat(self.count.astype(np.float32), lengths)
        return {**super().arrays(), 'velocity': self.velocity, 'total': self.total, 'count': count}

    @override
    def load_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        super().load_arrays(arrays)
        if self.momentum and arrays.keys() >= {'velocity', 'total', 'count'}:
            self.velocity, self.total = arrays['velocity'], arrays['total']
            first = self.held_model.partition.offsets[:-1]
            self.count = arrays['count'][first].astype(np.int64)


def add_momentum(partition: Segments, master: np.ndarray, velocity: np.ndarray, total: np.ndarray,
                 ids: np.ndarray, rate: float, mu: float) -> None:
    """Update the momentum of the segments ``ids``, and apply it to the model.

    velocity = mu * velocity + total; master -= rate * mu * velocity; total = 0. The three arrays
    are flat float32 (elements,). ``mu`` is the coefficient of the momentum.
    """
    _add_momentum(partition.offsets, ids, master, velocity, total, np.float32(mu),
                  np.float32(rate * mu))


@njit(nogil=True, cache=True)
def _add_momentum(offsets, ids, master, velocity, total, mu, factor):
    for i in range(ids.size):
        lo, hi = offsets[ids[i]], offsets[ids[i] + 1]
        a, v, t = master[lo:hi], velocity[lo:hi], total[lo:hi]
        for k in range(a.size):
            v[k] = mu * v[k] + t[k]
            a[k] -= factor * v[k]
            t[k] = 0
