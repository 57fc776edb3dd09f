"""Compute one function for several requests at once.

PyTorch's `torch.vmap` replaces each operator by the operator for one more axis. So what a request
gets does not depend on the other requests, whatever the axes of the program's own tensors mean, and
no shape in the program's arguments needs to change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

# Operators that, in a batch, do not notice an index out of range.
_UNCHECKED = frozenset(('one_hot', 'index_fill', 'index_fill_'))

Function = Callable[..., Sequence[torch.Tensor]]
Apply = Callable[[Function, Sequence[torch.Tensor]], Sequence[torch.Tensor]]

# PyTorch computes an operator without a rule for batches request by request, and warns each time.
_warn = getattr(torch._C._functorch, '_set_vmap_fallback_warning_enabled', None)
if _warn is not None:
    _warn(False)


def unchecked(overload: Any, own: bool) -> bool:
    """Return whether a wrong index, which is an error alone, is none in a batch.

    `own`: whether the call's first tensor differs from request to request. An `embedding` of such a
    tensor would give a request what belongs to another one.
    """
    name = overload.overloadpacket.__name__
    return name in _UNCHECKED or own and name == 'embedding'


def together(function: Function, requests: Sequence[Sequence[torch.Tensor]],
             apply: Apply = lambda function, tensors: function(*tensors)
             ) -> list[list[torch.Tensor]]:
    """Return `function(*tensors)` for the tensors of each request.

    `requests`: for each request, tensors of the same shapes, dtypes and device as those of the
    others. `apply` calls the function for all of them, with tensors that have one more axis.
    Raises whatever PyTorch raises if an operator cannot be batched, or fails for one of the
    requests; nothing has changed then, and each request can be computed alone.

    There is one difference: inside a batch, a tensor without axes has one, so PyTorch's rules for
    the types of results treat it as any other tensor. The caller must not pass a function in which
    such a tensor meets one of another dtype, or with an operator that is `unchecked`.
    """
    if not requests[0]:
        return [list(function()) for _ in requests]
    stacked = [torch.stack(same) for same in zip(*requests, strict=True)]
    results = apply(torch.vmap(lambda *tensors: tuple(function(*tensors))), stacked)
    columns = [result.unbind() for result in results]
    return [[column[k] for column in columns] for k in range(len(requests))]
