"""Which ATen operators a server executes, and the facts that decide how a call is sent.

Both follow from the operators' schemas. The server refuses all other operators; they run on the
robot's CPU. A composite operator calls other operators. The device decomposes it into these, which
are then sent; only those in `WHOLE` are sent as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from fleet_compute.operators import find, refusal

from .errors import Refused, UnknownOperator

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd

RECURRENT = ('gru', 'lstm', 'rnn_tanh', 'rnn_relu')

# Constants for the operator `_transformer_encoder_layer_fwd`.
LAYER = 17     # number of arguments between `src` and `mask`
NESTED_MASK = -1    # mask type that says: `mask` is the padding mask of a nested tensor

# Extra keyword of every call while the program's default dtype is not `USUAL`; its value is this
# dtype. The server needs the dtype because PyTorch converts integers to the default dtype.
DEFAULT = 'default_dtype'
USUAL = torch.float32

# Composite operators that choose a kernel for the device, or that treat tensor subclasses
# differently. They are sent whole, so the server chooses the kernel.
WHOLE = ('scaled_dot_product_attention', 'group_norm', 'linalg_svdvals', 'linalg_eigvalsh',
         'gru_cell', 'lstm_cell', *(f'{cell}.{form}' for cell in RECURRENT
                                    for form in ('input', 'data')),
         # sent whole, because only the server knows which tensors are lazily conjugated
         'real', 'imag',
         'one_hot')


def overload(name: str) -> Any:
    """Return the ATen operator with a name such as 'gru.input' or 'gru_cell'."""
    base, _, which = name.partition('.')
    return getattr(getattr(torch.ops.aten, base), which or 'default')


@lru_cache(4096)
def resolve(name: str) -> Any:
    """Return the operator for a name such as 'aten.relu.default'.

    Raises Refused; UnknownOperator if this PyTorch does not have the operator.
    """
    if not name.startswith('aten.') or name.count('.') != 2:
        raise Refused(f'{name[:80]} is not an ATen operator')
    try:
        found = find(name)
    except LookupError as error:
        raise UnknownOperator(str(error)) from None
    if why := refusal(found, alone=True):
        raise Refused(f'{name} {why}')
    return found


def agree(name: str, theirs: tuple[str, ...]) -> bool:
    """Return whether an operator takes here every argument that the program's PyTorch knows.

    `theirs`: `form` of the operator in the program's PyTorch. A newer PyTorch may have more
    arguments than an older one, at the end and with defaults. If the program's has more, the
    result is False: a call that passes one of them must be refused. Raises UnknownOperator if the
    two differ in anything else, and Refused as `resolve` does.
    """
    ours = form(resolve(name))
    common = min(len(ours), len(theirs))
    if ours[:common] != theirs[:common] or not all(
            '=' in argument for argument in (*ours[common:], *theirs[common:])):
        raise UnknownOperator(f'{name} has another form in PyTorch {torch.__version__}')
    return len(ours) >= len(theirs)


@dataclass(frozen=True, slots=True)
class Operator:
    """Facts about one operator; `name` is like 'aten.add.Tensor'."""

    name: str
    composite: bool     # the operator calls other operators; its result is possibly a view
    decomposes: bool    # the operator is composite and not sent whole: the device decomposes it
    wanted: bool        # the operator returns scalars, or tensors whose shapes depend on values
    # the shape of the operator's result depends on values only if an index is a mask
    index: bool
    view: bool          # the operator only creates views
    moves: str          # for an in-place view: name of the operator that returns the view; else ''
    writes: tuple[str, ...]  # names of the arguments that the operator changes
    lists: bool         # the operator returns one list of tensors
    out: bool           # the operator has an `out=` argument, and resizes it to the result
    # the operator is from a library, not from ATen, and its only kernel is for all devices
    python: bool


# Operators that change running statistics, which their schemas do not say.
_UPDATES = ('batch_norm_update_stats', 'batch_norm_gather_stats',
            'batch_norm_gather_stats_with_counts')


@lru_cache(1)
def _whole() -> frozenset[Any]:
    return frozenset(overload(name) for name in WHOLE)


@lru_cache(None)
def operator(function: Any) -> Operator:
    """Return the facts about an operator, given as PyTorch's `OpOverload` object."""
    schema, tags = function._schema, function.tags
    name = str(function)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = has_kernel(function.name(), COMPOSITE)
    dynamic = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags \
        or name == 'aten._unique.default'   # PyTorch 2.8 lacks its tag
    index = name in ('aten.index.Tensor', 'aten._unsafe_index.Tensor')
    tensors = all('Tensor' in str(r.type) for r in schema.returns)
    returned = [r.alias_info for r in schema.returns]
    return Operator(
        name, composite, composite and function not in _whole(),
        (dynamic and not index) or not tensors, index,
        bool(returned) and all(a is not None and not a.is_write for a in returned),
        _functional(name, schema) if torch.Tag.inplace_view in tags else '',
        tuple(a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write
              or name.split('.')[1] in _UPDATES and a.name.startswith('running_')),
        len(schema.returns) == 1 and str(schema.returns[0].type) == 'List[Tensor]',
        any(a.kwarg_only and a.alias_info and a.alias_info.is_write for a in schema.arguments),
        # Beside a kernel for the CPU, a library's kernel for all devices is slow, often a loop.
        function.namespace != 'aten' and has_kernel(function.name(), EXPLICIT)
        and not has_kernel(function.name(), 'CPU'))


@lru_cache(None)
def form(function: Any) -> tuple[str, ...]:
    """Return what a caller relies on: one text for the results, then one for each argument.

    PyTorch's versions may differ in it. The text of an argument contains its type, its alias, its
    name and, after '=', its default. `int` and `SymInt` have equal texts, because every call passes
    a number.
    """
    schema = function._schema
    results = ', '.join(f'{r.type}{_alias(r)}' for r in schema.returns)
    return (results + ', wanted' * operator(function).wanted,
            *(f'{"*" * a.kwarg_only}{a.type}{_alias(a)} {a.name}'
              + (f'={a.default_value!r}' if a.has_default_value() else '')
              for a in schema.arguments))


def _alias(argument: Any) -> str:
    alias = argument.alias_info
    return f'({"|".join(sorted(alias.before_set))}{"!" * alias.is_write})' if alias else ''


def _functional(name: str, schema: Any) -> str:
    """Return the name of the out-of-place variant of an in-place operator.

    'aten.t_.default' gives 'aten.t.default'. The arguments of both operators have equal
    types. If there is no such variant, return ''.
    """
    space, base, _ = name.split('.')
    packet = getattr(torch.ops.aten, base.removesuffix('_'), None)
    types = [str(a.type) for a in schema.arguments]
    for overload in packet.overloads() if packet is not None and base.endswith('_') else ():
        if [str(a.type) for a in getattr(packet, overload)._schema.arguments] == types:
            return f'{space}.{base.removesuffix("_")}.{overload}'
    return ''
