"""Refuses pushes whose norm no healthy robot would have; our addition, not in the paper.

A robot whose gradient explodes, or a stranger, must not ruin the model of the fleet. The norm of a
push (root of the sum of the squares of its decoded values) is compared with the median norm of the
fleet's last pushes, which one robot among several cannot move. A refused push is not applied, but
its receipt says that it was taken: otherwise its sender would send it forever.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

import numpy as np

from ..arrays import Array, to_host
from ..protocol.messages import Kind
from ..transfer.receiver import Receiver, Rows

WINDOW = 64    # number of the last pushes whose norms are remembered
ENOUGH = 8     # least number of norms for a median
UNKNOWN = 1e6  # usual norm as long as there are no pushes and the model is zero
LARGEST = 1e18  # largest norm allowed, whatever the limit; keeps sums in float32 finite


class Plausibility:
    """The usual norms in a fleet; ``limit``: largest norm of a push, in multiples of the usual.

    A limit of 0 lets all norms up to `LARGEST` pass. While there are fewer than `ENOUGH` pushes,
    the largest of their norms and the norm of the model is the usual norm. ``master``: float32
    (elements,).
    """

    def __init__(self, limit: float, master: Array) -> None:
        self.limit, self._master = limit, master
        self.begin()

    def begin(self) -> None:
        """Forget the norms, because another method may have other norms."""
        host = to_host(self._master)
        self._start = float(np.linalg.norm(host)) if self.limit else 0.0
        self._norms: dict[Kind, deque[float]] = {
            kind: deque(maxlen=WINDOW) for kind in (Kind.PUSH, Kind.ANCHOR)}
        self._most = {kind: self._bound(kind) for kind in self._norms}

    @property
    def reason(self) -> str:
        """The reason for which a push is refused."""
        if not self.limit:
            return f'its norm is above {LARGEST:g}'
        return f'its norm is above {self.limit:g} times the usual one (server.implausible)'

    def usual(self, kind: Kind) -> float:
        """Return the norm that is usual for a push of this kind."""
        norms = self._norms[kind]
        if len(norms) >= ENOUGH:
            return median(norms)
        return max([self._start if kind == Kind.PUSH else 0.0, *norms]) or UNKNOWN

    def _bound(self, kind: Kind) -> float:
        """Return the largest sum of squares that a push may have."""
        return min(self.limit * self.usual(kind) if self.limit else math.inf, LARGEST) ** 2

    def admits(self, push: Receiver, rows: Rows) -> bool:
        """Whether new rows of a push may be applied; false once rows of the push were refused."""
        energy = push.energy + rows.energy
        if push.refused or energy > self._most[rows.transfer.kind]:
            push.refused += 1
            return False
        push.energy = energy
        return True

    def learn(self, push: Receiver) -> None:
        """Remember the norm of a push that is over."""
        if push.transfer is not None and push.energy > 0 and not push.refused:
            kind = push.transfer.kind
            self._norms[kind].append(math.sqrt(push.energy))
            self._most[kind] = self._bound(kind)
