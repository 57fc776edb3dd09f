"""Convert a `torch.nn.Module` to a list of ATen calls; each result is a single tensor.

torch.export traces the module. If torch.export fails, torch.fx traces it. In-place operators become
pure operators, constants are folded, and lists of tensors become slices. So the rest of the package
handles only simple calls.
"""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fleet_env.vision import other_build
from numba.core.compiler_lock import global_compiler_lock
from torch.utils import _pytree as pytree

from ..errors import ModelError
from .calls import Weight, random
from .layout import format_of
from .precision import Precision
from .state import refuse_hooks, untouched
from .tape import Record, Ref, Tape

_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent), '<')


# Maps an operator to its replacement, and to the argument of the replacement that gets a
# shape or dtype. There are three reasons to replace an operator. It uses only the shape
# or dtype of another tensor, it names a device, or it relies on the memory layout. The
# memory layout changes when a tensor crosses the link.
_LIKE = {'view': (torch.ops.aten.reshape.default, 'shape'),
         'view_as': (torch.ops.aten.reshape.default, 'shape'),
         'reshape_as': (torch.ops.aten.reshape.default, 'shape'),
         'expand_as': (torch.ops.aten.expand.default, 'size'),
         'type_as': (torch.ops.aten.to.dtype, 'dtype'),
         'to': (torch.ops.aten.to.dtype, 'dtype'),
         '_to_copy': (torch.ops.aten.to.dtype, 'dtype')}
# Operators that create a tensor with the dtype of another tensor, and the value with which each
# operator fills the new tensor. None: the value is an argument of the call.
_FILLED = {'new_zeros': 0, 'new_ones': 1, 'new_full': None}


class _Aliased(Exception):
    """An in-place operator writes through a view.

    So the graph must first be made functional.
    """


def record(model: torch.nn.Module, inputs: Sequence[torch.Tensor],
           structure: pytree.TreeSpec) -> Tape:
    """Trace a call of `model` with the tensors `inputs`.

    `structure` describes how the arguments (args, kwargs) of the call contain these tensors.
    The tape has the precision with which this process computes on the device of `inputs`. Raise
    ModelError, with the reason and the place in the model, if the call cannot be traced.
    """
    tape = _recorded(model, inputs, structure)
    tape.precision = Precision.of(inputs[0].device)
    return tape


def _recorded(model: torch.nn.Module, inputs: Sequence[torch.Tensor],
              structure: pytree.TreeSpec) -> Tape:
    training = [name or 'the model' for name, m in model.named_modules() if m.training]
    if training:
        raise ModelError(f'{training[0]} is in training mode: call model.eval() first')
    refuse_hooks(model)
    if torch.is_autocast_enabled('cpu'):
        raise ModelError('torch.autocast is on, which a server does not use: switch it off')
    args, kwargs = pytree.tree_unflatten(list(inputs), structure)
    _fill_caches(model, args, kwargs)
    # PyTorch replaces functions such as `min` for all threads while it traces. What numba compiles
    # then fails, at every later time, too; so nothing may be compiled meanwhile.
    with torch.no_grad(), warnings.catch_warnings(), global_compiler_lock:
        warnings.simplefilter('ignore')
        try:
            return _exported(model, args, kwargs)
        except ModelError:
            raise
        except Exception as error:  # torch.export raises many types of errors
            reason = error
        try:
            return _traced(model, args, kwargs)
        except ModelError:
            raise
        except Exception:
            advice = other_build(reason)
            raise ModelError(f'{type(model).__name__} cannot be traced: {place_of(reason)}'
                             + f'. {advice}' * bool(advice)) from reason


