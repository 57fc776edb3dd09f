"""CUDA graphs for blocks of a sequence, used only if their results are equal bit for bit.

A block is captured after some ordinary runs, which execute its operators one by one. The first
replays of the graph are compared with an ordinary run. After an error or a difference, the block is
never replayed as a graph again: one line reports that, and only ordinary runs follow.

Graphs are off by default (server option `graphs`), because this code has not run on a GPU yet: the
tests use another `Capturer` than `CudaGraphs`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch

AFTER = 8      # number of ordinary runs before the capture
CHECKS = 3     # number of replays that are compared with an ordinary run

Compute = Callable[[list[Any]], list[Any]]


class Graph(Protocol):
    """A captured computation; `size`: bytes that it occupies."""

    size: int

    def replay(self, inputs: list[Any]) -> list[Any]:
        """Return the results as new tensors; `inputs` have the layout of the captured inputs."""


class Capturer(Protocol):
    """Captures computations as graphs."""

    def capture(self, compute: Compute, inputs: list[Any]) -> Graph:
        """Capture `compute`; raises if that is impossible."""

    def same(self, one: Any, other: Any) -> bool:
        """Return whether two tensors have the same layout and the same bits."""


class Part:
    """One block of one sequence; `reserve` and `credit` count the memory of its graph."""

    def __init__(self, capturer: Capturer, name: str, reserve: Callable[[int], int],
                 credit: Callable[[int], object]) -> None:
        self._capturer, self._name = capturer, name
        self._reserve, self._credit = reserve, credit
        self._runs = self._checked = self._size = 0
        self._key: Any = None      # `key` of the runs for which the graph is valid
        self._graph: Graph | None = None
        self.dropped = False

    def wanted(self, key: Any) -> bool:
        """Return whether the caller shall call `run`, and not run the operators itself.

        `key`: everything on which the results depend, except the values of the inputs.
        """
        self._runs += 1
        return self._runs > AFTER and self._key in (None, key)

    def run(self, key: Any, compute: Compute, inputs: list[Any]) -> list[Any]:
        """Return the results of `compute`, from the graph once it has passed its checks."""
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
        print(f'rrto: {self._name} does not run as a CUDA graph: {reason.splitlines()[0][:200]}',
              file=sys.stderr)

    def close(self) -> None:
        """Free the graph."""
        self.dropped, self._graph = True, None
        self._credit(self._size)
        self._size = 0


class CudaGraphs:
    """Captures blocks on a GPU. Only the computing thread may use the device during a capture."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def capture(self, compute: Compute, inputs: list[torch.Tensor]) -> Graph:
        """Capture `compute`; raises if that is impossible."""
        before = torch.cuda.memory_reserved(self._device)
        graph = _CudaGraph(compute, [t.clone() for t in inputs])
        graph.size = max(0, torch.cuda.memory_reserved(self._device) - before)
        return graph

    def same(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Return whether two tensors have the same layout and the same bits."""
        return same(one, other)


class _CudaGraph:
    def __init__(self, compute: Compute, inputs: list[torch.Tensor]) -> None:
        self.size = 0
        self._inputs = inputs
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):    # libraries allocate their workspaces before the capture
            compute(inputs)
        here.wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode='thread_local'):
            self._outputs = compute(inputs)

    def replay(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run the graph. Return copies, because the next replay overwrites the graph's outputs."""
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)
        self._graph.replay()
        return [made.clone() for made in self._outputs]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same layout and the same bits."""
    if (one.dtype, one.shape, one.stride()) != (other.dtype, other.shape, other.stride()):
        return False
    flat = [t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
    return torch.equal(*flat)
