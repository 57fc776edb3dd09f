"""Run one side's part of a plan.

Each plan has one `Program`, and each inference has one `Run`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from fleet_compute.batch import together, unchecked
from fleet_compute.graphs import Function, Graphs, Parts
from fleet_compute.inlets import layout_of
from fleet_compute.pictures import Undecoded, decoded, file_of
from fleet_ros.device import downloading, uploaded

from ..errors import ModelError, RemoteError
from ..model.calls import Arithmetic, Value
from ..model.footprint import Interval
from ..model.graph import Kind
from ..model.layout import flat, shaped
from ..model.traced import Traced
from ..planning.plan import DEVICE, SERVER, Plan, check
from .execution import Form

Stretch = tuple[int, int, torch.Tensor]   # (lo, hi, elements lo to hi - 1 of a tensor)


@dataclass(frozen=True)
class Step:
    """One operator that one side computes; each side keeps its steps in the order of the graph.

    The step may run when the transfers `waits` have been delivered. After the step, the transfers
    `sends` may be sent. An input of the model is a step that computes nothing.
    """

    node: int
    waits: tuple[int, ...]
    sends: tuple[int, ...]


@dataclass(frozen=True)
class _Compiled:
    """The computation of a step, with the intervals of its inputs."""

    sources: tuple[tuple[int, Interval, int | None], ...]
    run: Arithmetic | None
    own: Interval
    last: tuple[int, ...]      # nodes whose tensors are freed after this step, their last use


def arithmetic(traced: Traced, index: int, lo: int, hi: int, needs: Sequence[Interval]
               ) -> Arithmetic:
    """Return the function that computes the interval [lo, hi) of the output of operator `index`.

    `needs`: for each input of the operator, the interval that the caller passes to the function.
    """
    node, nodes = traced.graph.nodes[index], traced.graph.nodes
    call, division = traced.calls[index], traced.divisions[index]
    whole = (lo, hi) == (0, node.extent) and all(
        need == (0, nodes[source].extent) for source, need in zip(node.inputs, needs, strict=True))
    if division.part is None or whole:
        return call.bind()
    return division.part(lo, hi, needs)


class Program:
    """The part of `plan` that `side` computes in each inference.

    `graphs`: captures what is computed often; None: nothing is captured. The constructor first
    checks the plan (`plan.check`), so every program is valid.
    """

    def __init__(self, traced: Traced, plan: Plan, side: int, graphs: Graphs | None = None
                 ) -> None:
        check(plan)
        if plan.graph.digest != traced.graph.digest:
            raise ModelError(f'the plan does not belong to {traced.name}')
        self.traced, self.plan, self.side = traced, plan, side
        self._graphs, self._parts = graphs, Parts()
        self.steps: list[Step] = []
        self._compiled: list[_Compiled] = []
        arriving: dict[int, list[int]] = {}
        leaving: dict[int, list[int]] = {}
        for t in plan.transfers:
            (leaving if t.source == side else arriving).setdefault(t.node, []).append(t.index)
        for node in traced.graph.nodes:
            lo, hi = plan.interval(side, node.index)
            if lo == hi:
                continue
            sources = self._sources(node.index, lo, hi)
            waits = [t for source, (start, end), _ in sources for t in arriving.get(source, ())
                     if plan.transfers[t].lo < end and start < plan.transfers[t].hi]
            self.steps.append(Step(node.index, tuple(waits), tuple(leaving.get(node.index, ()))))
            run = arithmetic(traced, node.index, lo, hi, [need for _, need, _ in sources]) \
                if node.kind is Kind.OPERATOR else None
            self._compiled.append(_Compiled(sources, run, (lo, hi), ()))
        self._mark_last_uses()

    @cached_property
    def forms(self) -> list[Form]:
        """What each transfer consists of."""
        records = [self.traced.tape.records[t.node] for t in self.plan.transfers]
        return [Form(made.dtype.itemsize, layout_of(
            self.shape(index), made.format is not torch.contiguous_format),
            made.dtype is torch.float32) for index, made in enumerate(records)]

    def shape(self, transfer: int) -> list[int]:
        """Return the shape of the part of a tensor that a transfer carries."""
        t = self.plan.transfers[transfer]
        axis = self.traced.graph.nodes[t.node].axis
        return [t.hi - t.lo if i == axis else n
                for i, n in enumerate(self.traced.tape.records[t.node].shape)]

    def _sources(self, index: int, lo: int, hi: int
                 ) -> tuple[tuple[int, Interval, int | None], ...]:
        node = self.traced.graph.nodes[index]
        return tuple((source, footprint.need(lo, hi), self.traced.graph.nodes[source].axis)
                     for source, footprint in zip(node.inputs, node.footprints, strict=True))

    def _mark_last_uses(self) -> None:
        """Mark the step at which each intermediate tensor is used last.

        A run frees the tensor after this step. A run never frees the model's inputs, because the
        robot may have to finish the request alone.
        """
        seen: set[int] = set()
        nodes = self.traced.graph.nodes
        for at in range(len(self._compiled) - 1, -1, -1):
            c = self._compiled[at]
            last = []
            for source, _, _ in c.sources:
                if source not in seen and nodes[source].kind is Kind.OPERATOR \
                        and nodes[self.steps[at].node].kind is Kind.OPERATOR:
                    last.append(source)
                seen.add(source)
            self._compiled[at] = _Compiled(c.sources, c.run, c.own, tuple(last))

    def start(self, inputs: Sequence[torch.Tensor] | None = None) -> Run:
        """Begin one inference; the server's side passes no inputs."""
        if self.side == DEVICE:
            self.traced.check_inputs(inputs or ())
        return Run(self, inputs)

    def _differs_in_batch(self, node: int) -> bool:
        """Return whether an operator may give another result in a batch; see `together`."""
        call, records = self.traced.calls.get(node), self.traced.tape.records
        if call is not None and unchecked(
                call.overload, isinstance(call.arguments.get('weight'), Value)):
            return True
        if call is None or all(value.shape for value in call.values):
            return False
        dtypes = {records[value.index].dtype for value in call.values}
        return len(dtypes | {weight.tensor.dtype for weight in call.weights}) > 1

    def _rounding(self) -> AbstractContextManager[None]:
        """Return a context that computes with the model's precision, which a robot uses anyway."""
        return self.traced.tape.precision.held() if self.side == SERVER else nullcontext()

    def compute_together(self, runs: Sequence[Run], steps: range) -> bool:
        """Compute `steps` of several runs of this program at once, as `Run.compute` does of one.

        If there are graphs, they also compute a single run. Return False if PyTorch cannot compute
        the runs together, or if they fail for one of the runs. Then the runs are unchanged, and
        each can be computed alone.
        """
        graphs, device = self._graphs, runs[0]._device
        if len(runs) == 1 and graphs is None or len(runs) > 1 and any(
                self._differs_in_batch(self.steps[at].node) for at in steps):
            return False
        compiled = [self._compiled[at] for at in steps]
        sources = {node for c in compiled for node, _, _ in c.sources}
        freed = {node for c in compiled for node in c.last}
        # what stays of the steps: their nodes and intervals
        made = [(self.steps[at].node, c.own) for at, c in zip(steps, compiled, strict=True)
                if c.run is not None and self.steps[at].node not in freed]
        given: list[tuple[int, Interval]] = []      # what all runs hold

        def compute(*tensors: torch.Tensor) -> list[torch.Tensor]:
            lane = Run(self, None, device)
            for (node, (lo, hi)), tensor in zip(given, tensors, strict=True):
                lane._stretches.setdefault(node, []).append((lo, hi, tensor))
            for at in steps:
                lane._compute(at)
            new = lane._held({node for node, _ in made})
            return [new[key] for key in made]

        def apply(function: Function, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            if graphs is None:
                return function(*tensors)
            name = f'{self.traced.name}, steps {steps.start} to {steps.stop - 1}'
            return graphs.run(self._parts, (steps, len(runs), *given), name, function, tensors)

        try:
            for run in runs:
                run._place()
                for node in sources & run._given.keys() - run._inputs.keys():
                    run._take(node)
            held = [run._held(sources) for run in runs]
            # Transfers for later steps may have arrived for some runs only.
            given[:] = [key for key in held[0] if all(key in tensors for tensors in held)]
            requests = [[tensors[key] for key in given] for tensors in held]
            with torch.inference_mode(), self._rounding():
                results: Sequence[Sequence[torch.Tensor]] = [[]] * len(runs) if not made else \
                    [apply(compute, requests[0])] if len(runs) == 1 else \
                    together(compute, requests, apply)
        except Exception:   # any error of any operator: the caller computes each run alone
            return False
        for run, tensors in zip(runs, results, strict=True):
            for (node, (lo, hi)), tensor in zip(made, tensors, strict=True):
                run._stretches.setdefault(node, []).append((lo, hi, tensor))
            for at in steps:
                with suppress(Exception):   # such as no memory: `piece` tries again and says why
                    run._leave(at)
            for node in freed:
                run._stretches.pop(node, None)
        return True


class Run:
    """One inference on one side; `deliver` and `piece` may run in parallel with one `compute`.

    `deliver` keeps the received tensors in the host's memory. If this side uses a GPU, the next
    `compute` copies them to the GPU.
    """

    def __init__(self, program: Program, inputs: Sequence[torch.Tensor] | None,
                 device: torch.device | None = None) -> None:
        self.program = program
        self.graph = program.traced.graph
        self._stretches: dict[int, list[Stretch]] = {}
        # a node, an interval, its delivered elements, still in the host's memory, and their shape
        self._arrived: deque[tuple[int, Interval, torch.Tensor, list[int]]] = deque()
        # the copies of outgoing transfers that have begun
        self._leaving: dict[int, Callable[[], torch.Tensor]] = {}
        self._device = device or next(iter((*program.traced.parameters.values(), *(inputs or ()),
                                            torch.empty(0)))).device
        self._given = dict(zip(self.graph.inputs, inputs or (), strict=inputs is not None))
        self._inputs: dict[int, list[Stretch]] = {}
        for index, tensor in self._given.items():
            if not isinstance(tensor, Undecoded):
                self._take(index)

    def _take(self, index: int) -> None:
        """Lay out an input as the trace has it; a picture is decoded here, if something uses it."""
        tensor = decoded(self._given[index])
        # If PyTorch has postponed a conjugation or negation of the tensor, compute it now.
        own = tensor.detach().resolve_conj().resolve_neg().contiguous(
            memory_format=self.program.traced.tape.records[index].format)
        self._inputs[index] = self._stretches[index] = [(0, self.graph.nodes[index].extent, own)]

    def compute(self, steps: range) -> None:
        """Run steps; all their transfers in `waits` must have been delivered."""
        self._place()
        with torch.inference_mode(), self.program._rounding():
            for at in steps:
                self._compute(at)
                self._leave(at)

    def _compute(self, at: int) -> None:
        compiled = self.program._compiled[at]
        if compiled.run is not None:
            result = compiled.run(*[self._gather(*source) for source in compiled.sources])
            self._stretches.setdefault(self.program.steps[at].node, []).append(
                (*compiled.own, result))
        for value in compiled.last:
            self._stretches.pop(value, None)

    def _leave(self, at: int) -> None:
        """Let what step `at` sends leave a GPU at once, before later kernels are queued."""
        if not isinstance(self._given.get(self.program.steps[at].node), Undecoded):
            for transfer in self.program.steps[at].sends:
                self._leaving[transfer] = self._download(transfer)

    def _download(self, transfer: int) -> Callable[[], torch.Tensor]:
        t = self.program.plan.transfers[transfer]
        with torch.inference_mode():
            tensor = self._gather(t.node, (t.lo, t.hi), self.graph.nodes[t.node].axis)
            return downloading(flat(tensor, self.program.traced.tape.records[t.node].format))

    def _place(self) -> None:
        """Copy the delivered tensors to the device that computes, such as a GPU."""
        while self._arrived:
            node, (lo, hi), elements, shape = self._arrived[0]
            elements = uploaded(elements, self._device)   # may raise; then nothing is lost
            self._arrived.popleft()
            form = self.program.traced.tape.records[node].format
            self._stretches.setdefault(node, []).append((lo, hi, shaped(elements, shape, form)))

    def _held(self, nodes: Collection[int]) -> dict[tuple[int, Interval], torch.Tensor]:
        """Return the tensors that this run has of `nodes`, by node and interval, in order."""
        return {(node, (lo, hi)): tensor for node in sorted(nodes)
                for lo, hi, tensor in sorted(self._stretches.get(node, ()), key=lambda s: s[:2])}

    def _gather(self, node: int, need: Interval, axis: int | None) -> torch.Tensor:
        lo, hi = need
        if node in self._given and node not in self._stretches:
            self._take(node)
        stretches = self._stretches.get(node, ())
        for start, end, tensor in stretches:
            if start <= lo and hi <= end:
                if axis is None or (start, end) == need:
                    return tensor
                return tensor.narrow(axis, lo - start, hi - lo)
        if lo == hi:  # nothing is needed: return an empty tensor of the right shape
            made = self.program.traced.tape.records[node]
            shape = [0 if i == axis else n for i, n in enumerate(made.shape)]
            return torch.empty(shape, dtype=made.dtype, device=self._device)
        assert axis is not None
        cuts = []
        for start, end, tensor in sorted(stretches, key=lambda p: p[0]):
            start_at = max(lo, start)
            if start_at < min(hi, end):
                if start_at > lo:
                    break
                cuts.append(tensor.narrow(axis, start_at - start, min(hi, end) - start_at))
                lo = min(hi, end)
        if lo < hi:
            raise RemoteError(f'the elements from {lo} to {hi} of a tensor must have been computed '
                              'or delivered before they are used')
        return torch.cat(cuts, axis)

    def piece(self, transfer: int) -> memoryview:
        """Return the bytes of an outgoing transfer; the step that sends it must have run.

        On a GPU, this waits for the copy. It may run while another thread computes later steps.
        """
        elements = (self._leaving.pop(transfer, None) or self._download(transfer))()
        return elements.view(torch.uint8).numpy().data

    def form(self, transfer: int) -> Form:
        """Return what an outgoing transfer consists of."""
        t, form = self.program.plan.transfers[transfer], self.program.forms[transfer]
        whole = (t.lo, t.hi) == (0, self.graph.nodes[t.node].extent)
        given = self._given.get(t.node)
        return form if given is None or not whole else form._replace(file=file_of(given))

    def deliver(self, transfer: int, data: Any) -> None:
        """Store the bytes of a transfer from the other side.

        `data` must not change until the run has ended. Raises RemoteError for a wrong length.
        """
        t = self.program.plan.transfers[transfer]
        made = self.program.traced.tape.records[t.node]
        if len(data) != t.bytes:
            raise RemoteError(f'transfer {transfer} of {self.program.traced.name} has {t.bytes} '
                              f'bytes, got {len(data)}')
        self._arrived.append((t.node, (t.lo, t.hi), torch.frombuffer(data, dtype=made.dtype),
                              self.program.shape(transfer)))

    def outputs(self) -> tuple[torch.Tensor, ...]:
        """Return the model's results; on the robot's side they are complete after its last step."""
        self._place()
        return self.program.traced.outputs(self._whole)

    def _whole(self, node: int) -> torch.Tensor:
        n = self.graph.nodes[node]
        return self._gather(node, (0, n.extent), n.axis)

    def finish_alone(self) -> tuple[torch.Tensor, ...]:
        """Compute all missing tensors on this side, from the inputs and the complete tensors.

        If this side has only a part of a tensor, the whole tensor is computed again.
        """
        self._place()
        for index in self._given.keys() - self._inputs.keys():
            self._take(index)
        complete: dict[int, torch.Tensor] = {}
        for node, stretches in {**self._inputs, **self._stretches}.items():
            extent = self.graph.nodes[node].extent
            whole = [t for lo, hi, t in list(stretches) if (lo, hi) == (0, extent)]
            if whole:
                complete[node] = whole[0]
        return self.program.traced.run(complete)