def _fill_caches(model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    """Run the model once before the trace, so that its caches hold no tensors of the tracer.

    If the model writes to a parameter, it writes to a copy. Errors are ignored here, because the
    trace that follows raises them again, with the reason.
    """
    with untouched(model), torch.no_grad(), contextlib.suppress(Exception):
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        args, kwargs = pytree.tree_map(torch.clone, (args, kwargs))
        torch.func.functional_call(model, weights, args, kwargs)


def place_of(error: Exception) -> str:
    """Return the first line of torch's message and the innermost code line outside torch."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
    at, frame = '', error.__traceback__
    while frame is not None:
        path = frame.tb_frame.f_code.co_filename
        if not path.startswith(_NOT_THE_USERS):
            at = f' ({path}:{frame.tb_lineno}, in {frame.tb_frame.f_code.co_name})'
        frame = frame.tb_next
    return f'{type(error).__name__}: {text}{at}'


def _exported(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tape:
    with _quiet('torch.fx.experimental.symbolic_shapes'):
        program = torch.export.export(model, args, kwargs, strict=False)
    try:
        return _read(program)
    except _Aliased:
        return _read(program.run_decompositions({}))


def _read(program: Any) -> Tape:
    """Read an exported program.

    If it is functional, as PyTorch 2.4 exports all and others the decomposed, its graph returns
    besides the results what the model writes to.
    """
    signature = program.graph_signature
    for changed in signature.buffers_to_mutate.values():
        raise ModelError(f'the model changes {changed} when it runs: a request would depend on the '
                         'previous one')
    results = [spec.kind.name == 'USER_OUTPUT' for spec in signature.output_specs]
    return _Reader(program.graph_module, _sources(program)).read(results)


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Suppress PyTorch's log messages about a failure; the exception contains their content."""
    log = logging.getLogger(name)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        log.setLevel(level)


def _sources(program: Any) -> dict[str, Weight | str]:
    """Return for each placeholder (input node) of an exported program what it represents.

    This is a weight, 'input' (an input of the model) or 'constant'.
    """
    found: dict[str, Weight | str] = {}
    for spec in program.graph_signature.input_specs:
        kind = spec.kind.name
        if kind == 'USER_INPUT':
            found[spec.arg.name] = 'constant' if hasattr(spec.arg, 'value') else 'input'
        elif kind in ('PARAMETER', 'BUFFER', 'CONSTANT_TENSOR'):
            tensor = program.state_dict.get(spec.target)
            tensor = program.constants[spec.target] if tensor is None else tensor
            found[spec.arg.name] = Weight(spec.target, tensor.detach())
        else:
            raise ModelError(f'the model contains {spec.target}, a {kind.lower()}, which cannot be '
                             'sent to a server')
    return found


def _traced(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tape:
    from torch.fx import symbolic_trace
    from torch.fx.experimental.proxy_tensor import make_fx
    plain = symbolic_trace(model)
    state = {**dict(plain.named_parameters()), **dict(plain.named_buffers())}
    leaves, structure = pytree.tree_flatten((args, kwargs))

    def run(weights: dict[str, torch.Tensor], *inputs: torch.Tensor) -> Any:
        a, k = pytree.tree_unflatten(list(inputs), structure)
        return torch.func.functional_call(plain, weights, a, k)

    graph = make_fx(run, tracing_mode='fake', _allow_non_fake_inputs=True)(state, *leaves)
    names = [n.name for n in graph.graph.nodes if n.op == 'placeholder']
    weights: list[Weight | str] = [Weight(k, v.detach()) for k, v in state.items()]
    return _Reader(graph, dict(zip(names, weights + ['input'] * len(leaves), strict=True))).read()


class _Reader:
    """Reads one fx graph of ATen calls into records."""

    def __init__(self, module: torch.fx.GraphModule, sources: Mapping[str, Weight | str]) -> None:
        self.module = module
        self.sources = sources
        self.out = Tape()
        self.env: dict[torch.fx.Node, Any] = {}
        # maps a record to the group of records with which it may share memory
        self.storage: dict[int, int] = {}
        self.fresh: set[str] = set()        # constants that share no memory with the model
        self.order = {node: i for i, node in enumerate(module.graph.nodes)}

    def read(self, results: Sequence[bool] | None = None) -> Tape:
        """Read the graph.

        `results`: for each output of the graph, whether the model returns it; None: the model
        returns all outputs.
        """
        for node in self.module.graph.nodes:
            if node.op == 'placeholder':
                self._placeholder(node)
            elif node.op == 'get_attr':
                self.env[node] = self._attribute(node)
            elif node.op == 'call_function':
                try:
                    self._call(node)
                except ModelError as error:
                    raise ModelError(f'{error}{_line_of(node)}') from None
            elif node.op == 'output':
                leaves = pytree.tree_leaves(node.args[0])
                for leaf, result in zip(leaves, results or [True] * len(leaves), strict=True):
                    if result:
                        self._output(leaf)
        return _live(self.out)

    def _output(self, leaf: Any) -> None:
        value = self.env[leaf] if isinstance(leaf, torch.fx.Node) else leaf
        if not isinstance(value, (Ref, Weight)):
            raise ModelError(f'the model returns {value!r}: only tensors can be returned')
        self.out.outputs.append(value)

    def _placeholder(self, node: torch.fx.Node) -> None:
        source = self.sources[node.name]
        if isinstance(source, Weight):
            self.env[node] = source
        elif source == 'input':
            example = node.meta['val']
            self.env[node] = self._add(Record(None, {}, tuple(example.shape), example.dtype,
                                              node.name), example)

    def _attribute(self, node: torch.fx.Node) -> Any:
        value: Any = self.module
        for name in str(node.target).split('.'):
            value = getattr(value, name)
        if not isinstance(value, torch.Tensor):
            return value   # a submodule; `_call` handles it
        return Weight(str(node.target), value.detach())

    def _add(self, made: Record, example: torch.Tensor, shares: int | None = None) -> Ref:
        if any(type(n) is not int for n in made.shape):
            raise ModelError(f'{made.place}: the shape of the result of {made.overload} depends on '
                             'the data, but a plan needs a fixed shape')
        made.format = format_of(example)
        self.out.records.append(made)
        index = len(self.out.records) - 1
        self.storage[index] = index if shares is None else self.storage[shares]
        return Ref(index)

    def _call(self, node: torch.fx.Node) -> None:
        place = _module_of(node)
        target = node.target
        if target is operator.getitem:
            self.env[node] = self._item(node)
            return
        if not isinstance(target, torch._ops.OpOverload):
            raise _Aliased if 'wrap_with' in str(target) else ModelError(f'{place}: {_why(target)}')
        if not target._schema.returns or '_assert' in target.overloadpacket.__name__:
            return
        bound = self._bound(node, target)
        name = target.overloadpacket.__name__
        if name.endswith(('batch_norm', 'instance_norm', '_legit')) and (
                bound.get('training') or bound.get('use_input_stats')) and (
                # this operator writes to its statistics, but its schema does not show the write
                bound.get('running_mean') is not None):
            raise ModelError(f'{place}: {target} changes its statistics: a request would depend '
                             'on the previous one')
        if name.rstrip('_') in ('dropout', 'feature_dropout', 'alpha_dropout',
                                'feature_alpha_dropout'):
            if bound['train'] and bound['p']:
                raise ModelError(f'{place}: {target} is random: robot and server would differ')
            self.env[node] = bound['input'] if 'input' in bound else bound['self']
            return
        if name == 'detach_':   # torch.tensor(...) in the code of the model causes this call
            self.env[node] = bound['self']
            return
        if name in _LIKE and not (name == 'view' and 'dtype' in bound):
            target, given = _LIKE[name]
            like = node.meta['val']
            bound = {'self': bound['self'],
                     given: like.dtype if given == 'dtype' else list(like.shape)}
        if target._schema.is_mutable:
            self._in_place(node, target, bound, place)
            return
        if name in _FILLED and all(type(n) is int for n in node.meta['val'].shape):
            target, like = torch.ops.aten.full.default, node.meta['val']
            bound = {'size': list(like.shape), 'dtype': like.dtype,
                     'fill_value': bound.get('fill_value', _FILLED[name])}
        if not any(isinstance(a, Ref) for a in _tensors(bound)):
            self.env[node] = self._folded(node, target, bound)
            return
        example = node.meta['val']
        if isinstance(example, (list, tuple)):
            # several results; `_item` handles them
            self.env[node] = (target, bound, place, example)
            return
        self.env[node] = self._add(Record(target, bound, tuple(example.shape), example.dtype,
                                          place), example, _alias(target, bound))

    def _bound(self, node: torch.fx.Node, target: torch._ops.OpOverload) -> dict[str, Any]:
        """Return the given arguments by name; a `Ref` or a `Weight` replaces each tensor."""
        names = [a.name for a in target._schema.arguments]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}

        def resolve(a: Any) -> Any:
            if isinstance(a, torch.fx.Node):
                return self.env[a]
            if isinstance(a, (list, tuple)):
                return [resolve(i) for i in a]
            return a
        return {name: resolve(a) for name, a in given.items()}

    def _folded(self, node: torch.fx.Node, target: torch._ops.OpOverload,
                bound: dict[str, Any]) -> Any:
        if random(target, bound):
            raise ModelError(f'{_module_of(node)}: {target} is random: robot and server would '
                             'differ')

        def real(a: Any) -> Any:
            if isinstance(a, list):
                return [real(i) for i in a]
            return a.tensor if isinstance(a, Weight) else a
        names = {a.name: a.kwarg_only for a in target._schema.arguments}
        plain = [real(a) for name, a in bound.items() if not names[name]]
        result = target(*plain, **{name: real(a) for name, a in bound.items() if names[name]})
        # the result is a number: an item of a constant tensor
        if not isinstance(result, (torch.Tensor, list, tuple)):
            return result
        made = [Weight(f'folded.{node.name}.{i}', r.contiguous(memory_format=format_of(r)))
                for i, r in enumerate([result] if isinstance(result, torch.Tensor) else result)]
        if all(r.alias_info is None for r in target._schema.returns) or all(
                a.name in self.fresh for a in _tensors(bound) if isinstance(a, Weight)):
            self.fresh.update(w.name for w in made)
        return made[0] if isinstance(result, torch.Tensor) else made

    def _item(self, node: torch.fx.Node) -> Any:
        owner, index = node.args
        assert isinstance(owner, torch.fx.Node) and isinstance(index, int)
        source = self.env[owner]
        if isinstance(source, list):
            return source[index]
        target, bound, place, example = source
        name = target.overloadpacket.__name__
        shape, dtype = tuple(example[index].shape), example[index].dtype
        value = bound.get('self')
        if name in ('chunk', 'split', 'split_with_sizes', 'unsafe_chunk', 'unsafe_split',
                    'tensor_split') and isinstance(value, Ref):
            dim = bound.get('dim', 0) % len(shape)
            start = sum(e.shape[dim] for e in example[:index])
            cut = {'self': value, 'dim': dim, 'start': start, 'end': start + shape[dim]}
            return self._add(Record(torch.ops.aten.slice.Tensor, cut, shape, dtype, place),
                             example[index], value.index)
        if name == 'unbind' and isinstance(value, Ref):
            one = {'self': value, 'dim': bound.get('dim', 0), 'index': index}
            return self._add(Record(torch.ops.aten.select.int, one, shape, dtype, place),
                             example[index], value.index)
        if name == 'broadcast_tensors':
            value = bound['tensors'][index]
            if isinstance(value, Ref):
                wide = {'self': value, 'size': list(shape)}
                return self._add(Record(torch.ops.aten.expand.default, wide, shape, dtype, place),
                                 example[index], value.index)
            return Weight(f'broadcast.{node.name}', value.tensor.expand(shape).contiguous())
        return self._add(Record(target, bound, shape, dtype, place, index), example[index])

    def _in_place(self, node: torch.fx.Node, target: torch._ops.OpOverload,
                  bound: dict[str, Any], place: str) -> None:
        """Record an in-place call as a pure call; after `y = x.relu_()`, x refers to the result y.

        Raise `_Aliased` if the call writes through a view. Such calls can be recorded only after
        the graph has been made functional. A write to an input of the model does not change the
        caller's tensor.
        """
        written = bound.get('input', bound.get('self'))
        if isinstance(written, Weight):
            if written.name in self.fresh:
                raise _Aliased
            raise ModelError(f'{place}: {target} changes {written.name}: a request would depend on '
                             'the previous one')
        pure = _pure(target)
        if pure is None or not isinstance(written, Ref):
            raise _Aliased
        group = self.storage[written.index]
        for other, value in self.env.items():
            if isinstance(value, Ref) and value != written \
                    and self.storage[value.index] == group \
                    and any(self.order[user] > self.order[node] for user in other.users):
                raise _Aliased
        example = node.meta['val']
        made = self._add(Record(pure, bound, tuple(example.shape), example.dtype, place), example)
        for other, value in list(self.env.items()):
            if value == written:
                self.env[other] = made
        self.env[node] = made


def _why(target: Any) -> str:
    """Return why a call of `target`, which is not an operator on tensors, cannot be recorded."""
    if isinstance(target, type):
        return (f'the model returns a {target.__name__}; it must return tensors, or tuples, lists '
                'or dictionaries of tensors')
    if isinstance(target, torch._ops.HigherOrderOperator):
        return (f'{target} is not an operator on tensors; control flow that depends on data cannot '
                'be divided')
    return (f'{getattr(target, "__module__", "")}.{getattr(target, "__name__", target)} is not an '
            'operator on tensors, so a server cannot run it')


def _alias(target: torch._ops.OpOverload, bound: dict[str, Any]) -> int | None:
    """Return the index of the record that may share memory with the operator's result.

    Return None if there is no such record. The operator's schema says which argument can share
    its memory with the result.
    """
    if all(r.alias_info is None for r in target._schema.returns):
        return None
    return next((bound[a.name].index for a in target._schema.arguments
                 if a.alias_info is not None and isinstance(bound.get(a.name), Ref)), None)


def _pure(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the pure operator that corresponds to `target`.

    The pure operator returns what `target` writes to its first argument. Return None if
    there is no such operator.
    """
    name = target.overloadpacket.__name__
    with contextlib.suppress(AttributeError):
        packet = getattr(torch.ops.aten, name.rstrip('_'))
        return getattr(packet, target._overloadname)
    return None


def _module_of(node: torch.fx.Node) -> str:
    """Return the innermost module that made this node, such as `layer1.0.conv1 (Conv2d)`."""
    stack: Iterator[tuple[str, Any]] = iter((node.meta.get('nn_module_stack') or {}).values())
    path, kind = '', ''
    for path, kind in stack:  # noqa: B007 - the last one counts
        pass
    name = (kind if isinstance(kind, str) else getattr(kind, '__name__', '')).rpartition('.')[2]
    return f'{path or "model"} ({name})' if name else node.name


def _line_of(node: torch.fx.Node) -> str:
    """Return the line of the user's code that made this node, in brackets; '' if unknown."""
    lines = re.findall(r'File "(.*?)", line (\d+), in (\S+)', node.meta.get('stack_trace') or '')
    return ' ({}:{}, in {})'.format(*lines[-1]) if lines else ''


def _live(tape: Tape) -> Tape:
    """Return the tape with only those records and weights on which an output depends.

    The records of inputs always stay, and come first.
    """
    records = tape.records
    needed = {o.index for o in tape.outputs if isinstance(o, Ref)}
    for index in range(len(records) - 1, -1, -1):
        if index in needed or records[index].overload is None:
            needed.add(index)
            needed.update(r.index for r in _leaves(records[index]) if isinstance(r, Ref))
    order = sorted(needed, key=lambda i: (records[i].overload is not None, i))
    place = {old: new for new, old in enumerate(order)}

    def moved(a: Any) -> Any:
        if isinstance(a, list):
            return [moved(i) for i in a]
        return Ref(place[a.index]) if isinstance(a, Ref) else a
    kept = []
    for old in order:
        r = records[old]
        kept.append(replace(r, arguments={k: moved(a) for k, a in r.arguments.items()}))
    out = Tape(kept, [moved(o) for o in tape.outputs])
    for w in (leaf for r in kept for leaf in _leaves(r) if isinstance(leaf, Weight)):
        out.weights[w.name] = w.tensor
    for o in out.outputs:
        if isinstance(o, Weight):
            out.weights[o.name] = o.tensor
    return out


def _leaves(made: Record) -> list[Any]:
    return _tensors(made.arguments)


def _tensors(arguments: Mapping[str, Any]) -> list[Any]:
    """Return the arguments, and the items nested in them, as a flat list.

    A `Ref` or a `Weight` is one item of the list.
    """
    return pytree.tree_leaves(list(arguments.values()),
                              is_leaf=lambda a: isinstance(a, (Ref, Weight)))
