"""Patch PyTorch's functions that record or transform other functions, such as `make_fx`.

With tensors of the device, these functions must give a correct result or raise an error. While
PyTorch records, it recognises a tensor by the identity of its Python object. But autograd and views
create new objects for the same tensor if its class is a subclass of Tensor. PyTorch does not
recognise these objects, so their values would become constants of the recording.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..device import Device
from ..remote import NOTHING, RemoteTensor

HOW = 'record it on the CPU, then move the result'


def install(device: Device) -> None:
    """Make `make_fx` check its recordings, and make other tracers refuse remote tensors.

    The other tracers are `torch.export` and `torch.func.linearize`.
    """
    trace = proxy_tensor._MakefxTracer.trace

    @functools.wraps(trace)
    def checked(self: Any, function: Any, *args: Any) -> Any:
        first = device.connection.next_handle
        try:
            made = trace(self, function, *args)
        except Exception as error:
            if 'FakeTensor' not in str(error) or not _remote((args, function)):
                raise
            _refuse('make_fx with fake tensors', HOW, error)
        for node in made.graph.find_nodes(op='get_attr'):
            constant = getattr(made, node.target, None)
            if isinstance(constant, RemoteTensor) and (
                    constant.handle >= first or constant.handle < NOTHING):
                _refuse('make_fx', HOW)
        return made

    tracer: Any = proxy_tensor._MakefxTracer
    tracer.trace = checked
    _higher_order()
    _exporting()
    linearize = torch.func.linearize

    @functools.wraps(linearize)
    def linearized(function: Any, *primals: Any) -> Any:
        if _remote(primals):
            _refuse('torch.func.linearize', 'torch.func.jvp gives the same derivatives')
        return linearize(function, *primals)

    places: tuple[Any, ...] = torch.func, torch._functorch.eager_transforms
    for place in places:
        place.linearize = linearized


def _exporting() -> None:
    """Make `torch.export` refuse tensors of the device; PyTorch's own error would be misleading."""
    for name in ('export', 'draft_export', 'export_for_training'):
        export = getattr(torch.export, name, None)
        if export is not None:
            setattr(torch.export, name, _exporter(export))


def _exporter(export: Any) -> Any:
    @functools.wraps(export)
    def checked(mod: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        if _remote((mod, args, kwargs)):
            _refuse('torch.export', 'export it on the CPU, then move the result: '
                    'program.module().cuda()')
        return export(mod, args, kwargs, **options)
    return checked


def _higher_order() -> None:
    """Run higher-order operators, such as `torch.cond` and `flex_attention`, without a compiler."""
    operator: Any = torch._ops.HigherOrderOperator
    plain, explicit = operator.dispatch, torch._C.DispatchKey.CompositeExplicitAutograd

    @functools.wraps(plain)
    def dispatch(self: Any, key: Any, /, *args: Any, **kwargs: Any) -> Any:
        if key != torch._C.DispatchKey.Python or _get_current_dispatch_mode() is not None \
                or not _remote((args, kwargs)):
            return plain(self, key, *args, **kwargs)
        kernel = self.py_kernels.get(explicit)
        if kernel is None:
            raise RuntimeError(f'rrto: {self._name} does not support tensors on the device: '
                               'write it in Python, or call it with tensors of the CPU')
        return kernel(*args, **kwargs)

    operator.dispatch = dispatch


def _remote(values: Any) -> bool:
    """Return whether `values` contain tensors of the device, also inside modules."""
    return any(isinstance(t, RemoteTensor) for value in _pytree.tree_leaves(values)
               for t in ([*value.parameters(), *value.buffers()]
                         if isinstance(value, torch.nn.Module) else [value]))


def _refuse(what: str, instead: str, cause: Exception | None = None) -> NoReturn:
    raise RuntimeError(f'rrto: {what} cannot record tensors of the device: {instead}') from cause
