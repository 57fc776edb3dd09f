"""Blocks: parts of a plan whose outputs depend only on their input tensors.

A block may read tensors that exist before it, but it does not write to them. It draws no random
numbers and returns nothing to the host. Its outputs share no memory with any other tensor.
"""

from __future__ import annotations

from collections.abc import Callable

from .graphs import Part
from .plan import Block, Plan

SHORTEST = 8    # minimum instructions of a block; a CUDA graph of fewer is not worth its cost


def blocks(plan: Plan, part: Callable[[str], Part]) -> dict[int, Block]:
    """Return start -> block of a plan; `part(name)` creates the object that runs a block."""
    found = {}
    start, made = 0, set[int]()
    for at, step in enumerate([*plan.instructions, None]):
        if step is not None:
            made.update(place for _, place in step.results)
            if step.static and not step.wanted and step.changes <= made:
                continue
        if at - start >= SHORTEST and (bounds := _bounds(plan, start, at)) is not None:
            name = f'a part of a sequence (calls {start} to {at - 1} of {len(plan.instructions)})'
            needs = max(s.needs for s in plan.instructions[start:at])
            found[start] = Block(start, at, *bounds, needs, part(name))
        start, made = at + 1, set()
    return found


def _bounds(plan: Plan, start: int, end: int
            ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Return the registers of constants, inputs and outputs of the instructions [start, end).

    Return None if an output may share memory with another tensor.
    """
    made: set[int] = set()
    before: dict[int, None] = {}
    for step in plan.instructions[start:end]:
        before.update(dict.fromkeys(p for p in step.reads if p not in made))
        made.update(place for _, place in step.results)
    later = {p for step in plan.instructions[end:] for p in step.reads}
    outputs = sorted(made & (later | plan.kept))
    shared: set[int] = set()
    for place in outputs:
        memory = plan.shares(place)
        if not memory <= made or not memory.isdisjoint(shared):
            return None
        shared |= memory
    constants = range(plan.slots, plan.slots + len(plan.persistent))
    return (tuple(p for p in before if p in constants),
            tuple(p for p in before if p not in constants), tuple(outputs))
