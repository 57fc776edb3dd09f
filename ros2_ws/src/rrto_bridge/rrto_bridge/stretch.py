"""Passes whose shapes vary after a data-dependent operator: what repeats before it.

A detector's backbone is the same in every inference, what follows the selection by score is not. A
*stretch* is what is called from an input up to the first operator whose result has a shape that
depends on data. Stretches go to a search of their own, in which that result has no shape; whatever
hangs on it is not part of one.
"""

from __future__ import annotations

from dataclasses import replace

from .record import HTOD, Call, Meta
from .search import Search
from .sequence import Sequence

LIMIT = 1 << 15    # calls in a stretch


class Stretches:
    """Feed it the calls that were made one by one, as a `Search`."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self._search.restart()
        self._open: list[Call | int] | None = None   # calls and freed handles, in order
        self._varying: set[int] = set()              # tensors whose shape depends on data
        self._last: tuple[Meta | None, ...] = ()     # metas at the end of the last stretch

    def observe(self, call: Call) -> Sequence | None:
        """A call was made; a sequence that ends with it, if one is found."""
        if self._varying and not self._varying.isdisjoint(call.inputs()):
            self._varying.update(call.fresh())
            self._open = None
            return None
        if call.op == HTOD and self._open is None:
            self._open = []
        varying = call.fresh() if call.wanted else ()
        self._varying.update(varying)
        stretch = self._open
        if stretch is None:
            return None
        stretch.append(call)
        if not varying and len(stretch) < LIMIT:
            return None
        self._open = None
        return self._feed(stretch, call) if varying and call.metas != self._last else None

    def _feed(self, stretch: list[Call | int], end: Call) -> Sequence | None:
        self._last = end.metas
        stretch[-1] = replace(end, metas=(None,) * len(end.metas))
        found = None
        for item in stretch:
            if isinstance(item, Call):
                found = self._search.observe(item)
            else:
                self._search.freed(item)
        if found is None:
            self._search.interrupt({})
        return found

    def freed(self, handle: int) -> None:
        """The program holds this tensor no longer."""
        self._varying.discard(handle)
        if self._open is not None:
            self._open.append(handle)
        self._search.freed(handle)

    def interrupt(self, varying: set[int]) -> None:
        """A pass was replayed here; it left tensors whose shape depends on data."""
        self._open = None
        self._varying |= varying
