"""Checks of a call's arguments that a server needs and that PyTorch's kernels omit.

With invalid arguments a kernel ends its process or returns the content of other memory. Some faults
depend on the values in a request, so a trial of the model does not find them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import ModelError

_INTEGERS = (torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8,
             torch.int16, torch.int32, torch.int64)


def check_type(dtype: torch.dtype) -> None:
    """Raise ModelError unless tensors of this type can be made from bytes.

    For quantized types torch.frombuffer ends the process.
    """
    if not (dtype.is_floating_point or dtype.is_complex or dtype in _INTEGERS):
        raise ModelError(f'tensors of type {dtype} cannot be sent')


def check_arguments(op: str, arguments: dict[str, Any], dtype: torch.dtype) -> None:
    """Raise ModelError if arguments of a call are invalid and its kernel does not check them."""
    if op in ('_native_batch_norm_legit_no_training', 'native_batch_norm'):
        channels = arguments['input'].shape[1]
        for name in ('weight', 'bias', 'running_mean', 'running_var'):
            given = arguments.get(name)
            if given is not None and tuple(given.shape) != (channels,):
                raise ModelError(f'{op}: {name} has shape {list(given.shape)} for {channels} '
                                 'channels')
    elif op.startswith('avg_pool') and not dtype.is_floating_point \
            and (arguments.get('divisor_override') or 1) < 1:
        raise ModelError(f'{op}: cannot divide integers by {arguments["divisor_override"]}')


def quotients(divide: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``divide`` with a check that raises ModelError if an integer division overflows.

    PyTorch's division ends the process if it divides the smallest integer of a type by -1.
    """
    def call(dividend: torch.Tensor, divisor: Any, **keywords: Any) -> Any:
        least = torch.iinfo(torch.result_type(dividend, divisor)).min
        if torch.any((dividend == least) & (divisor == -1)):
            raise ModelError(f'{least} / -1 overflows its type')
        return divide(dividend, divisor, **keywords)
    return call
