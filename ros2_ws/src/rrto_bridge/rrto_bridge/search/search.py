"""Operator Sequence Search: finds the calls that a program repeats (Algorithms 8 to 10).

The search is incremental, so its cost is linear in the length of the log. Each call gets a *tag*: a
number for its operator, its arguments without handles, and its results' metas. Equal calls have
equal tags, different calls have different tags. The log is cut into *sections*. Each section ends
with a wanted call (a call whose value the program needs at once, such as a copy from device to
host), because an inference can end only there. Sections with equal tags get the same *name*, also a
number. A pass is the calls of one inference: one or more sections. It is found if R passes in a row
(`REPETITIONS`) are equal:

- Candidates (boundary statistics): if the last 1, 2, 4, ... sections also occurred n sections ago,
  a pass may consist of n sections.
- FastCheck: the tags of R passes are equal.
- FullCheck: every tensor argument has the same role in R passes.

The length of a pass from call s to call e is e - s + 1, as in Algorithm 10 of the thesis. Algorithm
8 has e - s, which contradicts Algorithm 10.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from ..protocol.record import HTOD, Call, Meta, Ref
from ..protocol.sequence import Sequence, build

# R, the number of equal passes in a row. It is 3, because the first pass may still initialise data
# (thesis 5.3.3).
REPETITIONS = 3
# R is multiplied by this factor if a pass has no input: such a pass is possibly just a small loop.
WITHOUT_INPUT = 8
MAX_WANTED = 256      # maximum number of wanted calls in one pass
LIMIT = 1 << 17       # maximum calls in the log; a pass of more than LIMIT / R calls is not found

_ORDERS = MAX_WANTED.bit_length()
_TENSOR = '\0tensor'  # replaces each tensor in the tag of a call
_BOOLS = ('\0False', '\0True')

# Origin of a tensor: ``position << _SHIFT | index``, with the position of the call that
# created the tensor, and the index of the result. The origin is -1 for a tensor from
# before the log.
_SHIFT = 16
_INDEX = (1 << _SHIFT) - 1


class Search:
    """Keeps a log of the calls that are sent one by one, and finds repeated passes in the log."""

    def __init__(self, repetitions: int = REPETITIONS, limit: int = LIMIT, rotate: bool = True
                 ) -> None:
        """Begin with an empty log.

        `rotate`: whether to choose the section with which a pass begins (see `_best_cut`).
        Otherwise a pass ends at the wanted call at which its repetition was found.
        """
        if repetitions < REPETITIONS:
            raise ValueError(f'repetitions must be at least {REPETITIONS}, got {repetitions}')
        self.repetitions, self.limit = repetitions, limit
        self._rotate = rotate
        self.observed = 0             # number of observed calls
        self._tags: dict[Any, int] = {}
        self.restart()

    def restart(self) -> None:
        """Clear the log."""
        self._tags.clear()
        self._log: list[Call] = []
        self._row: list[int] = []                 # tags of the calls in `_log`
        self._given = array('q')                  # handles of the tensor arguments of all calls
        # for each tensor in `_given`: which call created it (its origin, see `_SHIFT`)
        self._from = array('q')
        # For each call: the index in `_given` and `_from` at which its tensor arguments begin.
        self._first = [0]
        # maps the handle of a live tensor to its origin (see `_SHIFT`)
        self._origin: dict[int, int]    = {}
        # Key: handle of a tensor that a replayed pass has left. Value: the meta of the tensor.
        self._outside: dict[int, Meta] = {}
        # Positions in the log. Before the call at each position, the program made calls that are
        # not in the log.
        self._breaks: list[int] = []
        self._input = -1                          # position of the last host-to-device copy
        # Maps (k, contents of a group of 2^k successive sections) to the group's name, a number.
        self._names: dict[Any, int] = {}
        # For each k: a list of names. Entry i is the name of the group of 2^k sections that ends
        # with section i.
        self._contexts: list[list[int]] = [[] for _ in range(_ORDERS)]
        # maps the name of a group to the index of the last section of its latest occurrence
        self._seen: dict[int, int] = {}
        self._ends: list[int] = [-1]              # section k ends at position _ends[k + 1]
        # Maps the length of a pass to the earliest position at which repeated passes of this length
        # may begin.
        self._blocked: dict[int, int] = {}

    def observe(self, call: Call) -> Sequence | None:
        """Record a call with its results; return a sequence if one is found."""
        if len(self._row) + len(self._outside) >= self.limit:
            self.restart()
        self.observed += 1
        position = len(self._row)
        key, given = skeleton(call)
        origin = self._origin
        self._given.extend(given)
        self._from.extend([origin.get(h, -1) for h in given])
        self._first.append(len(self._given))
        made = position << _SHIFT
        for handle in call.results:
            if handle in given:
                key.append(given.index(handle))
            elif handle is None:
                key.append(None)
            else:
                key.append(_TENSOR)
                origin[handle] = made
            made += 1
        self._log.append(call)
        self._row.append(self._tags.setdefault(tuple(key), len(self._tags)))
        if call.op == HTOD:
            self._input = position
        return self._on_end(position) if call.wanted else None

    def freed(self, handle: int) -> None:
        """Record that the program no longer references a tensor."""
        self._origin.pop(handle, None)

    def interrupt(self, left: Mapping[int, Meta]) -> None:
        """Record that calls outside the log, such as a replayed pass, follow the log's last call.

        No pass contains calls from both sides of this position. Every pass ends with a wanted call
        (a call whose value the program needs at once). So the calls after the log's last wanted
        call can no longer be in a pass; remove them from the log. `left`: a dict, handle -> meta,
        of the tensors that the calls outside the log have left.
        """
        self._outside.update(left)
        keep = self._ends[-1] + 1
        for call in self._log[keep:]:
            for handle in call.fresh():
                self._origin.pop(handle, None)
        del self._log[keep:], self._row[keep:], self._first[keep + 1:]
        del self._given[self._first[keep]:], self._from[self._first[keep]:]
        if self._input >= keep:
            self._input = -1
        if self._breaks[-1:] != [keep]:
            self._breaks.append(keep)

    # -- candidates and FastCheck (Algorithms 8 and 9) -------------------------------------------

    def _on_end(self, end: int) -> Sequence | None:
        periods = self._add_section(end)
        for period in sorted(periods):
            sequence = self._try(end, period)
            if sequence is not None:
                self.restart()
                return sequence
        return None

    def _add_section(self, end: int) -> set[int]:
        """Name the section that ends at position `end`; return the candidates.

        A candidate is a possible number of sections of a pass, at most `MAX_WANTED`. For each k,
        the last 2^k sections are looked up. If n sections is the distance to their latest earlier
        occurrence, n is a candidate.
        """
        section = len(self._ends) - 1
        key: Any = tuple(self._row[self._ends[-1] + 1:end + 1])
        self._ends.append(end)
        periods = set()
        for order, row in enumerate(self._contexts):
            name = self._names.setdefault((order, key), len(self._names))
            row.append(name)
            before = self._seen.get(name)
            if before is not None and section - before <= MAX_WANTED:
                periods.add(section - before)
            self._seen[name] = section
            earlier = section - (1 << order)
            if earlier < 0:
                self._fill(order + 1, section)
                break
            key = (row[earlier], name)
        return periods

    def _fill(self, order: int, section: int) -> None:
        """Append a unique name for each incomplete group of sections that ends with `section`.

        A group is incomplete if it would begin before the log.
        """
        for row in self._contexts[order:]:
            if len(row) <= section:
                row.append(-1 - section)

    def _try(self, end: int, period: int) -> Sequence | None:
        names, count = self._contexts[0], len(self._ends) - 1
        begin = count - period
        length = end - self._ends[begin]
        has_input = self._input > end - length
        repetitions = self.repetitions * (1 if has_input else WITHOUT_INPUT)
        first = end + 1 - repetitions * length
        if first < self._blocked.get(length, 0):
            return None
        # Compare the sections by name in all passes except the first pass. The first section of the
        # first pass may also contain calls from before this pass, and then has another name.
        whole = (repetitions - 2) * period
        if whole > begin or names[begin - whole:begin] != names[count - whole:count]:
            return None
        if self._row[first:first + length] != self._row[end + 1 - length:end + 1]:
            return None
        fixed = self._full_check(first, length, repetitions)
        if isinstance(fixed, int):
            self._blocked[length] = fixed
            return None
        wait = self._best_cut(end, length, period, fixed)
        if wait:
            self._blocked[length] = first + wait
            return None
        return self._accept(end + 1 - length, length)

    # -- FullCheck (Algorithm 10) ----------------------------------------------------------------

    def _full_check(self, first: int, length: int, repetitions: int) -> int | list[bool]:
        """Check that every tensor argument has the same role in all passes.

        There are three roles. The argument is the same tensor in all passes. Or it is a result of
        the call that lies a fixed number of calls earlier, in the same pass or in a recent pass.
        (In the first pass, it may be a result of any call before the pass.) Or it is, in all
        passes, a tensor that calls outside the log have left (`_outside`).

        Check also that no pass contains a break (`_breaks`). If the checks succeed, return a list
        with a bool for each tensor argument of the pass: True for the first role. Otherwise return
        the earliest position at which the passes of a later check may begin.
        """
        last = first + (repetitions - 1) * length
        for start in range(last, first - 1, -length):
            at = bisect_right(self._breaks, start)
            if at < len(self._breaks) and self._breaks[at] < start + length:
                return self._breaks[at]
        given, _ = self._arguments(last, length)
        before, _ = self._arguments(last - length, length)
        fixed = [a == b for a, b in zip(given, before, strict=True)]
        for start in range(last - length, first - 1, -length):
            wrong = self._other_role(last, start, length, fixed, start == first)
            if wrong is not None:
                return bisect_right(self._first, self._first[start] + wrong)
        return fixed

    def _arguments(self, start: int, length: int) -> tuple[array[int], array[int]]:
        """Return the handles of the tensor arguments of a pass, and the origin of each tensor.

        The origin says which call made the tensor; it is negative if the call is not in the log.
        """
        row = slice(self._first[start], self._first[start + length])
        return self._given[row], self._from[row]

    def _other_role(self, last: int, start: int, length: int, fixed: list[bool],
                    is_first: bool) -> int | None:
        """Return the index of an argument whose roles in two passes differ, or None.

        `last` and `start`: positions at which the two passes begin. `fixed`: for each argument,
        whether it must be one tensor in all passes. `is_first`: whether `start` belongs to the
        first pass.
        """
        shift = (last - start) << _SHIFT
        begin, end = start << _SHIFT, last << _SHIFT
        outside = self._outside
        rows = zip(fixed, *self._arguments(last, length), *self._arguments(start, length),
                   strict=True)
        for index, (same, a, one, b, two) in enumerate(rows):
            if same:
                if a != b:
                    return index
            elif one < 0:    # no call in the log made the tensor; it may come from a replayed pass
                if two >= 0 or a not in outside or b not in outside:
                    return index
            elif (two < 0 or one - two != shift) and not (is_first and one < end and two < begin):
                return index
        return None

    def _best_cut(self, end: int, length: int, period: int, fixed: list[bool]) -> int:
        """Return the number of calls from `end` to the best cut; 0: cut directly after `end`.

        This is the rotation of Figure 5.5f. A cut is the place where one pass ends and the next
        begins. If a pass has several sections, it can be cut after any section. The best cut is the
        cut at which the fewest tensors are live. If several cuts are equally good, prefer a cut
        before an input, then the nearest cut.
        """
        if period == 1 or not self._rotate:
            return 0
        start = end + 1 - length
        # Maps each tensor to the number of calls from its creation to its last use.
        lives: dict[tuple[int, int], int] = {}
        for position in range(start, start + length):
            for at in range(self._first[position], self._first[position + 1]):
                origin = self._from[at]
                if origin >= 0 and not fixed[at - self._first[start]]:
                    made = origin >> _SHIFT
                    tensor = ((made + 1 - start) % length, origin & _INDEX)
                    lives[tensor] = max(lives.get(tensor, 0), position - made)
        change = [0] * (length + 1)    # change of the number of live tensors at each call
        for (begin, _), life in lives.items():
            whole, rest = divmod(life, length)
            change[0] += whole
            _span(begin, rest, change)
        carried, total = [], 0
        for step in change[:length]:
            total += step
            carried.append(total)
        cuts = [(e + 1 - start) % length for e in self._ends[-period:]]
        return min(cuts, key=lambda c: (carried[c], self._log[start + c].op != HTOD, c))

    def _accept(self, start: int, length: int) -> Sequence:
        changing: dict[int, Meta] = {}
        before, _ = self._arguments(start - length, length)
        for handle, origin, other in zip(*self._arguments(start, length), before, strict=True):
            meta = self._outside.get(handle)
            if 0 <= origin < start << _SHIFT:
                meta = self._log[origin >> _SHIFT].metas[origin & _INDEX]
            if handle != other and meta is not None:
                changing[handle] = meta
        return build(self._log[start:], changing, self._origin.keys())


def _span(begin: int, size: int, change: list[int]) -> None:
    """Count a tensor in `change`: it is live for `size` calls from the call `begin` on.

    `change`: for each call of a pass, the change of the number of live tensors. After the last
    call of the pass, continue with the first call.
    """
    length = len(change) - 1
    if not size:
        return
    change[begin] += 1
    stop = begin + size
    if stop <= length:
        change[stop] -= 1
    else:
        change[0] += 1
        change[stop - length] -= 1


def skeleton(call: Call) -> tuple[list[Any], list[int]]:
    """Return the identity of a call, and the handles of its tensor arguments.

    The identity is a list: [op, wanted, metas of the results, arguments without handles ...].
    """
    given: list[int] = []
    key: list[Any] = [call.op, call.wanted, call.metas]
    add = key.append
    for value in call.arguments:
        kind = type(value)
        if kind is Ref:
            given.append(value[0])
            add(_TENSOR)
        elif kind is int or kind is str or value is None:
            add(value)
        else:
            add(_exact(value, given))
    for name, value in call.keywords:
        add(name)
        add(_exact(value, given))
    return key, given


def _exact(value: Any, given: list[int]) -> Any:
    """Return a hashable form of an argument; append its handles to `given`.

    The forms of 1, 1.0 and True differ.
    """
    kind = type(value)
    if kind is tuple:
        for item in value:
            if type(item) is not int:
                return tuple([_exact(item, given) for item in value])
        return value
    if kind is Ref:
        given.append(value[0])
        return _TENSOR
    if kind is float:
        return '\0' + value.hex()  # as text, NaN equals NaN, but -0.0 differs from 0.0
    if kind is int or kind is str or value is None:
        return value
    if kind is bool:
        return _BOOLS[value]
    return '\0' + repr(value)      # for complex and Special, whose `repr` shows the type
