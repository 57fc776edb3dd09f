"""Install a Device as PyTorch's 'cuda:0' in this process.

PyTorch dispatches every operator with a remote tensor among its arguments to the class of this
tensor. An operator that creates a tensor on the device has no remote tensor among its arguments;
PyTorch dispatches it by the dispatch key 'CUDA'.
"""

from __future__ import annotations

import sys
import types
import warnings
from functools import partial
from typing import Any, NoReturn

import torch

from ..protocol.operators import COMPOSITE, WHOLE, overload
from ..protocol.tensors import refuse_kind
from . import guard, signals
from .device import Device
from .remote import Hook, RemoteTensor
from .torch_patches import cuda_api

_KEPT: list[Any] = []   # library objects; PyTorch removes their kernels when Python deletes them

# Operators for which the fallback kernel is not sufficient. PyTorch calls some of them without
# dispatch to the tensor's class: when torch.tensor runs, and when a program reads a number from a
# tensor. For the others, a CUDA build has its own kernels.
_OVERRIDES = ('copy_', 'empty.memory_format', 'empty_strided', '_local_scalar_dense',
              '_efficientzerotensor', 'tril_indices', 'triu_indices', 'kaiser_window',
              'kaiser_window.periodic', 'kaiser_window.beta')


def install(device: Device) -> None:
    """Make `device` the CUDA device of this process; call this only once. Raises ConfigError."""
    guard.install()
    Hook.dispatch, Hook.copy = partial(_first, device), device.copy
    Hook.memory, Hook.ask = lambda tensor: device.lifetimes.memory(tensor), device.ask
    backend = torch.library.Library('_', 'IMPL')
    kernels = torch.library.Library('aten', 'IMPL')
    _fall_back(backend, kernels, _from_backend, 'CUDA')
    kernels.impl('ctc_loss.Tensor', _ctc_loss, 'AutogradCUDA')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')   # PyTorch warns about replaced kernels
        for kind, key in (('nested', 'NestedTensorCUDA'), ('sparse_csr', 'SparseCsrCUDA'),
                          ('sparse_coo', 'SparseCUDA'), ('quantised', 'QuantizedCUDA')):
            # The kernels of a CUDA build have precedence over the fallback, so replace each one.
            for name in torch._C._dispatch_get_registrations_for_dispatch_key(key):
                if name.startswith('aten::'):
                    kernels.impl(name.removeprefix('aten::'), partial(_not_dense, kind, name), key)
            _fall_back(backend, kernels, partial(_not_dense, kind), key)
        for names, key in ((_OVERRIDES, 'CUDA'), (WHOLE, 'AutogradCUDA')):
            for name in names:
                kernels.impl(name, partial(_from_backend, overload(name)), key)
        _record_traces(kernels)
    _KEPT.extend((backend, kernels))
    # With a CUDA build of PyTorch, TorchScript would otherwise compile kernels for this machine's
    # GPU.
    torch._C._jit_override_can_fuse_on_gpu(False)
    cuda_api.install(device)
    signals.install(lambda: device.connection.busy(), RemoteTensor.__del__.__code__)


def _fall_back(backend: torch.library.Library, kernels: torch.library.Library, function: Any,
               key: str) -> None:
    """Make `function` the kernel of every operator that has none for a dispatch key."""
    if hasattr(backend, 'fallback'):
        backend.fallback(function, key)
        return
    # PyTorch 2.4. It registers a kernel of one of its operators itself, when it is first used.
    for name in set(torch._C._dispatch_get_all_op_names()) - {'aten::_nested_get_jagged_dummy'}:
        if name.startswith('aten::') and \
                not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key):
            name = name.removeprefix('aten::')
            kernels.impl(name, partial(function, overload(name)), key)


def _first(device: Device, *args: Any) -> Any:
    """Call `_without_dtensor`, then dispatch the first operator; `device` dispatches later ones."""
    _without_dtensor()
    Hook.dispatch = device.dispatch
    return device.dispatch(*args)


class _First(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, *args: Any) -> None:
        pass


def _without_dtensor() -> None:
    """Prevent PyTorch from importing `torch.distributed.tensor`; the import takes a second.

    PyTorch looks up `DTensor` only once, when an operator first gets a tensor of a subclass. A
    program that uses `DTensor` must have imported `torch.distributed.tensor` before this function
    is called.
    """
    name = 'torch.distributed.tensor'
    if name in sys.modules or torch.distributed.is_available() \
            and torch.distributed.is_initialized():
        return
    module: Any = types.ModuleType(name)
    module.DTensor = type('DTensor', (torch.Tensor,), {})
    sys.modules[name] = module
    try:
        first: Any = torch.Tensor._make_wrapper_subclass(_First, ())
        first.detach()
    finally:
        del sys.modules[name]


def _from_backend(function: Any, *args: Any, **kwargs: Any) -> Any:
    return Hook.dispatch(function, args, kwargs)


def _not_dense(kind: str, function: Any, *args: Any, **kwargs: Any) -> NoReturn:
    refuse_kind(kind)


def _ctc_loss(log_probs: Any, targets: Any, lengths: Any, target_lengths: Any, *more: Any) -> Any:
    """Run ctc_loss with lengths that are on the CPU.

    CUDA accepts such lengths. For remote tensors, PyTorch itself would refuse them.
    """
    return torch.ops.aten.ctc_loss.IntList(log_probs, targets, lengths.tolist(),
                                           target_lengths.tolist(), *more)


def _record_traces(kernels: torch.library.Library) -> None:
    """Make PyTorch's tracer record some operators as a whole.

    Normally the tracer does not record these operators. It records the simpler operators that their
    kernels call. Here the kernels run on the server, where the tracer sees nothing, so the results
    would become constants of the traced module.
    """
    def convolution(*args: Any) -> Any:
        cudnn = torch.backends.cudnn
        return torch.ops.aten._convolution.default(*args, cudnn.benchmark, cudnn.deterministic,
                                                   cudnn.enabled, cudnn.allow_tf32)

    kernels.impl('convolution', convolution, 'Tracer')
    for name in ('lstm_cell', 'gru_cell'):
        kernels.impl(name, partial(_taken_apart, overload(name)), 'Tracer')


def _taken_apart(cell: Any, *args: Any) -> Any:
    if any(isinstance(value, RemoteTensor) for value in args):
        raise RuntimeError(f'rrto: torch.jit.trace cannot record {cell.name()} on the device; '
                           'trace the module on the CPU, then move the result')
    return cell._op_dk(COMPOSITE, *args)
