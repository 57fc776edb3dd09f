"""CUDA graphs of what a device computes again and again with tensors of the same shapes.

A graph is a fixed sequence of kernels on fixed memory. Replaying it takes one call instead of one
for each operator. `Graphs` decides what is captured and kept; `CudaCapture` captures.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from weakref import WeakSet

import torch

Function = Callable[..., Sequence[torch.Tensor]]

AFTER = 3        # runs of a part before it is captured; each loss of its graph doubles the number
MOST = 64        # most graphs of a device
ROOM = 1 << 30   # most bytes of the graphs of a device
FAILURES = 16    # failed captures after which a device captures no more; each may cost some memory

_log = logging.getLogger(__name__)
_capturing = threading.Lock()   # PyTorch captures one graph of a process at a time


@dataclass(frozen=True, eq=False)
class Captured:
    """A captured function: it reads `inputs`, `replay` writes `outputs`; both are always the same.

    `nbytes`: memory that is taken as long as the graph is kept. `turn()`: a context in which
    replays of graphs that share memory come one after the other.
    """

    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    replay: Callable[[], None]
    nbytes: int
    turn: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the function's results in new memory, which later replays do not change."""
        with torch.inference_mode(), self.turn():
            for own, tensor in zip(self.inputs, tensors, strict=True):
                own.copy_(tensor, non_blocking=True)
            self.replay()
            return [output.clone() for output in self.outputs]


@dataclass(eq=False)
class _Part:
    """A part of a program, with tensors of certain shapes."""

    runs: int = 0
    after: int = AFTER
    captured: Captured | None = None
    refused: bool = False
    used: int = 0       # number of its last replay


@dataclass(eq=False)
class Parts:
    """The parts of one program; whoever holds the program holds this, and with it the graphs.

    `pool`: memory that the program's graphs share; `CudaCapture` sets it.
    """

    found: dict[Hashable, _Part] = field(default_factory=dict)
    pool: Any = None


Capture = Callable[[Function, Sequence[torch.Tensor], Parts], Captured]


class Graphs:
    """The graphs of one device; the least recently used one goes if there are too many.

    `room`: most bytes of all graphs; it may change between two runs.
    """

    def __init__(self, capture: Capture, most: int = MOST, room: int = ROOM) -> None:
        self._capture, self._most = capture, most
        self.room = self._checked = room
        self._kept: WeakSet[_Part] = WeakSet()
        self._uses = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Return the bytes of all graphs."""
        return sum(part.captured.nbytes for part in list(self._kept) if part.captured)

    def __len__(self) -> int:
        """Return the number of graphs."""
        return len(self._kept)

    def run(self, parts: Parts, key: Hashable, name: str, function: Function,
            tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return `function(*tensors)`, from a graph if the function has been captured.

        `function` must be pure, and the same for the same `parts` and `key`. `name`: what it is,
        for the log. Raises what the function raises.
        """
        if not self._lock.acquire(blocking=False):
            return function(*tensors)    # another thread replays or captures
        try:
            part = parts.found.setdefault(
                (key, *((t.shape, t.dtype, t.device) for t in tensors)), _Part())
            if self.room < self._checked:
                self._drop(self._most, self.room)
            self._checked = self.room
            if part.captured is not None:
                self._uses += 1
                part.used = self._uses
                return part.captured(tensors)
            results = function(*tensors)
            part.runs += 1
            if part.runs > part.after and not part.refused:
                self._take(part, parts, name, function, tensors, results)
            return results
        finally:
            self._lock.release()

    def _take(self, part: _Part, parts: Parts, name: str, function: Function,
              tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        """Capture a part; keep its graph if its results are the right ones and there is room."""
        try:
            captured = self._capture(function, tensors, parts)
            torch.testing.assert_close(captured(tensors), list(results), equal_nan=True)
            if captured.nbytes > self.room:
                raise MemoryError(f'it takes {captured.nbytes >> 20} MiB of {self.room >> 20}')
        except Exception as error:  # any error of any operator, or of the allocator
            part.refused = True
            _log.warning('%s: not captured as a CUDA graph, so its operators are called one by '
                         'one: %s: %s', name, type(error).__name__, str(error).strip()[:500])
            return
        self._drop(self._most - 1, self.room - captured.nbytes)
        self._uses += 1
        part.captured, part.used = captured, self._uses
        self._kept.add(part)

    def _drop(self, most: int, room: int) -> None:
        while len(self._kept) > most or self._kept and self.nbytes > room:
            oldest = min(self._kept, key=lambda part: part.used)
            self._kept.discard(oldest)
            oldest.captured, oldest.runs, oldest.after = None, 0, 2 * oldest.after


class CudaCapture:
    """Captures on a CUDA device; `Graphs` calls it, never twice at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._last = torch.cuda.Event()     # the end of the last replay
        self._failures = 0

    def __call__(self, function: Function, tensors: Sequence[torch.Tensor], parts: Parts
                 ) -> Captured:
        """Capture `function(*tensors)`; raise what PyTorch raises if that is not possible."""
        if self._failures >= FAILURES:
            raise RuntimeError(f'{FAILURES} others could not be captured')
        with _capturing, torch.cuda.device(self._device), torch.inference_mode():
            inputs = [tensor.clone() for tensor in tensors]
            here = torch.cuda.current_stream()
            self._stream.wait_stream(here)
            with torch.cuda.stream(self._stream):
                function(*inputs)   # libraries allocate their workspaces for a stream at first use
            here.wait_stream(self._stream)
            parts.pool = parts.pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            try:
                # `thread_local`: other threads may allocate and copy meanwhile
                with torch.cuda.graph(graph, pool=parts.pool, stream=self._stream,
                                      capture_error_mode='thread_local'):
                    before = torch.cuda.memory_reserved()
                    outputs = list(function(*inputs))
                    nbytes = torch.cuda.memory_reserved() - before
            except Exception as error:
                self._abandon(parts)
                # after an operator's error, the end of the capture raises one that says less
                raise error.__context__ or error from None
        nbytes += sum(tensor.nbytes for tensor in inputs)
        return Captured(inputs, outputs, graph.replay, nbytes, self._turn)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        # The graphs of a program share memory, and callers may use different streams.
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._last)
        try:
            yield
        finally:
            self._last.record(stream)

    def _abandon(self, parts: Parts) -> None:
        """Free the allocator from a capture that has failed.

        Up to some version of PyTorch, `capture_end` raises before it does this. Until then the
        allocator cannot free cached memory, and fails where it is short. The memory of the capture
        stays with its pool.
        """
        self._failures += 1
        for name in '_cuda_endAllocateToPool', '_cuda_endAllocateCurrentStreamToPool':
            end = getattr(torch._C, name, None)
            if end is not None:
                with contextlib.suppress(Exception):    # PyTorch has done it
                    end(self._device.index or 0, parts.pool)
                break
        parts.pool = None


@lru_cache(None)
def graphs_on(device: torch.device) -> Graphs | None:
    """Return the graphs of this process on a device; None if the device has none."""
    return Graphs(CudaCapture(device)) if device.type == 'cuda' else None
