"""Which of PyTorch's operators a server computes for robots: a rule for schemas, few exceptions.

Programs come from robots of the team (SECURITY.md), so the rule protects against accidents: nothing
opens a file, loads code or takes an address. In a process that several robots share, an operator
must also be a pure function from tensors and plain values to tensors whose shapes do not depend on
values, and must not give memory that was never written. In a process of its own, a program may do
to its tensors what it likes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import torch

NAMESPACES = ('aten', 'prims', 'torchvision')   # PyTorch's own, and those of torchvision

_SCALAR = r'(Tensor|int|bool|float|complex|number|str|Device|Generator)'
_ARGUMENT = re.compile(rf'{_SCALAR}|Optional\[{_SCALAR}\]|List\[{_SCALAR}\]'
                       r'|List\[Optional\[Tensor\]\]|Optional\[List\[(int|float)\]\]')
_RESULT = re.compile(r'Tensor|List\[Tensor\]')

# Operators whose results have a fixed shape with the arguments that models use.
_FIXED = ('one_hot', 'repeat_interleave')

# Operators that the rule would admit; the names are those of whole operators.
_DENIED = re.compile('|'.join((
    'from_file',                                    # opens a file
    'shallow_copy_data_',                           # `.data =`
    '_efficientzerotensor', 'set_?', 'resize.*', '_resize_output.*', 'is_set_to', 'is_pinned',
    # tensors that are not dense, or of a library that has its own memory formats
    r'.*(sparse|quantiz|nested|mkldnn|_cslt|_cs[rc]|_coo|_bs[rc]|coalesce|padded_tensor).*',
    '.*int[48]pack.*', '.*dyn_quant.*', r'_?((c?col|c?row|crow)_)?(indices|values)(_copy)?', 'q_.*',
    'qscheme', 'int_repr', '_?(nnz|dim[IV]|dense_dim|spdiags|spsolve|to_dense)', 'hspmm',
    'sspaddmm',
    # kernels for one device, which the general operators choose themselves
    r'_?(cudnn|miopen|mps|nnpack|triton|philox)_(?!batch_norm$).*', '.*_mps',
    '_.*_(for|on)_(cpu|mps)', r'_(flash|efficient)_attention_.*',
    # PyTorch's own machinery: tests, tracing, gradients
    '_test_.*', '_foobar', '_(make|fw)_.*', '.*_backward(_.*)?', '_(functional_)?(assert|sym).*',
    '_?(pin_memory|to_copy_from|copy_from).*', '_lazy_clone', 'record_stream', 'requires_grad_',
    '_linalg_check_errors',     # raises by values: only the program can wait for that
)))
_DENIED_IF_SHARED = re.compile('|'.join((
    r'_?(new_)?empty(_.*)?',                        # memory that nobody has written
    # addresses in the form of offsets, strides or indices: unchecked, or of another memory layout
    'as_strided.*', '_reshape_alias.*', '_nested_view.*', r'_unsafe_(masked_)?index.*',
    '_index_put_impl', '_embedding_bag.*', '_jagged.*', '_padded_dense_to_jagged.*',
    '_?segment_reduce.*', '_?thnn_.*', r'_scaled_dot_product_(flash|efficient|cudnn|fused).*',
)))
# Parts of what whole models call, which PyTorch on a robot with a GPU sends one by one.
_NEEDED_ALONE = re.compile('_assert_async|unfold_backward|_nested_tensor_from_mask_left_aligned'
                           '|cudnn_(affine_grid_generator|grid_sampler)')


@lru_cache(8192)
def refusal(overload: Any, alone: bool = False, changes: bool = False) -> str:
    """Return why a server does not compute an operator, as the end of a sentence; '' if it does.

    `overload`: a `torch._ops.OpOverload`. `alone`: in a process that serves only this program.
    `changes`: the caller knows that the operator changes no tensors but those of its own request.
    """
    schema = overload._schema
    space, _, name = schema.name.partition('::')
    if space not in NAMESPACES:
        return f'is of {space}, not of {", ".join(NAMESPACES)}'
    for argument in schema.arguments:
        if not _ARGUMENT.fullmatch(str(argument.type)):
            return f'takes {argument.type}, which is neither tensor nor plain value'
    if alone:
        # Operators without tensors exist for TorchScript; nothing checks their arguments.
        if not any('Tensor' in str(v.type) for v in (*schema.arguments, *schema.returns)):
            return 'computes with plain numbers'
        if _NEEDED_ALONE.fullmatch(name):
            return ''
    elif why := _refusal_if_shared(overload, changes):
        return why
    return 'is one that a server never computes' if _DENIED.fullmatch(name) else ''


def _refusal_if_shared(overload: Any, changes: bool) -> str:
    schema = overload._schema
    name = schema.name.partition('::')[2]
    if schema.is_mutable and not changes:
        return 'changes its arguments'
    if not schema.returns or not all(_RESULT.fullmatch(str(r.type)) for r in schema.returns):
        return 'does not return tensors only'
    dynamic = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
    if dynamic.intersection(overload.tags) and name not in _FIXED:
        return 'has a result whose shape depends on values'
    if _DENIED_IF_SHARED.fullmatch(name):
        return 'is one that a server computes only in a process of the program'
    return ''


def find(name: str) -> Any:
    """Return the operator with a name such as 'aten.relu.default', whether or not it is computed.

    Raises LookupError if this PyTorch does not have it.
    """
    parts = str(name).split('.')
    if len(parts) == 3 and parts[0] in NAMESPACES and all(p.isidentifier() for p in parts):
        packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
        if isinstance(packet, torch._ops.OpOverloadPacket) and parts[2] in packet.overloads():
            return getattr(packet, parts[2])
    raise LookupError(f'PyTorch {torch.__version__} has no operator {str(name)[:80]}')
