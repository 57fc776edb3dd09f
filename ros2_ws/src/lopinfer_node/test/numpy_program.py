"""A program in plain numpy for any graph; every missing value changes its result.

For output index i of an operator, each input x adds the terms (j + 1) * x[j] for all j in
the footprint of i. The result is 1 plus the sum over all inputs, modulo a prime. So values that
are missing, out of date or from another request are detected.
"""

from dataclasses import dataclass

import numpy as np
from fleet_compute.inlets import layout_of
from lopinfer_node.model.footprint import identity, whole, window
from lopinfer_node.model.graph import Graph, Kind, Node
from lopinfer_node.planning.plan import DEVICE, Plan
from lopinfer_node.runtime.choice import PlannedTable
from lopinfer_node.runtime.execution import Form

PRIME = 1_000_003


@dataclass(frozen=True)
class Step:
    node: int
    waits: tuple[int, ...]
    sends: tuple[int, ...]


def small_graph(extent=12):
    """Return a graph with one output.

    Its operators are three convolutions (one has a stride), a residual sum and a global operator.
    """
    half = (extent + 1) // 2
    nodes, add = [], lambda *a, **k: nodes.append(Node(len(nodes), f'n{len(nodes)}', *a, **k))
    wide, narrow = {'shape': (extent,), 'axis': 0}, {'shape': (half,), 'axis': 0}
    add(Kind.INPUT, 'input', (), (), itemsize=8, **wide)
    add(Kind.OPERATOR, 'conv', (0,), (window(extent, extent, 3, 1, 1),), itemsize=8, **wide)
    add(Kind.OPERATOR, 'conv', (1,), (window(half, extent, 3, 2, 1),), itemsize=8, **narrow)
    add(Kind.OPERATOR, 'conv', (2,), (window(half, half, 3, 1, 1),), itemsize=8, **narrow)
    add(Kind.OPERATOR, 'add', (2, 3), (identity(half), identity(half)), itemsize=8, **narrow)
    add(Kind.OPERATOR, 'sum', (4,), (whole(1, half),), shape=(1,), itemsize=8, is_global=True)
    add(Kind.OUTPUT, 'output', (5,), (whole(1, 1),), shape=(1,), itemsize=8)
    return Graph(nodes, 'small')


def random_plan(graph, random):
    """Return a valid plan with random cuts; the parts of the two sides overlap or meet.

    One side computes a global operator whole.
    """
    device_to, server_from = np.zeros(len(graph), int), np.zeros(len(graph), int)
    for node in graph.nodes:
        cuts = sorted(random.randint(0, node.extent) for _ in range(2))
        if node.is_global or node.extent == 1:
            cuts = [node.extent * random.randint(0, 1)] * 2
        server_from[node.index], device_to[node.index] = cuts
    return Plan.of_cuts(graph, device_to, server_from)


class Program:
    def __init__(self, plan, side):
        self.plan, self.side, self.graph = plan, side, plan.graph
        self.steps = []
        self.forms = [Form(8, layout_of([t.hi - t.lo])) for t in plan.transfers]
        for node in self.graph.nodes:
            if plan.interval(side, node.index)[0] == plan.interval(side, node.index)[1]:
                continue
            waits = tuple(t.index for t in plan.transfers
                          if t.source != side and t.node in node.inputs)
            sends = tuple(t.index for t in plan.transfers
                          if t.source == side and t.node == node.index)
            self.steps.append(Step(node.index, waits, sends))

    def start(self, inputs):
        return Run(self, inputs)


class Run:
    def __init__(self, program, inputs):
        self.program, self.graph = program, program.graph
        self.values = [np.zeros(n.extent, np.int64) for n in self.graph.nodes]
        self.there = [np.zeros(n.extent, bool) for n in self.graph.nodes]
        for index, value in zip(self.graph.inputs, inputs or (), strict=False):
            self.values[index][:], self.there[index][:] = value, True

    def _compute(self, node, lo, hi):
        for i in range(lo, hi):
            total = int(node.kind is Kind.OPERATOR)
            for source, footprint in zip(node.inputs, node.footprints, strict=True):
                start, end = footprint.need(i, i + 1)
                assert self.there[source][start:end].all(), 'computes with what is not there'
                weights = np.arange(start, end) + 1
                total += int((self.values[source][start:end] * weights).sum())
            self.values[node.index][i], self.there[node.index][i] = total % PRIME, True

    def compute(self, steps):
        for position in steps:
            node = self.graph.nodes[self.program.steps[position].node]
            if node.kind is not Kind.INPUT:
                self._compute(node, *self.program.plan.interval(self.program.side, node.index))

    def piece(self, transfer):
        t = self.program.plan.transfers[transfer]
        assert self.there[t.node][t.lo:t.hi].all(), 'sends what is not there'
        return memoryview(self.values[t.node][t.lo:t.hi].copy()).cast('B')

    def form(self, transfer):
        return self.program.forms[transfer]

    def deliver(self, transfer, data):
        t = self.program.plan.transfers[transfer]
        assert len(data) == t.bytes
        self.values[t.node][t.lo:t.hi] = np.frombuffer(data, np.int64)
        self.there[t.node][t.lo:t.hi] = True

    def outputs(self):
        assert all(self.there[o].all() for o in self.graph.outputs)
        return tuple(int(self.values[o][0]) for o in self.graph.outputs)

    def finish_alone(self):
        for node in self.graph.nodes:
            if node.kind is not Kind.INPUT:
                self._compute(node, 0, node.extent)
        return self.outputs()


def expected(graph, inputs):
    """Return the results of the whole graph, computed on one machine."""
    return Program(Plan.device_only(graph), DEVICE).start(inputs).finish_alone()


def alike(bandwidths, plans, estimates):
    """Return a table whose chosen plan depends only on the bandwidth of the uplink."""
    bins = len(bandwidths)
    return PlannedTable(bandwidths, plans, np.repeat(range(bins), bins).reshape(bins, bins),
                        np.repeat(estimates, bins).reshape(bins, bins))
