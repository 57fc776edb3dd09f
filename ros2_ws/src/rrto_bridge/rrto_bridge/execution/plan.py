"""Sequences as compiled plans for the replaying server (thesis Algorithm 12).

Compilation determines once for all runs: the operators; the registers of their arguments; the step
after which each tensor and its memory are released; and which older tensors a run changes, directly
or through a view. An older tensor is one that exists before the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from ..protocol.errors import RemoteError
from ..protocol.record import DTOH, HTOD, Meta, Persistent
from ..protocol.sequence import ROLES, Bound, Own, Sequence, Step, StepRole

MAX_STEPS = 1 << 17


@dataclass(frozen=True, slots=True)
class Kernel:
    """An operator, ready to run: `call(arguments, keywords)` returns (results, value).

    `results` is a flat tuple, as in a `Call`. `value`: the value of an operator that returns no
    tensors. `writes`: positions and names of the arguments that the operator changes. `views`:
    whether results may share memory with arguments. `fresh`: whether results may have memory of
    their own.
    """

    call: Callable[[list[Any], dict[str, Any]], tuple[tuple[Any, ...], Any]]
    writes: tuple[int | str, ...] = ()
    views: bool = False
    fresh: bool = True


class Executor(Protocol):
    """Tensors of one client, and the operations on them."""

    def resolve(self, op: str) -> Kernel:
        """Return the `Kernel` of an operator; raises Refused."""
    def argument(self, value: Any) -> Any:
        """Convert a scalar, string, `Special` or tuple into an operator's argument."""
    def upload(self, data: Any, meta: Meta) -> Any:
        """Return `data` as a new tensor; raise RemoteError if the bytes do not fit `meta`."""
    def download(self, tensor: Any) -> Any:
        """Return the meta and the bytes of a tensor, in the form that is sent to the client."""
    def meta(self, tensor: Any) -> Meta:
        """Return the meta of a tensor."""
    def save(self, tensor: Any) -> Any:
        """Return a copy of all parts of a tensor that an operator can change."""
    def restore(self, tensor: Any, saved: Any) -> None:
        """Undo all changes of a tensor since `save`."""
    def random(self) -> Any:
        """Return the state of the random generator."""
    def set_random(self, state: Any) -> None:
        """Restore a state of the random generator."""
    def charge(self, tensor: Any) -> int:
        """Count a tensor's memory as memory of the client until `credit`.

        Return the number of bytes. Raises OutOfMemory.
        """
    def reserve(self, size: int) -> int:
        """Count `size` bytes as memory of the client until `credit`; return `size`.

        Raises OutOfMemory.
        """
    def credit(self, size: int) -> None:
        """Stop counting bytes that `charge` or `reserve` has counted."""
    def get(self, handle: int) -> Any:
        """Return the tensor of a handle; raises Missing."""
    def add(self, handle: int, tensor: Any) -> None:
        """Add a tensor; if its handle is in use, replace the old tensor. Raises OutOfMemory."""
    def free(self, handle: int) -> None:
        """Free a tensor; ignore an unknown handle."""
    def failed(self, first: int, kind: str, text: str) -> None:
        """Record why the tensor with handle `first` does not exist."""


@dataclass(slots=True)
class Instruction:
    """One compiled step.

    Registers hold the tensors of a run: first the tensors of the slots, then the `Persistent`
    tensors, then the `Bound` tensors (see `protocol.sequence`). A hole is an argument that is or
    contains a tensor.
    """

    kind: str                               # HTOD or DTOH for a copy; '' for an operator
    call: Callable[..., Any] | None
    arguments: list[Any]                    # None at each hole; a run fills a copy of this list
    holes: list[tuple[int, Any]]            # (position of an argument, value of `Plan.hole`)
    keywords: dict[str, Any]
    keyword_holes: list[tuple[str, Any]]
    results: list[tuple[int, int]]          # (index in the results, register) of new tensors
    # Like `results`, but for all returned tensors, including returned arguments.
    returned: list[tuple[int, int]]
    metas: tuple[Meta | None, ...]          # expected metas of a copy or wanted step; otherwise ()
    wanted: bool
    needs: int  # number of `Bound` tensors whose handles must arrive before this step
    release: list[int]                      # registers to clear after this step
    fresh: list[int]                        # registers of tensors that may have memory of their own
    frees: list[int]                        # registers whose memory is unused after this step

    def reads(self) -> Iterator[int]:
        """Yield the registers of the arguments."""
        for _, hole in (*self.holes, *self.keyword_holes):
            if type(hole) is int:
                yield hole
            else:
                yield from (v for is_tensor, v in hole if is_tensor)


