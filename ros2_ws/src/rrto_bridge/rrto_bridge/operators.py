"""What the interceptor must know of an ATen operator, worked out once from its schema."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd

RECURRENT = ('gru', 'lstm', 'rnn_tanh', 'rnn_relu')
LEARNT = 'learnt'   # a keyword that `RECURRENT` have here: weights may need gradients,
GRADED = 'graded'   # and another: no `torch.no_grad` is around it

# A keyword that calls have where the program has set another default: what of integers becomes.
DEFAULT = 'default_dtype'
USUAL = torch.float32

# Composite operators that choose a kernel by device, or another one for tensors that are not quite
# PyTorch's own: they are sent whole, and the server chooses.
WHOLE = ('scaled_dot_product_attention', 'group_norm', 'linalg_svdvals', 'linalg_eigvalsh',
         'gru_cell', 'lstm_cell', *(f'{cell}.{form}' for cell in RECURRENT
                                    for form in ('input', 'data')),
         'real', 'imag',   # which is conjugated in name only the server knows
         'one_hot')


def overload(name: str) -> Any:
    """The operator called 'gru.input' or 'gru_cell' in ATen."""
    base, _, which = name.partition('.')
    return getattr(getattr(torch.ops.aten, base), which or 'default')


@dataclass(frozen=True, slots=True)
class Operator:
    """`name` is 'aten.add.Tensor'."""

    name: str
    composite: bool     # it is made of other operators: its result may or may not be a view
    decomposes: bool    # a composite that must be taken apart where it arrives whole
    wanted: bool        # its result has values, or shapes that depend on values
    index: bool         # its shapes depend on values only if it is given a mask
    view: bool          # it makes views and computes nothing
    moves: str          # of an in-place view: the operator that returns the view
    writes: tuple[str, ...]  # names of arguments that it changes
    lists: bool         # it returns one list of tensors
    out: bool           # it gives what it is to write to (`out=`) the shape of the result
    python: bool        # a library's own, for all devices: what it is made of arrives by itself


@lru_cache(1)
def _whole() -> frozenset[Any]:
    return frozenset(overload(name) for name in WHOLE)


@lru_cache(None)
def operator(function: Any) -> Operator:
    """Facts about an overload."""
    schema, tags = function._schema, function.tags
    name = str(function)
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), COMPOSITE)
    dynamic = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
    index = name in ('aten.index.Tensor', 'aten._unsafe_index.Tensor')
    tensors = all('Tensor' in str(r.type) for r in schema.returns)
    returned = [r.alias_info for r in schema.returns]
    return Operator(
        name, composite, composite and function not in _whole(),
        (dynamic and not index) or not tensors, index,
        bool(returned) and all(a is not None and not a.is_write for a in returned),
        _functional(name, schema) if torch.Tag.inplace_view in tags else '',
        tuple(a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write),
        len(schema.returns) == 1 and str(schema.returns[0].type) == 'List[Tensor]',
        any(a.kwarg_only and a.alias_info and a.alias_info.is_write for a in schema.arguments),
        function.namespace != 'aten'
        and torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), EXPLICIT))


def _functional(name: str, schema: Any) -> str:
    """aten.t_.default -> aten.t.default, by the types of the arguments; '' if there is no such."""
    space, base, _ = name.split('.')
    packet = getattr(torch.ops.aten, base.removesuffix('_'), None)
    types = [str(a.type) for a in schema.arguments]
    for overload in packet.overloads() if packet is not None and base.endswith('_') else ():
        if [str(a.type) for a in getattr(packet, overload)._schema.arguments] == types:
            return f'{space}.{base.removesuffix("_")}.{overload}'
    return ''
