"""Measure a profile: the time of each operator of a model on this machine."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from fleet_compute.inlets import elements_of, layout_of, share
from fleet_compute.pictures import file_of

from ..model.calls import Arithmetic
from ..model.graph import Kind
from ..model.layout import flat
from ..model.traced import Traced
from ..planning.profile import Profile, fit
from .program import arithmetic
from .slow import Pause, computing_time

SHARES = (0.25, 0.5, 1.0)
LINK = 4e6     # rate in bytes/s for which codecs are compared; few choices depend on it
Progress = Callable[[int, int], None]


def measure(traced: Traced, repeats: int = 7, warm_up: int = 2, shares: Sequence[float] = SHARES,
            progress: Progress | None = None, slowdown: float = 1.0) -> Profile:
    """Measure each operator `repeats` times at each share, and fit a line to the medians.

    A share is the fraction of an operator's result that is computed. Every pass runs the whole
    model in order, so the caches are as warm as in an inference. After each pass the function calls
    `progress(done, passes)`.

    `slowdown`: pauses make this machine slower by this factor, to emulate a slower robot
    (`slow.py`). After a pause, the caches are colder than in an inference.
    """
    sizes = [_sizes(traced, share) for share in shares]
    actual = np.array(sizes) / traced.graph.extents
    seconds = np.zeros((len(shares), len(traced.graph)))
    passes, done = len(shares) * (warm_up + repeats), 0
    for row, size in enumerate(sizes):
        timer = _Pass(traced, size, slowdown)
        samples = []
        for turn in range(warm_up + repeats):
            sample = timer.run()
            if turn >= warm_up:
                samples.append(sample)
            done += 1
            if progress is not None:
                progress(done, passes)
        seconds[row] = np.median(samples, 0)
    fixed, per_share = fit(actual, seconds)
    return Profile(traced.graph.digest, traced.name, machine(), torch.__version__,
                   tuple(n.name for n in traced.graph.nodes), fixed, per_share)


def encoded_shares(traced: Traced) -> np.ndarray:
    """Return the bytes that cross a link for each byte of each node's tensor, float64 (nodes,).

    The tensors are those of the model's example. Without one they are random, and an input counts
    as sent as it is, because real ones differ from it most.
    """
    graph, found = traced.graph, np.ones(len(traced.graph))
    values: dict[int, torch.Tensor] = {}
    last_use = {source: n.index for n in graph.nodes for source in n.inputs}
    device = next(iter(traced.parameters.values()), torch.empty(0)).device
    with torch.inference_mode():
        for node in graph.nodes:
            if node.kind is Kind.OUTPUT:
                break
            made = traced.tape.records[node.index]
            if node.kind is Kind.INPUT:
                given = traced.example[graph.inputs.index(node.index)] if traced.example else \
                    _random(made.shape, made.dtype, device)
                values[node.index] = given.contiguous(memory_format=made.format)
            else:
                values[node.index] = traced.calls[node.index].bind()(
                    *(values[i] for i in node.inputs))
            if node.kind is Kind.OPERATOR or traced.example:
                value = values[node.index]
                elements = flat(value, made.format).cpu().view(torch.uint8).numpy()
                found[node.index] = share(
                    elements_of(elements, value.dtype.itemsize),
                    layout_of(value.shape, made.format is not torch.contiguous_format), LINK,
                    file_of(given) if node.kind is Kind.INPUT else None)
            for source in node.inputs:
                if last_use[source] == node.index:
                    values.pop(source, None)
    return found


def machine() -> str:
    """Return a readable name of the machine."""
    if torch.cuda.is_available():
        return f'{torch.cuda.get_device_name()} ({platform.node()})'
    return f'{platform.machine()}, {torch.get_num_threads()} threads ({platform.node()})'


def _sizes(traced: Traced, share: float) -> list[int]:
    return [max(1, round(n.extent * share)) for n in traced.graph.nodes]


class _Pass:
    """One pass over the whole model.

    For each operator, the pass times the computation of the interval [0, size) of the result. The
    rest of the result is zero for later operators: to compute it would take as long again, and no
    time depends on what tensors contain.
    """

    def __init__(self, traced: Traced, sizes: list[int], slowdown: float) -> None:
        self.traced, self.slowdown = traced, slowdown
        graph = traced.graph
        self.parts: list[tuple[int, Arithmetic, list[tuple[int, int, int]]]] = []
        for node in graph.nodes:
            if node.kind is not Kind.OPERATOR:
                continue
            size = sizes[node.index]
            needs = [f.need(0, size) for f in node.footprints]
            cuts = [(i, lo, hi) for i, (lo, hi) in enumerate(needs)
                    if (lo, hi) != (0, graph.nodes[node.inputs[i]].extent)]
            part = arithmetic(traced, node.index, 0, size, needs)
            self.parts.append((node.index, part, cuts))
        self.last_use = {source: n.index for n in graph.nodes for source in n.inputs}
        self.device = next(iter(traced.parameters.values()), torch.empty(0)).device

    def run(self) -> np.ndarray:
        """Run one pass; return the seconds that each operator took, float64 (nodes,)."""
        graph = self.traced.graph
        values: dict[int, torch.Tensor] = {}
        marks: list[tuple[int, Any, Any]] = []
        pause = Pause(self.slowdown)
        with torch.inference_mode():
            for index in graph.inputs:
                made = self.traced.tape.records[index]
                values[index] = _random(made.shape, made.dtype, self.device).contiguous(
                    memory_format=made.format)
            for index, part, cuts in self.parts:
                inputs = graph.nodes[index].inputs
                tensors = [values[i] for i in inputs]
                begin = self._now()
                for at, lo, hi in cuts:
                    axis = graph.nodes[inputs[at]].axis
                    tensors[at] = tensors[at].narrow(axis or 0, lo, hi - lo)
                result = part(*tensors)
                end = self._now()
                marks.append((index, begin, end))
                if self.slowdown != 1:
                    pause.after(end - begin)
                values[index] = self._whole(index, result)
                for source in inputs:
                    if self.last_use[source] == index:
                        del values[source]
        return self._seconds(marks)

    def _whole(self, index: int, result: torch.Tensor) -> torch.Tensor:
        """Return the tensor of a node whose first indices are in `result`."""
        made, axis = self.traced.tape.records[index], self.traced.graph.nodes[index].axis
        if axis is None or result.shape[axis] == made.shape[axis]:
            return result
        whole = torch.empty(made.shape, dtype=made.dtype, device=result.device,
                            memory_format=made.format).zero_()
        whole.narrow(axis, 0, result.shape[axis]).copy_(result)
        return whole

    def _now(self) -> Any:
        if self.device.type != 'cuda':
            return time.perf_counter() if self.slowdown == 1 else computing_time()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, marks: list[tuple[int, Any, Any]]) -> np.ndarray:
        found = np.zeros(len(self.traced.graph))
        if self.device.type == 'cuda' and marks:
            marks[-1][2].synchronize()   # wait only for this pass, not for other work on the GPU
        for index, begin, end in marks:
            found[index] = begin.elapsed_time(end) / 1e3 if self.device.type == 'cuda' \
                else (end - begin) * self.slowdown
        return found


def _random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(device, dtype)
    return torch.zeros(shape, dtype=dtype, device=device)
