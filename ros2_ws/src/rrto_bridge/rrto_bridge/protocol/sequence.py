"""A sequence: the calls of one inference as steps, in which tensors have roles instead of handles.

A pass is one execution of the sequence. A tensor of a step has one of three roles:

- `Own(slot)`: the pass creates the tensor. Its handle is base + slot; each pass has another base.
- `Persistent(handle)`: it is the same tensor in every pass (parameter, buffer).
- `Bound(index)`: the tensor exists before the pass, and differs from pass to pass (prefetched
  input, recurrent state). The client sends its handle when the program first uses the tensor in the
  pass.

Source: thesis sections 5.3.3 (provenance) and 5.3.4 (what a replay transfers).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

from .record import HTOD, Call, Meta, Persistent, Ref


@dataclass(frozen=True, slots=True)
class Own:
    """Role of a tensor that the pass creates; slots are numbered from 0, in order of creation."""

    slot: int


@dataclass(frozen=True, slots=True)
class Bound:
    """Role of a tensor that exists before the pass; in each pass it is another tensor.

    `index`: number of the tensor, in order of first use.
    """

    index: int


StepRole = Own | Persistent | Bound
ROLES = (Own, Persistent, Bound)


@dataclass(slots=True, eq=False)
class Step:
    """One call of a sequence.

    `arguments` and `keywords` are those of the call, with a role instead of each `Ref`. A role says
    where a tensor comes from.

    `results`: `Own` for a new tensor, the argument's role for a returned argument, None for a
    result that is not a tensor. `metas`: the meta of each result; None for a result that is not a
    tensor, and for a tensor whose shape varies from pass to pass. `compiled`: the function that
    `program.step_matcher` has made from the step; None before that.
    """

    op: str
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()
    results: tuple[StepRole | None, ...] = ()
    metas: tuple[Meta | None, ...] = ()
    wanted: bool = False
    compiled: Any = None

    def roles(self) -> list[StepRole]:
        """Return the roles of the tensor arguments, in order, with repetitions."""
        return list(_roles((self.arguments, self.keywords)))

    def made(self, metas: tuple[Meta | None, ...]) -> dict[int, Meta]:
        """Return a dict that maps the slot of each new tensor to its meta.

        `metas`: the metas of all results of the step.
        """
        return {role.slot: meta for role, meta in zip(self.results, metas, strict=False)
                if isinstance(role, Own) and meta is not None}

    def differs(self, metas: tuple[Meta | None, ...]) -> bool:
        """Return whether `metas` differ from `self.metas`; a None in `self.metas` fits any meta."""
        return any(mine is not None and mine != other
                   for mine, other in zip(self.metas, metas, strict=True))

    def key(self) -> str:
        """Return a string that is equal for equal steps; it includes types and the sign of zero."""
        return repr((self.op, self.arguments, self.keywords, self.results, self.metas, self.wanted))


@dataclass(slots=True, eq=False)
class Sequence:
    """The steps of one inference. `kept`: slots of tensors that the program held after the pass."""

    steps: tuple[Step, ...]
    kept: frozenset[int]
    bound: tuple[Meta, ...] = ()  # metas of the `Bound` tensors
    slots: int = 0        # number of tensors that the pass creates
    number: int = -1      # assigned by the client when it adds the sequence
    keys: list[str] = field(default_factory=list)
    # `made[i]`: number of tensors that the pass creates before step i; the last item is the
    # number of tensors that the whole pass creates.
    made: list[int] = field(default_factory=list)
    # maps a slot to the tensor's meta at the end of the pass
    metas: dict[int, Meta] = field(default_factory=dict)
    # Positions of the steps for which the server needs data from the client.
    needs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Compute `slots`, `keys`, `made`, `metas` and `needs` from the steps."""
        seen: set[int] = set()
        for position, step in enumerate(self.steps):
            self.made.append(self.slots)
            fresh = {r.index for r in step.roles() if isinstance(r, Bound)} - seen
            seen |= fresh
            if fresh or step.op == HTOD:
                self.needs.append(position)
            self.slots += sum(type(r) is Own and r.slot >= self.slots for r in step.results)
            self.metas.update(step.made(step.metas))
        self.made.append(self.slots)
        self.keys = [step.key() for step in self.steps]

    def calls(self, count: int, base: int, bound: Items[int]) -> list[Call]:
        """Return the first `count` steps as calls; see `instantiate` for `base` and `bound`."""
        return [instantiate(step, base, bound) for step in self.steps[:count]]

    def common(self, other: Sequence) -> int:
        """Return how many steps are equal in both sequences before the first difference."""
        pairs = zip(self.keys, other.keys, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b),
                    min(len(self.keys), len(other.keys)))


def _roles(value: Any) -> Iterator[StepRole]:
    if isinstance(value, ROLES):
        yield value
    elif type(value) is tuple:
        for item in value:
            yield from _roles(item)


def substitute(value: Any, kinds: type | tuple[type, ...], new: Callable[[Any], Any]) -> Any:
    """Replace every item of the types `kinds` in `value` by `new(item)`, also in nested tuples."""
    if isinstance(value, kinds):
        return new(value)
    if type(value) is tuple:
        return tuple(substitute(item, kinds, new) for item in value)
    return value


