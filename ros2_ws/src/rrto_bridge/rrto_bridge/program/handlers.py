"""Handlers of the operators that the device cannot simply send to the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..protocol.errors import Unsendable
from ..protocol.operators import COMPOSITE, LAYER, NESTED_MASK
from ..protocol.record import Meta
from ..protocol.tensors import NAMES, check_device, contiguous, meta_of
from .nested_tensors import NestedTensor, nested_tensor, refuse
from .remote import CUDA, RemoteTensor
from .runner import Runner

Handler = Callable[..., Any]
aten = torch.ops.aten


def _dtype(kwargs: Any) -> torch.dtype:
    """Return the dtype of a new tensor; raise CUDA's error if its device does not exist."""
    check_device(kwargs.get('device') or CUDA)
    dtype: torch.dtype = kwargs.get('dtype') or torch.get_default_dtype()
    if dtype not in NAMES:
        raise Unsendable(f'rrto: the device has no tensors of {dtype}')
    return dtype


def _pack_padded_sequence(on: Runner, /, *args: Any) -> Any:
    """Decompose the operator into slices, which the server can run.

    The server cannot run the operator itself, because the lengths and the returned batch sizes
    are CPU tensors.
    """
    return aten._pack_padded_sequence.default._op_dk(
        torch._C.DispatchKey.CompositeExplicitAutograd, *args)


def _empty_memory_format(on: Runner, /, size: Any, **kwargs: Any) -> RemoteTensor:
    dtype = _dtype(kwargs)
    if kwargs.get('memory_format') in (None, torch.contiguous_format):
        meta = contiguous(tuple(size), NAMES[dtype])
    else:
        meta = meta_of(torch.empty(size, dtype=dtype, device='meta',
                                   memory_format=kwargs['memory_format']))
    return on.lifetimes.empty(aten.empty.memory_format, meta, (size,), {**kwargs, 'dtype': dtype})


def _empty_strided(on: Runner, /, size: Any, stride: Any, **kwargs: Any) -> RemoteTensor:
    dtype = _dtype(kwargs)
    meta = Meta(tuple(size), tuple(stride), NAMES[dtype])
    return on.lifetimes.empty(aten.empty_strided.default, meta, (size, stride),
                              {**kwargs, 'dtype': dtype})


def _native_batch_norm(on: Runner, /, *args: Any) -> Any:
    """Run batch norm.

    If batch norm changes running statistics, use the variant of the operator whose schema
    marks the statistics as written.
    """
    changes = args[5] and args[3] is not None
    return on.run(aten._native_batch_norm_legit.default if changes
                  else aten.native_batch_norm.default, args, {})


def _cudnn_batch_norm(on: Runner, /, *args: Any) -> Any:
    """Run batch norm as `_native_batch_norm` does; the last result serves a backward pass."""
    if not args[5] or args[3] is None:
        return on.run(aten.cudnn_batch_norm.default, args, {})
    return *on.run(aten._native_batch_norm_legit.default, args, {}), torch.empty(
        0, dtype=torch.uint8, device=CUDA)


def _alias(on: Runner, /, tensor: RemoteTensor) -> RemoteTensor:
    return on.lifetimes.alias(tensor)


def _set_to(on: Runner, /, target: RemoteTensor, source: RemoteTensor) -> RemoteTensor:
    return on.lifetimes.set_to(target, source)


def _set_empty(on: Runner, /, tensor: RemoteTensor) -> RemoteTensor:
    return on.lifetimes.set_to(tensor, torch.empty(0, dtype=tensor.dtype, device=CUDA))  # type: ignore[arg-type]


def _set_storage(on: Runner, /, *args: Any) -> Any:
    raise RuntimeError("rrto: the storage of the device's tensors is not on this machine; use "
                       'set_(tensor)')


def _resize_as(on: Runner, /, tensor: torch.Tensor, like: torch.Tensor, *,
               memory_format: Any = None) -> torch.Tensor:
    if not isinstance(tensor, RemoteTensor):
        return tensor.resize_(like.shape, memory_format=memory_format)
    return on.resize(tensor, like.shape, memory_format=memory_format)


def _attention(on: Runner, /, *args: Any, **kwargs: Any) -> Any:
    """Run attention on the server, or for fake tensors as matrix products.

    For fake tensors, PyTorch 2.8 would ask the driver of CUDA which kernels there are.
    """
    if any(isinstance(t, RemoteTensor) for t in args):
        return on.run(aten.scaled_dot_product_attention.default, args, kwargs)
    return aten._scaled_dot_product_attention_math.default._op_dk(COMPOSITE, *args, **kwargs)[0]


