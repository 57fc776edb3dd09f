"""Runs both sides of a plan in one process, and makes random plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from lopinfer_node.model.graph import Graph
from lopinfer_node.model.traced import Traced
from lopinfer_node.planning.plan import DEVICE, SERVER, Plan
from lopinfer_node.runtime.program import Program


def run_both(traced: Traced, plan: Plan, inputs: Sequence[torch.Tensor]
             ) -> tuple[torch.Tensor, ...]:
    """Run the programs of both sides; pass the bytes of each transfer to the other side."""
    programs = [Program(traced, plan, side) for side in (DEVICE, SERVER)]
    runs = [programs[DEVICE].start(inputs), programs[SERVER].start()]
    arrived: set[int] = set()
    at = [0, 0]
    while any(at[side] < len(programs[side].steps) for side in (DEVICE, SERVER)):
        before = list(at)
        for side in (DEVICE, SERVER):
            while at[side] < len(programs[side].steps):
                step = programs[side].steps[at[side]]
                if not arrived.issuperset(step.waits):
                    break
                runs[side].compute(range(at[side], at[side] + 1))
                for transfer in step.sends:
                    runs[1 - side].deliver(transfer, bytearray(runs[side].piece(transfer)))
                    arrived.add(transfer)
                at[side] += 1
        assert at != before, 'each side waits for the other'
    return runs[DEVICE].outputs()


def random_plan(graph: Graph, rng: np.random.Generator) -> Plan:
    """Return a valid random plan.

    The cuts are of one of three kinds: a random share of the extent for each operator, one
    random share for all operators, or one random share for each of up to six ranges of
    operators. The parts of the two sides may overlap. Either side may compute the part that
    begins at index 0.
    """
    nodes, extents = len(graph), graph.extents
    style = rng.integers(4)
    if style == 0:
        top, bottom = rng.random(nodes), rng.random(nodes)
    elif style == 1:
        top = np.full(nodes, rng.random())
        bottom = top - 0.2 * rng.random(nodes)
    else:
        pieces = int(rng.integers(1, 7))
        top = rng.random(pieces)[np.arange(nodes) * pieces // nodes]
        bottom = top - (0.3 * rng.random() if style == 3 else 0)
    end = np.rint(top * extents).astype(np.int64)
    begin = np.minimum(np.rint(np.clip(bottom, 0, 1) * extents).astype(np.int64), end)
    one_side = np.array([n.is_global for n in graph.nodes])
    here = np.where(rng.random(nodes) < 0.5, extents, 0)
    plan = Plan.of_cuts(graph, np.where(one_side, here, end), np.where(one_side, here, begin))
    if rng.random() < 0.3:  # swap the sides: the server gets the low indices
        own = plan.own.copy()
        for node in graph.nodes:
            if node.kind.value == 'operator' and not node.is_global:
                own[DEVICE, node.index] = begin[node.index], extents[node.index]
                own[SERVER, node.index] = 0, end[node.index]
        plan = Plan(graph, own)
    return plan


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the largest |got - want|, divided by the largest magnitude in ``want``."""
    scale = float(want.detach().abs().max()) or 1.0
    return float((got - want).detach().abs().max()) / scale
