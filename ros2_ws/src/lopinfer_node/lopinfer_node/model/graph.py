"""The graph of a model: its operators, their footprints, and the sizes of their tensors.

The graph holds only what planning needs, and this module does not import torch. `traced.py` makes a
graph from a model. `rog_studies.lopinfer_published` makes a graph from a published profile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np

from ..errors import ModelError
from .footprint import Footprint


class Kind(Enum):
    """The kind of a node."""

    INPUT = 'input'        # an input of the model; the robot has the whole tensor
    OPERATOR = 'operator'
    OUTPUT = 'output'      # an output of the model; the robot needs the whole tensor


@dataclass(frozen=True)
class Node:
    """One operator and its output tensor.

    `axis` is the axis along which the tensor may be divided. If it is None, the tensor is
    indivisible, and its extent is 1. Otherwise its extent is the number of indices along the axis.
    `inputs`: indices of the nodes that produce the inputs, each once. `footprints`: the footprint
    of each of `inputs`. `is_global`: one index of the output needs all indices of an input that
    has more than one index (thesis 4.4.1). Only one side computes a global operator.
    """

    index: int
    name: str
    kind: Kind
    op: str
    inputs: tuple[int, ...]
    footprints: tuple[Footprint, ...]
    shape: tuple[int, ...]
    itemsize: int = 4
    axis: int | None = None
    is_global: bool = False
    place: str = ''        # place in the model, such as "features.3.conv (VGG)"

    @property
    def extent(self) -> int:
        """Return the number of indices along `axis`; 1 for an indivisible tensor."""
        return 1 if self.axis is None else self.shape[self.axis]

    @cached_property
    def bytes(self) -> int:
        """Return the bytes of the whole tensor."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.itemsize

    @property
    def bytes_per_index(self) -> int:
        """Return the bytes of the tensor at one index along `axis`."""
        return self.bytes // self.extent


class Graph:
    """Nodes in topological order; the constructor checks that inputs precede their consumers."""

    def __init__(self, nodes: Sequence[Node], name: str = 'model') -> None:
        self.nodes = tuple(nodes)
        self.name = name
        for index, node in enumerate(self.nodes):
            self._check(index, node)
        self.inputs = [n.index for n in self.nodes if n.kind is Kind.INPUT]
        self.outputs = [n.index for n in self.nodes if n.kind is Kind.OUTPUT]
        if not self.inputs or not self.outputs:
            raise ModelError(f'{name}: a model needs at least one input tensor and one output')

    def _check(self, index: int, node: Node) -> None:
        where = f'{self.name}: operator {node.name} ({node.op})'
        if node.index != index:
            raise ModelError(f'{where} has index {node.index} at position {index}')
        if len(node.inputs) != len(node.footprints) or len(set(node.inputs)) != len(node.inputs):
            raise ModelError(f'{where} needs one footprint for each of its inputs')
        for source, footprint in zip(node.inputs, node.footprints, strict=True):
            if not 0 <= source < index:
                raise ModelError(f'{where} uses an input that is not computed before it')
            if len(footprint.starts) != node.extent \
                    or footprint.extent != self.nodes[source].extent:
                raise ModelError(f'{where} has a footprint of {len(footprint.starts)} x '
                                 f'{footprint.extent} on {node.extent} x '
                                 f'{self.nodes[source].extent} indices')

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """Return for each node the indices of the nodes that read its tensor."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for source in node.inputs:
                found[source].append(node.index)
        return tuple(tuple(f) for f in found)

    @cached_property
    def extents(self) -> np.ndarray:
        """Return the `extent` of each node, int64 of shape (nodes,)."""
        return np.array([n.extent for n in self.nodes], np.int64)

    @cached_property
    def input_bytes(self) -> int:
        """Return the total bytes of the model's inputs."""
        return sum(self.nodes[i].bytes for i in self.inputs)

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the parts of the graph on which plans depend.

        These are the operators, edges, footprints, axes and shapes, and the bytes of an element.
        """
        state = hashlib.sha256()
        for n in self.nodes:
            state.update(repr((n.op, n.kind.value, n.inputs, n.shape, n.itemsize, n.axis,
                               n.is_global)).encode())
            for f in n.footprints:
                state.update(f.starts.tobytes() + f.ends.tobytes())
        return state.hexdigest()

    def counts(self) -> tuple[int, int]:
        """Return the numbers of local and of global operators (thesis, Table 4.1)."""
        operators = [n for n in self.nodes if n.kind is Kind.OPERATOR]
        return sum(not n.is_global for n in operators), sum(n.is_global for n in operators)