def _is_set_to(on: Runner, /, one: torch.Tensor, other: torch.Tensor) -> bool:
    memory = on.lifetimes.memory
    return isinstance(one, RemoteTensor) and isinstance(other, RemoteTensor) \
        and meta_of(one) == meta_of(other) and memory(one).key == memory(other).key


def _storage_numel(on: Runner, tensor: RemoteTensor) -> int:
    return on.lifetimes.memory(tensor).size // tensor.itemsize


def _has_same_storage_numel(on: Runner, /, one: RemoteTensor, other: RemoteTensor) -> bool:
    return _storage_numel(on, one) == _storage_numel(on, other)


def _new_zeros_with_same_feature_meta(on: Runner, /, tensor: RemoteTensor, other: RemoteTensor, *,
                                      self_num_batch_dims: int = 0) -> Any:
    """Return zeros with the shape and strides of `other` for each item of a batch.

    `self_num_batch_dims`: how many of the first dimensions of `tensor` are the batch.
    """
    batch = tensor.shape[:self_num_batch_dims]
    whole = torch.zeros(*batch, _storage_numel(on, other), dtype=tensor.dtype, device=CUDA)
    return on.run(aten.as_strided.default, (
        whole, (*batch, *other.shape), (*whole.stride()[:-1], *other.stride()),
        other.storage_offset()), {})


def _efficientzerotensor(on: Runner, /, size: Any, **kwargs: Any) -> Any:
    return torch.zeros(size, dtype=_dtype(kwargs), device=CUDA)


def _no_other_library(on: Runner, /, *args: Any) -> bool:
    return False


def _from_mask(on: Runner, /, source: RemoteTensor, mask: RemoteTensor, mask_check: bool = True
               ) -> NestedTensor:
    if mask_check and not torch._nested_tensor_from_mask_left_aligned(source, mask):
        raise RuntimeError('Expected mask to be left-aligned')
    return nested_tensor(source, mask, False)


def _encoder_layer(on: Runner, /, source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    function = aten._transformer_encoder_layer_fwd.default
    if not isinstance(source, NestedTensor):
        return on.run(function, (source, *args), kwargs)
    if any(value is not None for value in (*args[LAYER:], *kwargs.values())):
        refuse('a layer with a mask')
    padded = on.run(function, (source.padded, *args[:LAYER], source.mask, NESTED_MASK), {})
    return nested_tensor(padded, source.mask, True)


# Maps each operator to its handler. The first argument of a handler is the device.
HANDLERS: dict[Any, Handler] = {
    aten.detach.default: _alias,
    aten.alias.default: _alias,
    aten.lift_fresh.default: _alias,
    aten.native_batch_norm.default: _native_batch_norm,
    aten.cudnn_batch_norm.default: _cudnn_batch_norm,
    aten.empty.memory_format: _empty_memory_format,
    aten.empty_strided.default: _empty_strided,
    aten._pack_padded_sequence.default: _pack_padded_sequence,
    # These operators exist only in older versions of PyTorch.
    **{getattr(getattr(aten, name), which): _no_other_library
       for name in ('_use_cudnn_ctc_loss', '_use_miopen_ctc_loss') if hasattr(aten, name)
       for which in getattr(aten, name).overloads() if which != 'out'},
    aten.scaled_dot_product_attention.default: _attention,
    aten._nested_tensor_from_mask.default: _from_mask,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    aten.set_.source_Tensor: _set_to,
    # `.data =` as an operator, since PyTorch 2.15
    **({aten.shallow_copy_data_.default: _set_to} if hasattr(aten, 'shallow_copy_data_') else {}),
    aten.set_.default: _set_empty,
    aten.set_.source_Storage: _set_storage,
    aten.set_.source_Storage_storage_offset: _set_storage,
    aten.resize_as_.default: _resize_as,
    aten.is_set_to.default: _is_set_to,
    aten._has_same_storage_numel.default: _has_same_storage_numel,
    aten._new_zeros_with_same_feature_meta.default: _new_zeros_with_same_feature_meta,
    aten._efficientzerotensor.default: _efficientzerotensor,
    aten.record_stream.default: lambda on, tensor, stream: None,
}
