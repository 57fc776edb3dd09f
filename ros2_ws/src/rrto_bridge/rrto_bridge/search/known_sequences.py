"""Holds the known sequences, and for each pair the number of steps before the first difference.

The structure is a prefix tree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..protocol.actions import Action, Define, Forget
from ..protocol.record import HTOD, SEEDING, Call, Meta, Persistent
from ..protocol.sequence import Bound, Sequence, Step, changed, loosen, matches
from .derive import Infer, derive

# maximum number of known sequences; beyond it, the least recently used one is dropped
MAX_SEQUENCES = 32
# If more than PATIENCE runs of a sequence fail in a row, the sequence is not used for a while.
PATIENCE = 3
# Maximum number of persistent tensors that `add` changes to `Bound`. If more tensors differ, the
# calls are those of another model.
MAX_LOOSE = 4
MAX_DERIVED = 4096    # maximum number of remembered pairs (sequence, input) that `derive` has tried
MAX_PAUSE = 64  # after failures, a sequence skips at most MAX_PAUSE - 1 possible starts in a row

# Used as `base` for a pass that has not created a tensor yet; larger than every handle.
ANY = 1 << 62


@dataclass(slots=True, eq=False)
class Known:
    """A known sequence and its history."""

    sequence: Sequence
    # Maps the number of each other known sequence to the number of steps that are equal in both
    # sequences before the first difference.
    common: dict[int, int] = field(default_factory=dict)
    failures: int = 0   # number of consecutive failed runs
    pause: int = 0      # number of possible starts that the sequence still skips
    persistent: frozenset[int] = frozenset()
    # Each step, or None in place of a step that only `PrefixTree.bind` can compare with a call.
    fast: list[Step | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Compute `persistent` and `fast` from the steps of the sequence."""
        roles = [(step, step.roles()) for step in self.sequence.steps]
        self.persistent = frozenset(
            r.handle for _, row in roles for r in row if isinstance(r, Persistent))
        self.fast = [None if step.op in (HTOD, SEEDING) or step.wanted
                     or any(type(r) is Bound for r in row) else step for step, row in roles]

    def failed(self) -> None:
        """Count a failed run; set `pause` after more than `PATIENCE` failed runs in a row.

        A run has failed if it ended with a mismatch.
        """
        self.failures += 1
        self.pause = min(1 << max(0, self.failures - PATIENCE), MAX_PAUSE) - 1


class PrefixTree:
    """The known sequences in order of use; the most recently used sequence is at the end.

    `meta_of(handle)` returns the meta of a tensor that the program holds, and None for any other
    handle. `infer` infers shapes, to derive sequences for other batch sizes; if it is None, no
    sequence is derived.
    """

    def __init__(self, meta_of: Callable[[int], Meta | None], infer: Infer | None) -> None:
        self.known: list[Known] = []
        # Sequences that were dropped or rejected because the program has freed one of their
        # persistent tensors.
        self._former: deque[Sequence] = deque(maxlen=4)
        self._meta_of, self._infer = meta_of, infer
        self.added = 0                # number of sequences added so far
        # Derivations that were tried, each as (number of the known sequence, metas of the input).
        self._derived: set[tuple[int, tuple[Meta | None, ...]]] = set()

    def alive(self, sequence: Sequence) -> bool:
        """Return whether the program holds all persistent tensors of a sequence.

        If not, remember the sequence in `_former`.
        """
        if all(self._meta_of(r.handle) for step in sequence.steps for r in step.roles()
               if isinstance(r, Persistent)):
            return True
        self._former.append(sequence)
        return False

    def add(self, sequence: Sequence, actions: list[Action]) -> Known:
        """Add a sequence; replace a known sequence that differs only in the kept tensors.

        If the sequence differs from a sequence in `_former` only in a few persistent tensors, these
        tensors change from pass to pass, as the features of a video's last key frame do. So they
        become `Bound`.
        """
        for former in self._former:
            loose = changed(sequence, former)
            if loose and len(loose) <= MAX_LOOSE:
                metas = {h: meta for h in loose if (meta := self._meta_of(h))}
                if len(metas) == len(loose):
                    sequence = loosen(sequence, metas)
                    break
        for known in self.known:
            if known.sequence.keys == sequence.keys:
                sequence.kept |= known.sequence.kept
                self.forget(known, actions)
                break
        if len(self.known) >= MAX_SEQUENCES:
            self.forget(self.known[0], actions)
        sequence.number = self.added
        self.added += 1
        new = Known(sequence)
        for other in self.known:
            length = sequence.common(other.sequence)
            other.common[sequence.number] = new.common[other.sequence.number] = length
        self.known.append(new)
        actions.append(Define(sequence))
        return new

    def forget(self, known: Known, actions: list[Action]) -> None:
        """Drop a sequence."""
        self.known.remove(known)
        number = known.sequence.number
        self._derived = {d for d in self._derived if d[0] != number}
        for other in self.known:
            other.common.pop(number, None)
        actions.append(Forget(number))

    def forget_users(self, handles: Iterable[int], actions: list[Action]) -> None:
        """Drop each sequence that has a persistent tensor with one of these handles."""
        gone = set(handles)
        for known in [k for k in self.known if not gone.isdisjoint(k.persistent)]:
            self.forget(known, actions)
            self._former.append(known.sequence)

    def used(self, known: Known) -> None:
        """Record that a run of this sequence was completed."""
        known.failures = 0
        self.known.remove(known)
        self.known.append(known)

    def openers(self, call: Call, actions: list[Action]) -> list[Known]:
        """Return the known sequences that begin with the call and do not skip this start.

        A sequence skips a start while its `pause` is above 0. The most recently used sequence comes
        first. If no known sequence begins with an input, derive sequences for its batch size.
        """
        able = [k for k in reversed(self.known) if self.bind(k, 0, call, ANY, []) is not None]
        if not able and call.op == HTOD and self._infer is not None:
            able = self._specialise(call, self._infer, actions)
        ready = []
        for known in able:
            if known.pause:
                known.pause -= 1
            else:
                ready.append(known)
        return ready

    def bind(self, known: Known, position: int, call: Call, base: int,
             bound: list[int]) -> list[int] | None:
        """Compare a call with the step at `position`; return None if they differ.

        If they match, return the handles of the `Bound` tensors that no earlier step uses. `base`:
        handle of slot 0. `bound`: handles of the `Bound` tensors of earlier steps.
        """
        sequence = known.sequence
        new = matches(sequence.steps[position], call, base, bound)
        for index, handle in enumerate(new or ()):
            if handle >= base or self._meta_of(handle) != sequence.bound[len(bound) + index]:
                return None
        return new

    def _specialise(self, call: Call, infer: Infer, actions: list[Action]) -> list[Known]:
        """Derive sequences for an input whose batch size no known sequence has."""
        new = []
        for known in [*self.known]:
            sequence = known.sequence
            if (sequence.number, call.metas) in self._derived:
                continue
            if len(self._derived) >= MAX_DERIVED:
                self._derived.clear()
            self._derived.add((sequence.number, call.metas))
            derived = derive(sequence, call.metas[0], infer, self._meta_of)
            if derived is not None and all(
                    derived.keys != other.sequence.keys for other in self.known):
                new.append(self.add(derived, actions))
        return [known for known in new if known in self.known]
