"""Limits the norm of each push, and so the effect of one robot on the model; not in the paper.

The norm of a push is the root of the sum of the squares of its decoded values. Rows are applied as
they arrive, before the norm of the whole push is known. So each push has a budget for this sum.
There are two limits, each a multiple of a norm that is usual in the fleet.

``implausible`` refuses a push that no healthy robot sends: a gradient that explodes, or the rows of
a stranger. The chunk that exceeds the budget, and all later chunks of the push, are not applied.
Nevertheless the receipt says that these chunks have arrived; otherwise the sender would send them
forever. The usual norm is computed in two steps: first the median of each robot's last pushes, then
the median of these values over the robots. So a robot that pushes more often does not count more.
The usual norm is at least the share `SMALL` of the norm of the model. Without this lower limit, the
tiny pushes of some robots could make the server refuse the normal pushes of others.

Before there are enough pushes, the norm of the model is the measure, or the median if that is
larger. The largest push is not the measure: it may be the push of the robot whose numbers are
wrong, and the next one could then be 100 times larger. The norm of a model says nothing if its
values are all zero, or nearly all, such as those of a linear layer that starts at zero. For such a
model the measure is the norm that it would have if each value was `FIRST`: more than the first
steps change a value, even with inputs of 0 to 255 and high learning rates, and far less than what a
gradient of 1e10 does. The values of any other model count as at least `LEAST`.

``clip`` scales down a push that is too large; it is off by default. Norm bounding is a common
defence of federated learning (Sun et al., Can you really backdoor federated learning?, 2019). There
a whole update is scaled after all of it has arrived. Here rows are applied in full until the budget
is used up. The chunk that exceeds the budget is scaled down, and later chunks are scaled to 0. The
most important rows arrive first. The usual norm for ``clip`` is a median of the same kind, over the
last pushes of the robots that take part now. With fewer than `MAJORITY` robots, ``clip`` scales
nothing. In a larger fleet, the very first push is scaled to 0 and only sets the usual norm.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from statistics import median, median_low

import numpy as np

from ..protocol.messages import Kind
from ..transfer.receiver import Receiver, Rows

WINDOW = 64     # the norms of the last WINDOW pushes of each robot are stored
# with fewer norms than this from all robots, the usual norm is at least the norm of the model
ENOUGH = 8
SMALL = 1e-3    # the usual norm is at least this share of the norm of the model
NEARLY_ZERO = 3e-3  # a model is nearly zero if the root mean square of its values is below this
FIRST = 10.0    # size as which the values of a model that is nearly zero count at first
LEAST = 0.1     # least size as which the values of any other model count at first
UNKNOWN = 1e6   # the usual norm before the first full gradient, which has no learning rate
# a larger norm is refused even if there is no limit, so that sums in float32 stay finite
LARGEST = 1e18
LAST = 8        # number of last pushes of each robot whose norms count for ``clip``
MAJORITY = 3    # with fewer robots in the fleet than this, ``clip`` scales nothing
_KINDS = Kind.PUSH, Kind.ANCHOR


class PushFilter:
    """Refuses or scales down pushes whose norm is too large.

    ``implausible`` and ``clip``: largest norms of a push, in multiples of the usual norm; 0: no
    limit. ``master``: the trained parameters, float32 (elements,).
    """

    def __init__(self, implausible: float, clip: float, master: np.ndarray) -> None:
        self.implausible, self.clip, self._master = implausible, clip, master
        self.begin()

    def begin(self) -> None:
        """Forget all norms: with another method, pushes may have different norms."""
        self._start = float(np.linalg.norm(self._master)) if self.implausible else 0.0
        # For each kind of transfer and each robot: the norms of its last pushes, and their median.
        self._norms: dict[Kind, dict[str, deque[float]]] = {kind: {} for kind in _KINDS}
        self._medians: dict[Kind, dict[str, float]] = {kind: {} for kind in _KINDS}
        # For each kind of transfer: sums of squares above which a push is refused, or scaled down.
        self._refused_above = {kind: self._plausible(kind) for kind in _KINDS}
        self._scaled_above = dict.fromkeys(_KINDS, 0.0 if self.clip else math.inf)

    @property
    def reason(self) -> str:
        """A text that says why a push is refused."""
        if not self.implausible:
            return f'its norm is above {LARGEST:g}'
        return f'its norm is above {self.implausible:g} times the usual one'

    def usual(self, kind: Kind) -> float:
        """Return the usual norm of a push of this kind, as computed from the last pushes."""
        norms, medians = self._norms[kind].values(), self._medians[kind].values()
        start = self._start if kind == Kind.PUSH else 0.0
        if sum(map(len, norms)) >= ENOUGH:
            return max(median(medians), SMALL * start)
        if kind == Kind.PUSH:
            one = math.sqrt(len(self._master))  # norm of a model whose values are all 1
            start = FIRST * one if start < NEARLY_ZERO * one else max(start, LEAST * one)
        return max([start, median_low(medians)] if medians else [start]) or UNKNOWN

    def _plausible(self, kind: Kind) -> float:
        """Return the largest sum of squares at which a push is not refused."""
        limit = self.implausible * self.usual(kind) if self.implausible else math.inf
        return min(limit, LARGEST) ** 2

    def passed(self, push: Receiver, rows: Rows, robots: int) -> Rows | None:
        """Return new rows of a push, scaled down if they exceed the rest of the push's budget.

        Returns None if the rows are refused; then all later rows of this push are refused, too.
        ``robots``: number of robots in the fleet.
        """
        kind, energy = rows.transfer.kind, push.energy + rows.energy
        if push.refused or energy > self._refused_above[kind]:
            push.refused += 1
            return None
        push.energy = energy
        most = self._scaled_above[kind] if robots >= MAJORITY else math.inf
        left = max(most - (energy - rows.energy), 0.0)
        if left >= rows.energy:
            return rows
        data = rows.codec.scaled(push.rows_of(rows.transfer), rows.ids, rows.data,
                                 math.sqrt(left / rows.energy))
        return rows._replace(data=data, energy=left)

    def learn(self, robot: str, push: Receiver, robots: Collection[str]) -> bool:
        """Store the norm of a push that has ended; return whether the push was scaled down.

        ``robots``: the robots that take part now.
        """
        if push.transfer is None or push.refused or push.energy <= 0:
            return False
        kind = push.transfer.kind
        norms = self._norms[kind]
        norms.setdefault(robot, deque(maxlen=WINDOW)).append(math.sqrt(push.energy))
        self._medians[kind][robot] = median(norms[robot])
        self._refused_above[kind] = self._plausible(kind)
        if not self.clip:
            return False
        usual = median_low([median(list(norms[name])[-LAST:])
                            for name in norms.keys() & {robot, *robots}])
        former, self._scaled_above[kind] = self._scaled_above[kind], (self.clip * usual) ** 2
        return len(robots) >= MAJORITY and 0 < former < push.energy
