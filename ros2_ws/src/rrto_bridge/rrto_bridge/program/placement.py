"""Runs operators with some tensors on the device and some on the CPU, as CUDA would.

Such an operator is executed, refused with CUDA's error, or decomposed into other operators. A
tensor to which the operator writes stays on its device. The operator's schema shows to which
arguments the operator writes (aliases), and which arguments are indices (lists of optional
tensors).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..protocol.operators import COMPOSITE, EXPLICIT, Operator
from ..protocol.tensors import check_dense
from .nested_tensors import NestedTensor, refuse
from .remote import CUDA, RemoteTensor
from .runner import Runner

NON_FUNCTIONAL = torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional
INDICES = 'List[Optional[Tensor]]'
SEVERAL = 'List[Tensor]'

# For each operator, an argument that may be on any device, because the operator's kernel reads it
# with `item()`. The schemas do not show this.
_READ_BY_ITEM = {'aten.fill_.Tensor': 'value', 'aten.index_fill_.int_Tensor': 'value',
                 'aten.index_put_.default': 'values', 'aten._index_put_impl_.default': 'values'}
_WORDS = {'aten.masked_fill_.Tensor': 'masked_fill_: Expected inputs to be on same device'}


_PLAIN = torch.Tensor.__torch_dispatch__


def execute(device: Runner, function: Any, facts: Operator, args: Any, kwargs: Any) -> Any:
    """Run an operator with tensors on device and CPU.

    If CUDA would refuse the operator, raise CUDA's error.
    """
    tensors = given(function, args, kwargs)
    if facts.composite and not any(_remote(tensors)):   # all are fake tensors, which have no values
        return function._op_dk(COMPOSITE, *args, **kwargs)
    if others(tensors):
        return NotImplemented
    for _, tensor in _strays(tensors):
        if isinstance(tensor, NestedTensor):
            refuse(facts.name)
        if tensor.device.type == 'cuda':
            check_dense(tensor)
        if tensor.device.type != 'cpu':
            raise _mismatch(facts, tensor)
    written = [t for a, t in _strays(tensors) if a.name in facts.writes]
    if not written and all(_crosses(facts, a, t, args) for a, t in _strays(tensors)):
        args, kwargs = _sent(device, args), {k: _sent(device, v) for k, v in kwargs.items()}
        return device.run(function, args, kwargs)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for key in (EXPLICIT, NON_FUNCTIONAL):
        if has_kernel(function.name(), key) and not has_kernel(function.name(), 'CPU') \
                and facts.name not in _READ_BY_ITEM:
            return function._op_dk(key, *args, **kwargs)   # decompose the operator
    if written and all(isinstance(v, torch.Tensor) and not isinstance(v, RemoteTensor)
                       for a, v in tensors if a.name in facts.writes) \
            and all(_is_read(facts, a, t) for a, t in _remote(tensors)):
        return function(*[_fetched(device, v) for v in args],
                        **{k: _fetched(device, v) for k, v in kwargs.items()})
    raise _mismatch(facts, next(t for _, t in _strays(tensors)))


def others(tensors: Any) -> bool:
    """Return whether the class of any tensor handles operators itself, as jagged tensors do.

    Such a class defines `__torch_dispatch__`. Remote tensors and our `NestedTensor` do not count.
    """
    return any(type(t).__torch_dispatch__ is not _PLAIN and not isinstance(t, NestedTensor)
               for _, t in _strays(tensors))


def writes_here(function: Any, facts: Operator, args: Any, kwargs: Any) -> bool:
    """Return whether an operator writes to a tensor that is not on the device."""
    return any(a.name in facts.writes for a, _ in _strays(given(function, args, kwargs)))


def check(function: Any, facts: Operator, args: Any, kwargs: Any) -> None:
    """Raise CUDA's error if an operator does not accept its tensors of the CPU."""
    tensors = given(function, args, kwargs)
    if any(_remote(tensors)):
        for argument, tensor in _strays(tensors):
            if not _crosses(facts, argument, tensor, args):
                raise _mismatch(facts, tensor)


def given(function: Any, args: Any, kwargs: Any) -> list[tuple[Any, Any]]:
    """Return a pair for each argument of a call: the schema's argument, and the value."""
    arguments = function._schema.arguments
    return [*zip(arguments, args, strict=False),
            *((a, kwargs[a.name]) for a in arguments if a.name in kwargs)]


def _strays(given: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    """Yield a pair for each tensor that is not on the device: the schema's argument, the tensor."""
    return ((a, t) for a, t in _tensors(given) if not isinstance(t, RemoteTensor))


def _remote(given: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    return ((a, t) for a, t in _tensors(given) if isinstance(t, RemoteTensor))


def _tensors(given: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    for argument, value in given:
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                yield argument, item


def _crosses(facts: Operator, argument: Any, tensor: torch.Tensor, args: Any) -> bool:
    """Return whether CUDA accepts this CPU tensor as an argument that the operator only reads."""
    kind = str(argument.type)
    # If the operator's name ends with '.data', the CPU tensor holds a packed sequence's batch
    # sizes.
    if kind == INDICES or facts.name.endswith('.data'):
        return isinstance(args[0], RemoteTensor)
    # CUDA copies the `src` of these operators, so `src` may be on the CPU.
    if argument.name == 'src' and facts.name.endswith('_scatter.default'):
        return isinstance(args[0], RemoteTensor)
    return not tensor.dim() and kind != SEVERAL


def _is_read(facts: Operator, argument: Any, tensor: torch.Tensor) -> bool:
    """Return whether an operator that writes to CPU tensors accepts a remote tensor as `argument`.

    It does in two cases: the argument is an index, or the operator reads one number with `item()`.
    """
    return str(argument.type) == INDICES or (
        not tensor.dim() and _READ_BY_ITEM.get(facts.name) == argument.name)


def _mismatch(facts: Operator, tensor: torch.Tensor) -> RuntimeError:
    if facts.index:
        return RuntimeError('indices should be either on cpu or on the same device as the indexed '
                            f'tensor ({tensor.device})')
    return RuntimeError(_WORDS.get(facts.name) or
                        'Expected all tensors to be on the same device, but found at least two '
                        f'devices, {CUDA} and {tensor.device}! (in {facts.name})')


def _sent(device: Runner, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and not isinstance(value, RemoteTensor):
        return device.upload(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_sent(device, item) for item in value)
    return value


def _fetched(device: Runner, value: Any) -> Any:
    if isinstance(value, RemoteTensor):
        return device.download(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_fetched(device, item) for item in value)
    return value
