"""Passes whose shapes vary: the stretches between the places that do are found and replayed.

A detector's backbone is the same in every inference, what follows a selection by score or an `nms`
on the robot is not. The log is read in *pieces*, each ending with a wanted call or before an input.
A *stretch* begins with an input and goes on as long as every piece is one that was seen before and
follows the last one always. It ends

- with a data-dependent operator whose shape was another one before: that result has no shape in it;
- after the last wanted call before any other piece that differs, an input of another shape too:
  that piece is in no stretch;
- where its first piece comes again: an inference begins. A loop that goes on until a value says
  that it is enough has no piece that is new, and the inferences would be one stretch.

Stretches form a tree by their pieces, and each place where one ends has a search of its own.
Whatever hangs on a shape that varies has other pieces each time, and is not part of one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .record import HTOD, Call, Meta
from .search import Search, skeleton
from .sequence import Sequence

LIMIT = 1 << 15    # calls in a stretch, and kinds of calls that are told apart
FED = 16           # stretches in a search's log

Piece = tuple[int, ...]          # tags of its calls; what the last one returned does not count
Metas = tuple[Meta | None, ...]


@dataclass(slots=True)
class _Node:
    """A place in the tree, behind a piece."""

    varies: bool = False                # the shape at its end
    ends: bool = False                  # stretches end here
    following: Piece | None = None      # the one piece that came next
    child: _Node | None = None          # the place behind that
    search: Search | None = None        # of the stretches that ended here
    fed: int = 0

    def after(self, piece: Piece, known: bool) -> _Node | None:
        """The place behind this piece; None if the stretch ends before it."""
        if self.following not in (None, piece):
            self.ends, self.child = True, None
        if self.ends or not known:
            return None
        if self.child is None:
            self.following, self.child = piece, _Node()
        return self.child


class PartialSequences:
    """Feed it the calls that were made one by one, as a `Search`."""

    def __init__(self, repetitions: int) -> None:
        self._repetitions = repetitions
        self._metas: dict[int, Meta] = {}     # of the program's tensors
        self.restart()

    def restart(self) -> None:
        """Forget what was seen."""
        self._tags: dict[tuple[object, ...], int] = {}
        self._seen: dict[Piece, Metas] = {}    # what the last call of a piece returned
        self._roots: dict[Piece, _Node] = {}
        self._leave()

    def _leave(self) -> None:
        self._piece: list[Call | int] = []     # calls and freed handles, in order
        self._key: list[int] = []              # tags of its calls
        self._stretch: list[Call | int] = []   # the pieces before it, if a stretch is open
        self._root: Piece = ()                 # its first piece
        self._node: _Node | None = None        # where that is
        self._end: tuple[_Node, int] | None = None   # its last wanted call: place, and items so far
        self._given: dict[int, Meta] = {}      # tensors that were used in it

    def observe(self, call: Call) -> Sequence | None:
        """A call was made; a sequence that ends with it or before, if one is found."""
        if len(self._tags) + len(self._stretch) + len(self._piece) >= LIMIT:
            self.restart()
        found = None
        if call.op == HTOD and self._key and self._last().op != HTOD:
            found = self._end_piece()
        tag, given = skeleton(call)
        metas = None if call.wanted else call.metas
        self._piece.append(call)
        self._key.append(self._tags.setdefault((*tag[:2], metas, *tag[3:]), len(self._tags)))
        for handle in given:
            if handle in self._metas:
                self._given[handle] = self._metas[handle]
        for made, meta in zip(call.results, call.metas, strict=True):
            if made is not None and meta is not None:
                self._metas[made] = meta
        return self._end_piece() if call.wanted else found

    def _last(self) -> Call:
        return next(item for item in reversed(self._piece) if isinstance(item, Call))

    def _end_piece(self) -> Sequence | None:
        key, last = tuple(self._key), self._last()
        known = key in self._seen
        varies = known and self._seen[key] != last.metas
        self._seen[key] = last.metas
        found, first = None, self._piece[0]
        if self._end is not None and key == self._root:
            found = self._close(again=True)
        before = self._node
        node = before.after(key, known) if before else None
        if before and not node:
            found = self._close()
        elif not node and known and isinstance(first, Call) and _begins(first):
            self._root, node = key, self._roots.setdefault(key, _Node())
            used = {h for item in self._piece if isinstance(item, Call) for h in item.inputs()}
            self._given = {h: meta for h, meta in self._given.items() if h in used}
        if node:
            self._stretch += self._piece
            self._node = node
            node.varies |= varies
            if last.wanted:
                self._end = node, len(self._stretch)
        else:
            self._given = {}
        self._piece, self._key = [], []
        if node and node.varies:
            self._stretch[-1] = replace(last, metas=(None,) * len(last.metas))
            return self._close() or found
        return found

    def _close(self, again: bool = False) -> Sequence | None:
        """The open stretch is over: it is searched up to its last wanted call.

        `again`: for no other reason than that it begins again; if it always does, nothing varies.
        """
        stretch, given, end = self._stretch, self._given, self._end
        self._stretch, self._node, self._end = [], None, None
        if end is None:
            return None
        node, size = end
        if again and not node.ends:
            return None
        if node.search is None or node.fed % FED == 0:
            node.search = Search(self._repetitions, rotate=False)
        node.fed += 1
        made = {h for item in stretch[:size] if isinstance(item, Call) for h in item.fresh()}
        node.search.interrupt({h: meta for h, meta in given.items() if h not in made})
        found = None
        for item in stretch[:size]:
            if isinstance(item, Call):
                found = node.search.observe(item)
            else:
                node.search.freed(item)
        return found

    def freed(self, handle: int) -> None:
        """The program holds this tensor no longer."""
        self._metas.pop(handle, None)
        if self._piece:
            self._piece.append(handle)
        elif self._node:
            self._stretch.append(handle)

    def interrupt(self, left: dict[int, Meta]) -> Sequence | None:
        """A pass was replayed here; a sequence that ends before it, if one is found.

        `left`: the tensors that live on after it.
        """
        found = self._close()
        self._leave()
        self._metas.update(left)
        return found


def _begins(call: Call) -> bool:
    """Whether a stretch may begin here: with an input, which is no number of the program's."""
    return call.op == HTOD and any(meta and meta.shape for meta in call.metas)