def values_at(places: tuple[int | str, ...], arguments: tuple[Any, ...],
              keywords: tuple[tuple[str, Any], ...]) -> Iterator[Any]:
    """Yield the arguments at positions and with names; a call need not have them all."""
    named = dict(keywords)
    for place in places:
        if isinstance(place, str):
            yield named.get(place)
        elif place < len(arguments):
            yield arguments[place]


def run_operator(step: Instruction, registers: list[Any]) -> Any:
    """Run an operator and store its new tensors in their registers; return its value."""
    arguments, keywords = step.arguments, step.keywords
    if step.holes:
        arguments = arguments[:]
        for position, hole in step.holes:
            arguments[position] = registers[hole] if type(hole) is int else [
                registers[v] if is_tensor else v for is_tensor, v in hole]
    if step.keyword_holes:
        keywords = dict(keywords)
        for name, hole in step.keyword_holes:
            keywords[name] = registers[hole] if type(hole) is int else [
                registers[v] if is_tensor else v for is_tensor, v in hole]
    results, value = step.call(arguments, keywords)  # type: ignore[misc]
    for index, place in step.results:
        registers[place] = results[index]
    return value


class Plan:
    """A compiled sequence; raises RemoteError or Refused for an invalid sequence."""

    def __init__(self, sequence: Sequence, executor: Executor) -> None:
        if not 0 < len(sequence.steps) <= MAX_STEPS:
            raise RemoteError(f'a sequence must have 1 to {MAX_STEPS} steps, '
                              f'got {len(sequence.steps)}')
        self.sequence = sequence
        self.slots, self.made, self.kept = sequence.slots, sequence.made, sequence.kept
        self.persistent: list[int] = []          # handles of `Persistent` tensors in register order
        self.places: dict[StepRole, int] = {}
        self.bound = len(sequence.bound)
        self.count_registers(sequence)
        # Registers of the older tensors that a run changes.
        self.written: set[int] = set()
        self.sharers: dict[int, set[int]] = {}  # maps a register to slots that may share its memory
        self._shares: dict[int, set[int]] = {}  # maps a slot to registers whose memory it may share
        kernels = {s.op: executor.resolve(s.op) for s in sequence.steps if s.op not in (HTOD, DTOH)}
        self.instructions = [self.compile(step, kernels.get(step.op), executor)
                             for step in sequence.steps]
        self.note_releases(sequence)

    def count_registers(self, sequence: Sequence) -> None:
        """Assign a register to every tensor; raises RemoteError for an invalid sequence."""
        made = -1
        bound = 0
        for step in sequence.steps:
            for role in step.roles():
                if type(role) is Own and role.slot > made:
                    raise RemoteError('a step uses a tensor that does not exist yet')
                if type(role) is Bound:
                    if role.index > bound:
                        raise RemoteError('bound tensors must be numbered by first use')
                    bound = max(bound, role.index + 1)
                if type(role) is Persistent and role not in self.places:
                    self.places[role] = self.slots + len(self.persistent)
                    self.persistent.append(role.handle)
            for result in step.results:
                if type(result) is Own and result.slot > made:
                    made += 1
                    if result.slot != made:
                        raise RemoteError('slots must be numbered in the order of creation')
        if bound != self.bound:
            raise RemoteError('a sequence declares bound tensors that it does not use')
        for slot in range(self.slots):
            self.places[Own(slot)] = slot
        for index in range(bound):
            self.places[Bound(index)] = self.slots + len(self.persistent) + index

    def compile(self, step: Step, kernel: Kernel | None, executor: Executor) -> Instruction:
        """Compile a step into an instruction, and call `note_writes` for the step."""
        roles = step.roles()
        if len(step.metas) != len(step.results):
            raise RemoteError('a step must have as many metas as results')
        if step.op == HTOD and (roles or len(step.results) != 1 or not step.metas[0]):
            raise RemoteError('a host-to-device copy must create one tensor')
        if step.op == DTOH and (len(roles) != 1 or step.results):
            raise RemoteError('a device-to-host copy must read one tensor')
        if any(not isinstance(r, Own | None) and r not in roles for r in step.results):
            raise RemoteError('a step must return new tensors or its arguments')
        inputs = [self.places[role] for role in roles]
        returned = [(index, self.places[role]) for index, role in enumerate(step.results)
                    if role is not None]
        results = [(index, place) for index, place in returned if place not in inputs]
        self.note_writes(step, kernel, inputs, [place for _, place in results])
        arguments, holes = [], []
        for position, value in enumerate(step.arguments):
            hole = self.hole(value, executor)
            arguments.append(None if hole is not None else executor.argument(value))
            if hole is not None:
                holes.append((position, hole))
        keyword_holes = [(name, hole) for name, value in step.keywords
                         if (hole := self.hole(value, executor)) is not None]
        named = {name for name, _ in keyword_holes}
        keywords = {name: executor.argument(value) for name, value in step.keywords
                    if name not in named}
        needs = max((r.index + 1 for r in roles if type(r) is Bound), default=0)
        return Instruction(
            step.op if kernel is None else '', kernel.call if kernel else None, arguments, holes,
            keywords, keyword_holes, results, returned,
            step.metas if step.wanted or kernel is None else (), step.wanted, needs, [],
            [place for _, place in results if kernel is None or kernel.fresh], [])

    def hole(self, value: Any, executor: Executor) -> Any:
        """Return the register of a tensor; None for a value without tensors.

        For a tuple with tensors, return a list of (True, register) and (False, other value).
        """
        if isinstance(value, ROLES):
            return self.places[value]
        if not Step('', (value,)).roles():
            return None
        return [(True, self.places[v]) if isinstance(v, ROLES) else (False, executor.argument(v))
                for v in value]

    def note_writes(self, step: Step, kernel: Kernel | None, inputs: list[int],
                    made: list[int]) -> None:
        """Record which older tensors a step changes, and which tensors may share memory.

        `written`: the older tensors that the step changes, directly or through a view.
        `sharers` and `_shares`: tensors that possibly share memory with the results `made`.
        """
        for values in values_at(kernel.writes if kernel else (), step.arguments, step.keywords):
            for role in Step('', (values,)).roles():
                self.written |= {p for p in self.shares(self.places[role]) if p >= self.slots}
        shared = set().union(*map(self.shares, inputs)) if kernel and kernel.views else set()
        # If `fresh` is set, it is unknown whether a result has its own memory or shares memory.
        # Record that it may share memory with older tensors, but not with tensors of this run.
        if kernel is None or kernel.fresh:
            shared = {p for p in shared if p >= self.slots}
        for place in made:
            self._shares[place] = shared if kernel and not kernel.fresh else shared | {place}
            for root in self._shares[place]:
                self.sharers.setdefault(root, set()).add(place)

    def shares(self, place: int) -> set[int]:
        """Return the registers whose memory the tensor in register `place` may share."""
        return self._shares.get(place, {place})

    def note_releases(self, sequence: Sequence) -> None:
        """Record in each instruction the registers and the memory to release after the step.

        A tensor is released after the step that uses it last, unless the sequence keeps the tensor.
        """
        last: dict[int, int] = {}
        for position, step in enumerate(sequence.steps):
            for role in (*step.roles(), *step.results):
                if type(role) is Own:
                    last[role.slot] = position
        for slot, position in last.items():
            if slot not in sequence.kept:
                self.instructions[position].release.append(slot)
        for root, sharers in self.sharers.items():
            if root < self.slots and sharers.isdisjoint(sequence.kept):
                self.instructions[max(last[slot] for slot in sharers)].frees.append(root)
