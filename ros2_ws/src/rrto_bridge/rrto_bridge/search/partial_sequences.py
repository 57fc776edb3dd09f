"""Partial sequences: replay the constant parts of inferences whose shapes vary.

A detector's backbone makes the same calls in every inference. The calls after a
selection by score, or after an `nms` on the robot, vary. This file cuts the calls into
*fragments*: a fragment ends with a wanted call (a call whose value the program needs at
once), or before an input. A *partial sequence* begins with an input. A fragment
continues the partial sequence if the fragment is known, and if no other fragment has
ever come after the previous fragment. The partial sequence ends

- with a data-dependent operator whose result has another shape than before (this shape
  stays undefined);
- with the last wanted call before a fragment that differs in another way, such as an
  input of another shape (this fragment is in no partial sequence);
- before its first fragment occurs again, because that marks the next inference.
  Otherwise a data-dependent loop, which contains no new fragment, would merge
  successive inferences.

Partial sequences form a tree of fragments. Each node where a partial sequence ends has
its own `Search`. Calls that depend on a varying shape form new fragments each time, so
they are in no partial sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..protocol.record import HTOD, Call, Meta
from ..protocol.sequence import Sequence
from .search import Search, skeleton

# `PartialSequences` forgets all observations when it holds this many items. It holds one item for
# each different call so far, and one for each call or freed handle in the open partial sequence and
# in the open fragment.
LIMIT = 1 << 15
FED = 16           # after every FED partial sequences, a node (`_Node`) gets a new `Search`

# A fragment: the tags of its calls. A tag is a number: calls with equal operators, arguments
# (without handles) and metas have equal tags. The tag of a wanted call omits its metas.
Fragment = tuple[int, ...]
Metas = tuple[Meta | None, ...]


@dataclass(slots=True)
class _Node:
    """A node of the tree of fragments: the position after a fragment."""

    varies: bool = False                # whether the shape of the fragment's result varies
    ends: bool = False                  # whether partial sequences end at this node
    following: Fragment | None = None   # the only fragment that has ever come after this node
    child: _Node | None = None          # the node after the fragment `following`
    search: Search | None = None        # finds sequences in the partial sequences that ended here
    fed: int = 0                        # number of partial sequences that ended at this node

    def after(self, fragment: Fragment, known: bool) -> _Node | None:
        """Return the node after `fragment`; None if the partial sequence ends before `fragment`.

        `known`: whether the fragment has occurred before.
        """
        if self.following not in (None, fragment):
            self.ends, self.child = True, None
        if self.ends or not known:
            return None
        if self.child is None:
            self.following, self.child = fragment, _Node()
        return self.child


class PartialSequences:
    """Finds partial sequences in the calls that are sent outside a replay; used like `Search`."""

    def __init__(self, repetitions: int) -> None:
        self._repetitions = repetitions
        self._metas: dict[int, Meta] = {}     # metas of the program's tensors
        self.restart()

    def restart(self) -> None:
        """Forget all observations."""
        self._tags: dict[tuple[object, ...], int] = {}
        # Maps each known fragment to the metas of the results of its last call.
        self._seen: dict[Fragment, Metas] = {}
        self._roots: dict[Fragment, _Node] = {}
        self._leave()

    def _leave(self) -> None:
        self._fragment: list[Call | int] = []  # calls and freed handles since the last fragment
        self._key: list[int] = []              # tags of the calls in `_fragment`
        # Calls and freed handles of the open partial sequence, up to the end of its last fragment.
        self._items: list[Call | int] = []
        self._root: Fragment = ()              # first fragment of the open partial sequence
        self._node: _Node | None = None        # node after the last fragment of `_items`
        # Node after the last wanted call of the open partial sequence, and the number of `_items`
        # up to and including this call; None if it has no wanted call yet.
        self._end: tuple[_Node, int] | None = None
        # Maps handles to metas, for the tensors that the calls in `_items` and `_fragment` use.
        self._given: dict[int, Meta] = {}

    def observe(self, call: Call) -> Sequence | None:
        """Record a call; return the sequence found that ends with or before this call, or None."""
        if len(self._tags) + len(self._items) + len(self._fragment) >= LIMIT:
            self.restart()
        found = None
        if call.op == HTOD and self._key and self._last().op != HTOD:
            found = self._end_fragment()
        tag, given = skeleton(call)
        metas = None if call.wanted else call.metas
        self._fragment.append(call)
        self._key.append(self._tags.setdefault((*tag[:2], metas, *tag[3:]), len(self._tags)))
        for handle in given:
            if handle in self._metas:
                self._given[handle] = self._metas[handle]
        for made, meta in zip(call.results, call.metas, strict=True):
            if made is not None and meta is not None:
                self._metas[made] = meta
        return self._end_fragment() if call.wanted else found

    def _last(self) -> Call:
        return next(item for item in reversed(self._fragment) if isinstance(item, Call))

    def _end_fragment(self) -> Sequence | None:
        key, last = tuple(self._key), self._last()
        known = key in self._seen
        varies = known and self._seen[key] != last.metas
        self._seen[key] = last.metas
        found, first = None, self._fragment[0]
        if self._end is not None and key == self._root:
            found = self._close(again=True)
        before = self._node
        node = before.after(key, known) if before else None
        if before and not node:
            found = self._close()
        elif not node and known and isinstance(first, Call) and _begins(first):
            self._root, node = key, self._roots.setdefault(key, _Node())
            used = {h for item in self._fragment if isinstance(item, Call) for h in item.inputs()}
            self._given = {h: meta for h, meta in self._given.items() if h in used}
        if node:
            self._items += self._fragment
            self._node = node
            node.varies |= varies
            if last.wanted:
                self._end = node, len(self._items)
        else:
            self._given = {}
        self._fragment, self._key = [], []
        if node and node.varies:
            self._items[-1] = replace(last, metas=(None,) * len(last.metas))
            return self._close() or found
        return found

    def _close(self, again: bool = False) -> Sequence | None:
        """End the open partial sequence; search it up to its last wanted call.

        `again`: whether the partial sequence ends only because its first fragment occurs again. In
        this case, search it only if different fragments have come after its last wanted call
        (`ends` of the node). Otherwise nothing varies there, and the search for whole sequences
        finds these calls.
        """
        items, given, end = self._items, self._given, self._end
        self._items, self._node, self._end = [], None, None
        if end is None:
            return None
        node, size = end
        if again and not node.ends:
            return None
        if node.search is None or node.fed % FED == 0:
            node.search = Search(self._repetitions, rotate=False)
        node.fed += 1
        made = {h for item in items[:size] if isinstance(item, Call) for h in item.fresh()}
        node.search.interrupt({h: meta for h, meta in given.items() if h not in made})
        found = None
        for item in items[:size]:
            if isinstance(item, Call):
                found = node.search.observe(item)
            else:
                node.search.freed(item)
        return found

    def freed(self, handle: int) -> None:
        """Record that the program no longer references a tensor."""
        self._metas.pop(handle, None)
        if self._fragment:
            self._fragment.append(handle)
        elif self._node:
            self._items.append(handle)

    def interrupt(self, left: dict[int, Meta]) -> Sequence | None:
        """Record the replay of an inference; return a sequence found before the replay, or None.

        `left` maps handles to metas, for the tensors that remain after the replay.
        """
        found = self._close()
        self._leave()
        self._metas.update(left)
        return found


def _begins(call: Call) -> bool:
    """Return whether the call is an input with dimensions.

    A partial sequence can begin only with such a call.
    """
    return call.op == HTOD and any(meta and meta.shape for meta in call.metas)
