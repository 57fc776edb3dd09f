"""Parts of a sequence that a GPU runs as one CUDA graph, where that gives the same bits.

A part is captured when it was run often enough. Its first replays are made beside the ordinary run
and compared with it. Whatever goes wrong, or differs, ends that for good for this part, with one
line, and it is run operator by operator as before.

No GPU has run this yet, so it is an option (`graphs` of the server) that is off: `CudaGraphs` was
written where there was none, and all else is tested with another `Capturer`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch

AFTER = 8      # ordinary runs before a capture
CHECKS = 3     # replays that are compared

Compute = Callable[[list[Any]], list[Any]]


class Graph(Protocol):
    """A captured computation; `size`: bytes that it keeps."""

    size: int

    def replay(self, inputs: list[Any]) -> list[Any]:
        """New tensors, from tensors laid out as those of the capture."""


class Capturer(Protocol):
    """What captures."""

    def capture(self, compute: Compute, inputs: list[Any]) -> Graph:
        """Raises where `compute` can not be captured."""

    def same(self, one: Any, other: Any) -> bool:
        """Whether two tensors have the same layout and the same bits."""


class Part:
    """One part of one sequence; `reserve` and `credit` count what its graph keeps."""

    def __init__(self, capturer: Capturer, name: str, reserve: Callable[[int], int],
                 credit: Callable[[int], object]) -> None:
        self._capturer, self._name = capturer, name
        self._reserve, self._credit = reserve, credit
        self._runs = self._checked = self._size = 0
        self._key: Any = None      # what the graph depends on, beside the values of its inputs
        self._graph: Graph | None = None
        self.dropped = False

    def wanted(self, key: Any) -> bool:
        """Whether `run` is to be called for this run; else it is an ordinary one."""
        self._runs += 1
        return self._runs > AFTER and self._key in (None, key)

    def run(self, key: Any, compute: Compute, inputs: list[Any]) -> list[Any]:
        """What `compute` gives."""
        if self._graph is not None and self._checked >= CHECKS:
            return self._graph.replay(inputs)
        expected = compute(inputs)
        try:
            self._try(key, compute, inputs, expected)
        except Exception as error:
            self._drop(f'{type(error).__name__}: {error}')
        return expected

    def _try(self, key: Any, compute: Compute, inputs: list[Any], expected: list[Any]) -> None:
        if self._graph is None:
            graph = self._capturer.capture(compute, inputs)
            self._size = self._reserve(graph.size)
            self._graph, self._key = graph, key
        found = self._graph.replay(inputs)
        if not all(map(self._capturer.same, found, expected)):
            self._drop('its results differ')
        self._checked += 1

    def _drop(self, reason: str) -> None:
        self.close()
        print(f'rrto: {self._name} is not run as a CUDA graph: {reason.splitlines()[0][:200]}',
              file=sys.stderr)

    def close(self) -> None:
        """Let the graph go."""
        self.dropped, self._graph = True, None
        self._credit(self._size)
        self._size = 0


class CudaGraphs:
    """Captures on a GPU; the thread that computes is the only one that asks anything of it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def capture(self, compute: Compute, inputs: list[torch.Tensor]) -> Graph:
        """Raises where `compute` can not be captured."""
        before = torch.cuda.memory_reserved(self._device)
        graph = _CudaGraph(compute, [t.clone() for t in inputs])
        graph.size = max(0, torch.cuda.memory_reserved(self._device) - before)
        return graph

    def same(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two tensors have the same layout and the same bits."""
        return same(one, other)


class _CudaGraph:
    def __init__(self, compute: Compute, inputs: list[torch.Tensor]) -> None:
        self.size = 0
        self._inputs = inputs
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):    # libraries make what they keep before the capture
            compute(inputs)
        here.wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode='thread_local'):
            self._outputs = compute(inputs)

    def replay(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """New tensors: the next replay writes into the graph's own."""
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)
        self._graph.replay()
        return [made.clone() for made in self._outputs]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same layout and the same bits."""
    if (one.dtype, one.shape, one.stride()) != (other.dtype, other.shape, other.stride()):
        return False
    flat = [t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
    return torch.equal(*flat)
