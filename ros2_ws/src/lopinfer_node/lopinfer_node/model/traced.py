"""A traced model: its graph for planning, and its calls, which run without the user's Python code.

`trace` makes a traced model from a module. `files.load` makes it from two files, which a robot may
send to a server.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from ..errors import ModelError
from . import rules  # noqa: F401 - registers the rules
from .calls import Call, Division, Value, Weight, divide
from .footprint import whole
from .graph import Graph, Kind, Node
from .layout import flat, format_of
from .state import untouched
from .tape import Record, Ref, Tape
from .text import as_json
from .trace import place_of, record
from .unchecked import check_type

MAX_CHOICES = 64


class Traced:
    """A model as calls of pure operators; its graph divides the inputs along `axes`.

    `axes`: the axis along which each input is divided; None for an input that stays whole.
    `structure`: how the model nests its results; None if the model was not run. `writes`:
    whether the model writes to its inputs. `example`: inputs, such as those of the trace, that
    show how well tensors can be encoded; None: not known.
    """

    def __init__(self, name: str, tape: Tape, axes: Sequence[int | None]) -> None:
        self.name = name
        self.tape = tape
        self.axes = tuple(axes)
        self.structure: pytree.TreeSpec | None = None
        self.writes = False
        self.example: Sequence[torch.Tensor] | None = None
        self.divisions: dict[int, Division] = {}
        self.calls: dict[int, Call] = {}
        self.graph = self._build()

    @property
    def inputs(self) -> list[Record]:
        """Return the records of the model's inputs, in order."""
        return [r for r in self.tape.records if r.overload is None]

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]:
        """Return the constant tensors by name."""
        return self.tape.weights

    @cached_property
    def fingerprints(self) -> dict[str, bytes]:
        """Return name -> eight bytes for each constant tensor.

        The bytes are a hash of the name, the type, the shape and the content of the tensor.
        """
        return {name: hashlib.sha256(json.dumps([name, *content]).encode()).digest()[:8]
                for name, content in self.contents.items()}

    @cached_property
    def contents(self) -> dict[str, Content]:
        """Return name -> content of each constant tensor, sorted."""
        return {name: content_of(tensor) for name, tensor in sorted(self.tape.weights.items())}

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of graph, calls and weights; equal digests mean equal results."""
        state = hashlib.sha256(as_json(self.name, self.axes, self.tape).encode())
        for mark in self.fingerprints.values():
            state.update(mark)
        return state.hexdigest()

    def _build(self) -> Graph:
        values: list[Value] = []
        nodes: list[Node] = []
        axes = iter(self.axes)
        for index, made in enumerate(self.tape.records):
            size = made.dtype.itemsize
            if 0 in made.shape:
                raise ModelError(f'{self.name}: {made.place}: a tensor of shape '
                                 f'{list(made.shape)} has no elements to divide')
            check_type(made.dtype)
            if made.overload is None:
                axis = next(axes)
                nodes.append(Node(index, made.place or f'input{index}', Kind.INPUT, 'input', (), (),
                                  made.shape, size, axis))
                values.append(Value(index, made.shape, axis))
                continue
            call = Call(made.overload, {k: _valued(a, values) for k, a in made.arguments.items()},
                        made.shape, made.dtype, made.pick)
            try:
                division = divide(call)
            except ModelError as error:
                raise ModelError(f'{self.name}: {made.place}: {error}') from None
            self.calls[index], self.divisions[index] = call, division
            nodes.append(Node(index, f'{call.op}_{index}', Kind.OPERATOR, call.op,
                              tuple(v.index for v in call.values), division.footprints, made.shape,
                              size, division.axis, division.is_global, made.place))
            values.append(Value(index, made.shape, division.axis))
        for output in dict.fromkeys(o.index for o in self.tape.outputs if isinstance(o, Ref)):
            value, made = values[output], self.tape.records[output]
            nodes.append(Node(len(nodes), f'output_{output}', Kind.OUTPUT, 'output', (output,),
                              (whole(1, value.extent),), made.shape, made.dtype.itemsize))
        return Graph(nodes, self.name)

    def check_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Raise ModelError unless each input has the shape and the type of the traced input."""
        if len(inputs) != len(self.inputs):
            raise ModelError(f'{self.name} takes {len(self.inputs)} tensors, got {len(inputs)}')
        for given, wanted in zip(inputs, self.inputs, strict=True):
            if tuple(given.shape) != wanted.shape or given.dtype != wanted.dtype:
                raise ModelError(
                    f'{self.name}: input {wanted.place} was traced as {wanted.dtype} '
                    f'{list(wanted.shape)}, got {given.dtype} {list(given.shape)}')

    def run(self, known: dict[int, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the model's results; compute missing tensors and add them to ``known``.

        ``known``: whole tensors by the index of their node; it must contain at least the inputs.
        """
        wanted = [o.index for o in self.tape.outputs if isinstance(o, Ref)]
        needed: set[int] = set()
        for node in range(len(self.graph) - 1, -1, -1):
            if (node in wanted or node in needed) and node not in known:
                needed.add(node)
                needed.update(self.graph.nodes[node].inputs)
        with torch.inference_mode():
            for node in sorted(needed - known.keys()):
                call = self.calls[node]
                known[node] = call.bind()(*(known[v.index] for v in call.values))
        return self.outputs(known.__getitem__)

    def outputs(self, whole: Callable[[int], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the model's results; ``whole(node)`` returns the whole tensor of a node.

        The results are copies, because the caller may write to them. The tensors themselves were
        made in inference mode, which does not allow writes.
        """
        return tuple((o.tensor if isinstance(o, Weight) else whole(o.index)).clone()
                     for o in self.tape.outputs)


class Content(NamedTuple):
    """What a weight contains: the SHA-256 of its elements in row-major order, in hex; its form."""

    sha256: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of the elements."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return math.prod(self.shape) * dtype.itemsize


def content_of(tensor: torch.Tensor) -> Content:
    """Return what a tensor contains."""
    return Content(hashlib.sha256(bytes_of(tensor)).hexdigest(),
                   str(tensor.dtype).removeprefix('torch.'), tuple(tensor.shape))


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the elements of a tensor in row-major order."""
    return flat(tensor.detach().cpu()).view(torch.uint8).numpy().data


def _valued(argument: Any, values: Sequence[Value]) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_valued(a, values) for a in argument]
    return values[argument.index] if isinstance(argument, Ref) else argument


def trace(model: torch.nn.Module, *args: torch.Tensor, verify: bool = True,
          **kwargs: Any) -> Traced:
    """Trace `model` with these example inputs; later inputs must have the same shapes.

    The function chooses the axes of the inputs so that as many operators as possible can be
    divided; see `divided`. With `verify`, it makes three checks. It compares the results of
    the traced calls with those of the model, for these inputs and for other inputs. It
    compares each traced call with the same call computed in two parts. And it checks that
    the model gives equal results when it runs again. After the trace the model is as
    before, whatever its code does. Raise ModelError with the reason and the place in the
    model.
    """
    leaves, structure = pytree.tree_flatten((args, kwargs))
    if not leaves:
        raise ModelError(f'{type(model).__name__} needs at least one tensor as input')
    for name, leaf in zip(input_names(args, kwargs), leaves, strict=True):
        if not isinstance(leaf, torch.Tensor):
            raise ModelError(f'{type(model).__name__}: all inputs must be tensors, but input '
                             f'{name} is of class {type(leaf).__name__}')
    try:
        # Copy the inputs to the memory layout that they will have after a message carries them.
        # Each input gets a separate copy. Otherwise, if two inputs are one tensor, the tracer
        # would treat them as one value. And it would treat an input that is a weight of the model
        # as a weight.
        own = [leaf.detach().resolve_conj().resolve_neg().clone(
            memory_format=format_of(leaf)) for leaf in leaves]
        with untouched(model):
            traced = divided(type(model).__name__, record(model, own, structure))
        if verify:
            with untouched(model), torch.no_grad():
                _verify(model, traced, own, structure)
            with untouched(model), torch.no_grad():
                _verify_sharing(model, traced, leaves, own, structure)
    except ModelError:
        raise
    except Exception as error:   # the code of a model can raise any exception
        raise ModelError(f'{type(model).__name__} cannot be traced: {place_of(error)}') from error
    return traced


def input_names(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Return a name for each tensor of a call, such as `0.image` or `mask[1]`.

    `0` stands for the first argument without a name.
    """
    return [f'{name}{pytree.keystr(path)}' for name, value in (*enumerate(args), *kwargs.items())
            for path, _ in pytree.tree_flatten_with_path(value)[0]]


def _verify(model: torch.nn.Module, traced: Traced, leaves: list[torch.Tensor],
            structure: pytree.TreeSpec) -> None:
    """Compare the traced calls with the model.

    The model runs three times: with these inputs, with other inputs, and with these inputs again.
    """
    known = dict(zip(traced.graph.inputs, leaves, strict=True))
    mine = traced.run(known)
    _verify_parts(traced, known)
    _verify_default(traced, leaves, mine)
    copies = [leaf.clone() for leaf in leaves]
    wanted, traced.structure = _run(model, copies, structure)
    traced.writes = any(copy._version for copy in copies)
    _verify_results(traced, mine, wanted)
    others = _others(leaves)
    try:
        differing, _ = _run(model, [leaf.clone() for leaf in others], structure)
    except Exception:   # the model rejects these inputs, or cannot run twice
        pass
    else:
        _verify_results(traced, _calls(traced, others), differing)
    again = _run(model, [leaf.clone() for leaf in leaves], structure)[0]
    # If two runs of the traced calls differ, the kernels are not deterministic. Then allow for
    # rounding.
    rounding = 0.0 if _equal(_calls(traced, leaves), mine) else 1e-5
    if not _equal(again, wanted, rounding):
        raise ModelError(f'{traced.name}: the results differ for the same inputs; does the model '
                         'depend on something besides its inputs, such as an earlier call?')


def _verify_default(traced: Traced, leaves: list[torch.Tensor], mine: Sequence[torch.Tensor]
                    ) -> None:
    """Raise ModelError if the default dtype is not float32 and the results depend on it."""
    own = torch.get_default_dtype()
    if own is torch.float32:
        return
    torch.set_default_dtype(torch.float32)
    try:
        there = _calls(traced, leaves)
    finally:
        torch.set_default_dtype(own)
    if not _equal(there, mine):
        raise ModelError(f"{traced.name}: its results depend on PyTorch's default dtype, which is "
                         f'{own} here and torch.float32 on a server: name the dtypes in the model')


def _verify_sharing(model: torch.nn.Module, traced: Traced, given: list[torch.Tensor],
                    leaves: list[torch.Tensor], structure: pytree.TreeSpec) -> None:
    """Raise ModelError if two inputs are the same tensor and the result depends on that."""
    if len(set(map(id, given))) == len(given):
        return
    copies: dict[int, torch.Tensor] = {id(tensor): tensor.clone() for tensor in given}
    args, kwargs = pytree.tree_unflatten([copies[id(tensor)] for tensor in given], structure)
    results = pytree.tree_leaves(model(*args, **kwargs))
    _verify_results(traced, _calls(traced, leaves), results,
                    'its result differs if two inputs are the same tensor: give an '
                    'example of different tensors')


def _run(model: torch.nn.Module, leaves: list[torch.Tensor], structure: pytree.TreeSpec
         ) -> tuple[list[torch.Tensor], pytree.TreeSpec]:
    """Run the model, which may write to `leaves`; return its results and their structure."""
    args, kwargs = pytree.tree_unflatten(leaves, structure)
    results, nested = pytree.tree_flatten(model(*args, **kwargs))
    return [result.detach().clone() for result in results], nested


def _calls(traced: Traced, leaves: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return traced.run(dict(zip(traced.graph.inputs, leaves, strict=True)))


def _others(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return other inputs with values in a similar range, for example the same values, shuffled."""
    draw = torch.Generator().manual_seed(0)
    return [_other(leaf.cpu(), draw).to(leaf.device) for leaf in leaves]


def _other(leaf: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    flat, real = leaf.reshape(-1), leaf.dtype.is_floating_point or leaf.dtype.is_complex
    if len(flat) and bool((flat != flat[0]).any()):
        mixed = flat[torch.randperm(len(flat), generator=draw)].view(leaf.shape)
        return mixed * 0.75 if real else mixed
    if real:
        return leaf + torch.rand(leaf.shape, generator=draw).to(leaf.dtype)
    most = int(flat.max()) if len(flat) else 0
    return torch.randint(0, max(most, 0) + 1, leaf.shape, generator=draw).to(leaf.dtype)


def _verify_results(traced: Traced, got: Sequence[torch.Tensor], want: Sequence[torch.Tensor],
                    why: str = "the traced operators do not give the model's result; does it "
                               'depend on something besides its inputs?') -> None:
    for mine, its in zip(got, want, strict=True):
        if not _alike(mine, its, 1e-5):
            raise ModelError(f'{traced.name}: {why}')


def _equal(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor], rounding: float = 0.0
           ) -> bool:
    return all(a.shape == b.shape and a.dtype == b.dtype and (
        bool(((a == b) | (a != a) & (b != b)).all()) or rounding > 0 and _alike(a, b, rounding))
        for a, b in zip(got, want, strict=True))


def _verify_parts(traced: Traced, known: Mapping[int, torch.Tensor]) -> None:
    """Raise ModelError unless each result that is computed in two parts equals the whole result.

    A rule may be wrong for an overload or for arguments that its author has not thought of.
    """
    nodes = traced.graph.nodes
    for index, division in traced.divisions.items():
        node, call, axis = nodes[index], traced.calls[index], division.axis
        if axis is None or node.extent == 1:
            continue
        for lo, hi in (0, node.extent // 2), (node.extent // 2, node.extent):
            needs = [f.need(lo, hi) for f in node.footprints]
            tensors = [known[s] if (at := nodes[s].axis) is None
                       else known[s].narrow(at, start, end - start)
                       for s, (start, end) in zip(node.inputs, needs, strict=True)]
            with torch.inference_mode():
                part = division.part(lo, hi, needs) if division.part else call.bind()
                if not _alike(part(*tensors), known[index].narrow(axis, lo, hi - lo)):
                    raise ModelError(f'{traced.name}: {node.place}: {call.overload} gives another '
                                     f'result when divided along axis {axis}')


def _alike(got: torch.Tensor, want: torch.Tensor, share: float = 1e-3) -> bool:
    """Return whether two tensors are equal except for rounding.

    An element may differ by 1e-3 of its value plus ``share`` of the largest element. For
    types of low precision both factors are at least 4 times the machine epsilon.
    """
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if not want.dtype.is_floating_point and not want.dtype.is_complex:
        return torch.equal(got, want)
    least = 4 * torch.finfo(want.dtype).eps
    scale = float(want.abs().nan_to_num(0, 0, 0).max()) if want.numel() else 0.0
    return torch.allclose(got, want, max(1e-3, least), max(share, least) * scale, equal_nan=True)


def divided(name: str, tape: Tape) -> Traced:
    """Return the model with its inputs divided so that as many operators as possible are divisible.

    The function tries the first `MAX_CHOICES` choices of axes. If several choices are equally
    good, it takes the outermost axes, because slices along an outer axis are the largest contiguous
    pieces of memory.
    """
    shapes = [r.shape for r in tape.records if r.overload is None]
    options: list[list[int | None]] = [[a for a, n in enumerate(shape) if n > 1] or [None]
                                       for shape in shapes]
    choices = itertools.islice(itertools.product(*options), MAX_CHOICES)

    def divisible(traced: Traced) -> int:
        return sum(n.extent > 1 for n in traced.graph.nodes if n.kind is Kind.OPERATOR)
    return max((Traced(name, tape, axes) for axes in choices), key=divisible)
