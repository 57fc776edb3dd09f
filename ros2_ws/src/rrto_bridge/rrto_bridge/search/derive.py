"""Derive the sequence for another batch size from a known sequence (Algorithm 13, RRTOFIXARGS).

With the derived sequence, the client need not record inferences with this batch size. Shape
inference gives the metas for the new input. Arguments that are sizes (of view, expand, zeros) are
derived from the known sequence. If the batch size of the known sequence is 1, these arguments are a
guess, because a size of 1 is not always the batch size. A wrong guess costs only one mismatch,
because the client compares every call with the sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ..protocol.record import HTOD, Meta, Persistent
from ..protocol.sequence import ROLES, Sequence, Step, StepRole, substitute

# Type of a function that infers shapes. Its parameters: the name of an operator; the arguments,
# with a Meta in place of each tensor; the keywords. It returns the metas of the results. It raises
# an error if it cannot infer them.
Infer = Callable[[str, tuple[Any, ...], tuple[tuple[str, Any], ...]], tuple[Meta | None, ...]]


def derive(sequence: Sequence, given: Meta | None, infer: Infer,
           meta_of: Callable[[int], Meta | None]) -> Sequence | None:
    """Derive from `sequence` the sequence for an input with meta `given`.

    Return None if no sequence can be derived, for example because `given` differs from the meta of
    the sequence's first input in more than dimension 0.
    """
    first = sequence.steps[0]
    if first.op != HTOD or sequence.bound or given is None or not first.metas[0]:
        return None
    if given != _with_batch(first.metas[0], first.metas[0].shape[:1], given.shape[:1]):
        return None
    try:
        return _Derivation(sequence, given, infer, meta_of).run()
    except (ValueError, RuntimeError, TypeError, IndexError, KeyError):
        return None     # no derivation, so the client must record inferences of this batch size


class _Derivation:
    def __init__(self, sequence: Sequence, given: Meta, infer: Infer,
                 meta_of: Callable[[int], Meta | None]) -> None:
        self.sequence, self.infer, self.meta_of = sequence, infer, meta_of
        old = sequence.steps[0].metas[0]
        assert old is not None
        self.old, self.new = old.shape[:1], given.shape[:1]
        # Maps each role to a pair: its meta in `sequence`, and its meta in the derived sequence.
        self.metas: dict[StepRole, tuple[Meta, Meta]] = {}

    def run(self) -> Sequence:
        steps = tuple(self.step(step) for step in self.sequence.steps)
        return Sequence(steps, self.sequence.kept)

    def of(self, role: StepRole) -> tuple[Meta, Meta]:
        if role not in self.metas and type(role) is Persistent:
            meta = self.meta_of(role.handle)
            if meta is None:
                raise ValueError('unknown persistent tensor')
            self.metas[role] = meta, meta
        return self.metas[role]

    def step(self, step: Step) -> Step:
        """Return the step with its sizes and metas changed to the new batch size."""
        arguments, keywords, metas = step.arguments, step.keywords, step.metas
        if step.op == HTOD:
            metas = tuple(m and _with_batch(m, self.old, self.new) for m in metas)
        elif any(metas):
            inputs = [self.of(role) for role in step.roles()]
            out = metas[0]

            def resize(value: Any) -> Any:
                return self.sizes(value, out.shape, inputs) if out and _is_size(
                    value, out.shape) else value

            arguments = tuple(resize(a) for a in arguments)
            keywords = tuple((n, resize(v)) for n, v in keywords)
            if (arguments, keywords) != (step.arguments, step.keywords) or any(
                    a != b for a, b in inputs):
                metas = self.infer(
                    step.op, substitute(arguments, ROLES, lambda r: self.of(r)[1]),
                    substitute(keywords, ROLES, lambda r: self.of(r)[1]))
        for role, before, now in zip(step.results, step.metas, metas, strict=True):
            if role is not None and before is not None and now is not None:
                self.metas[role] = before, now
        return Step(step.op, arguments, keywords, step.results, metas, step.wanted)

    def sizes(self, size: tuple[int, ...], shape: tuple[int, ...],
              inputs: list[tuple[Meta, Meta]]) -> tuple[int, ...]:
        """Return the value of the argument `size` for the new batch size.

        `shape`: shape of the result in the known sequence. `inputs`: for each tensor argument, its
        metas in the known sequence and in the derived sequence.
        """
        before, now = (m.shape for m in inputs[0]) if inputs else ((), ())
        if before != now and prod(before) == prod(shape):
            at = next(i for i, (a, b) in enumerate(zip(before, now, strict=True)) if a != b)
            begin, end = prod(before[:at]), prod(before[:at + 1])
            inside = [i for i in range(len(shape)) if prod(shape[:i]) <= end
                      and prod(shape[:i + 1]) >= begin and not shape[i] * now[at] % before[at]]
            # If the batch size is 1, several dimensions of the result can be the batch. Choose
            # among them by three rules. First, prefer a dimension whose size is the batch size of
            # the known sequence. Second, prefer a dimension i for which the product of the sizes 0
            # to i is larger than `begin`; skip this rule if the operator merges dimensions. Third,
            # prefer the lowest index.
            merged = len(shape) < len(before)
            inside.sort(key=lambda i: (shape[i:i + 1] != self.old,
                                       not merged and prod(shape[:i + 1]) <= begin, i))
            if not inside:
                raise ValueError('no dimension is divisible by the batch size')
            i = inside[0]
            entry = size[i] if size[i] == -1 else shape[i] * now[at] // before[at]
            return (*size[:i], entry, *size[i + 1:])
        if before != now and len(before) == len(size):
            return tuple(n if s == b else s for s, b, n in zip(size, before, now, strict=True))
        return self.new + size[1:] if size[:1] == self.old else size


def _is_size(value: Any, shape: tuple[int, ...]) -> bool:
    return type(value) is tuple and 0 < len(value) == len(shape) and all(
        type(v) is int and v in (-1, s) for v, s in zip(value, shape, strict=True))


def _with_batch(meta: Meta, old: tuple[int, ...], new: tuple[int, ...]) -> Meta:
    """Return a contiguous meta with the batch size `new` instead of `old`.

    If the first size of `meta` is not `old`, return `meta` unchanged.
    """
    if not old or meta.shape[:1] != old:
        return meta
    shape = new + meta.shape[1:]
    stride = tuple(prod(shape[i + 1:]) for i in range(len(shape)))
    return Meta(shape, stride, meta.dtype, meta.offset)