def instantiate(step: Step, base: int, bound: Items[int]) -> Call:
    """Return the call of a step in one pass.

    `base`: handle of slot 0 in this pass. `bound`: handles of the `Bound` tensors, by index.
    """
    def handle(role: StepRole) -> int:
        if isinstance(role, Own):
            return base + role.slot
        return bound[role.index] if isinstance(role, Bound) else role.handle

    def ref(role: StepRole) -> Ref:
        return Ref(handle(role))

    return Call(step.op, substitute(step.arguments, ROLES, ref),
                substitute(step.keywords, ROLES, ref),
                tuple(None if r is None else handle(r) for r in step.results),
                step.metas, step.wanted)


def build(calls: Items[Call], changing: Mapping[int, Meta], alive: Collection[int]) -> Sequence:
    """Build the sequence of a recorded pass.

    `changing`: the tensors that exist before the pass and differ from pass to pass; it maps the
    handle of each tensor to its meta. `alive`: handles of the tensors that the program still holds
    at the end of the pass.
    """
    roles: dict[int, StepRole] = {}
    bound: list[Meta] = []
    slots = 0
    steps = []
    for call in calls:
        for handle in call.inputs():
            if handle not in roles:
                if handle in changing:
                    roles[handle] = Bound(len(bound))
                    bound.append(changing[handle])
                else:
                    roles[handle] = Persistent(handle)
        for made in call.fresh():
            if made not in roles:
                roles[made] = Own(slots)
                slots += 1
        steps.append(_step(call, roles))
    kept = frozenset(r.slot for h, r in roles.items() if type(r) is Own and h in alive)
    return Sequence(tuple(steps), kept, tuple(bound))


def changed(new: Sequence, old: Sequence) -> set[int] | None:
    """Return the handles of the persistent tensors of `new` that differ in `old`.

    Return None if the sequences also differ in anything else.
    """
    if len(new.steps) != len(old.steps):
        return None
    pairs: set[tuple[int, int]] = set()
    for one, two in zip(new.steps, old.steps, strict=True):
        if one.op != two.op:
            return None
        pairs |= {(a.handle, b.handle) for a, b in zip(one.roles(), two.roles(), strict=False)
                  if isinstance(a, Persistent) and isinstance(b, Persistent)}
    names = dict(pairs)
    if len(names) != len(pairs):
        return None

    def old_name(role: Persistent) -> Persistent:
        return Persistent(names.get(role.handle, -1))

    for one, two in zip(new.steps, old.steps, strict=True):
        renamed = Step(one.op, substitute(one.arguments, Persistent, old_name),
                       substitute(one.keywords, Persistent, old_name),
                       substitute(one.results, Persistent, old_name), one.metas, one.wanted)
        if renamed.key() != two.key():
            return None
    return {a for a, b in pairs if a != b}


def loosen(sequence: Sequence, changing: Mapping[int, Meta]) -> Sequence:
    """Return a copy of the sequence in which the persistent tensors in `changing` become `Bound`.

    `changing` maps the handle of each of these tensors to its meta.
    """
    base = 1 << 62  # the temporary handles of this function begin here; all real handles are lower
    bound = range(base + sequence.slots, base + sequence.slots + len(sequence.bound))
    calls = sequence.calls(len(sequence.steps), base, bound)
    return build(calls, {**changing, **dict(zip(bound, sequence.bound, strict=True))},
                 {base + slot for slot in sequence.kept})


def _step(call: Call, roles: Mapping[int, StepRole]) -> Step:
    def role(ref: Ref) -> StepRole:
        return roles[ref.handle]

    return Step(call.op, substitute(call.arguments, Ref, role),
                substitute(call.keywords, Ref, role),
                tuple(None if h is None else roles[h] for h in call.results),
                call.metas, call.wanted)


def matches(step: Step, call: Call, base: int, bound: list[int]) -> list[int] | None:
    """Compare a call with a step; return None if they differ.

    If they match, return the handles of the `Bound` tensors that no earlier step uses. `base`:
    handle of slot 0. `bound`: handles of the `Bound` tensors of earlier steps.
    """
    if step.op != call.op or (step.op == HTOD and step.metas != call.metas):
        return None
    new: list[int] = []
    pairs = [(step.arguments, call.arguments), (step.keywords, call.keywords)]
    for expected, actual in pairs:
        if not _same(expected, actual, base, bound, new):
            return None
    return new


def _same(expected: Any, actual: Any, base: int, bound: list[int], new: list[int]) -> bool:
    kind = type(expected)
    if kind is Own:
        return type(actual) is Ref and actual.handle == base + expected.slot
    if kind is Persistent:
        return type(actual) is Ref and actual.handle == expected.handle
    if kind is Bound:
        if type(actual) is not Ref:
            return False
        if expected.index >= len(bound) + len(new):
            new.append(actual.handle)
            return True
        return actual.handle == (*bound, *new)[expected.index]
    if kind is not type(actual):
        return False
    if kind is tuple:
        return len(expected) == len(actual) and all(
            _same(e, a, base, bound, new) for e, a in zip(expected, actual, strict=True))
    return repr(expected) == repr(actual) if kind in (float, complex) else expected == actual
