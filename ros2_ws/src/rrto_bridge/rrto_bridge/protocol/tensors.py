"""Converts tensors to metas and bytes, and arguments such as dtypes to names; and converts back."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
from fleet_compute import inlets
from fleet_ros.device import uploaded

from .errors import RemoteError, Unsendable
from .record import Meta, Special

DTYPES = {str(d).removeprefix('torch.'): d for d in (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16,
    torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2)}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

_FORMATS = {str(f).removeprefix('torch.'): f for f in (
    torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)}
_KINDS: dict[type, str] = {torch.dtype: 'dtype', torch.memory_format: 'memory_format',
                           torch.layout: 'layout', torch.device: 'device'}
DEVICE = Special('device', '')  # the server's only device


def special(value: Any) -> Special:
    """Return the `Special` of a dtype, memory format, strided layout, or the device.

    Raises Unsendable for any other value.
    """
    kind = _KINDS.get(type(value))
    name = str(value).removeprefix('torch.')
    if kind == 'device' and value.type == 'cuda':
        check_device(value)
        return DEVICE
    known: dict[str | None, Any] = {'dtype': DTYPES, 'memory_format': _FORMATS,
                                    'layout': ('strided',)}
    if name not in known.get(kind, ()):
        raise Unsendable(f'{value!r} cannot be sent')
    return Special(str(kind), name)


def check_device(device: torch.device) -> None:
    """Raise CUDA's error if the device does not exist."""
    if (device.index or 0) > 0:
        raise RuntimeError(f'CUDA error: invalid device ordinal {device.index}: use cuda:0, the '
                           'only device')


def from_special(value: Special, device: torch.device) -> Any:
    """Return the dtype, format, layout or device from which `special` has made `value`.

    Raises RemoteError for an unknown value.
    """
    found = {'dtype': DTYPES.get(value.name), 'memory_format': _FORMATS.get(value.name),
             'layout': torch.strided if value.name == 'strided' else None,
             'device': device if not value.name else None}.get(value.kind)
    if found is None:
        raise RemoteError(f'unknown {value.kind[:20]} {value.name[:20]!r}')
    return found


def meta_of(tensor: torch.Tensor) -> Meta:
    """Return the meta of a strided tensor; raises Unsendable for other tensors."""
    name = NAMES.get(tensor.dtype)
    if name is None or tensor.layout is not torch.strided:
        raise Unsendable(f'a tensor of {tensor.dtype}, {tensor.layout} cannot be sent')
    return Meta(tuple(tensor.shape), tensor.stride(), name, int(tensor.storage_offset()))


def check_dense(tensor: torch.Tensor) -> None:
    """Raise RuntimeError if the device does not support this kind of tensor."""
    kind = 'nested' if tensor.is_nested else 'quantised' if tensor.is_quantized else \
        '' if tensor.layout is torch.strided else str(tensor.layout).removeprefix('torch.')
    if kind:
        refuse_kind(kind)


def refuse_kind(kind: str) -> NoReturn:
    """Raise the error for a tensor that is not dense."""
    raise RuntimeError(f'rrto: a tensor on the device must be dense, got a {kind.strip("_")} one: '
                       'keep it on the CPU, and move only the results')


def pack(tensor: torch.Tensor) -> tuple[Meta, memoryview]:
    """Return the meta and the bytes of a CPU tensor, in storage order and without gaps.

    The meta has offset 0, as after `.cpu()`. If the tensor has no gaps between its elements
    (`dense`), its bytes are not copied.
    """
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        with ordinary():
            tensor = tensor.resolve_conj().resolve_neg()
    # PyTorch's autograd makes tensors without memory (`_is_zerotensor`). `clone` returns a tensor
    # that has memory.
    if not dense(tensor.shape, tensor.stride()) or tensor._is_zerotensor():
        tensor = tensor.clone()
    meta = meta_of(tensor)._replace(offset=0)
    data: Any = _flat(tensor).view(torch.uint8).numpy()
    return meta, memoryview(data)


def unpack(meta: Meta, data: Any, shared: bool = False) -> torch.Tensor:
    """Return the tensor from which `pack` has made `meta` and `data`, which may be `encoded`.

    Raises RemoteError if the bytes do not fit the meta.

    `shared`: use the memory of `data`, which must be writable and have no other user. Otherwise
    copy the bytes.
    """
    dtype = DTYPES.get(meta.dtype)
    if dtype is None or meta.offset or not dense(meta.shape, meta.stride):
        raise RemoteError(f'a meta must describe a dense tensor, got {meta}')
    whole, count = decoded(meta, data), math.prod(meta.shape)
    if count * dtype.itemsize != len(whole):
        raise RemoteError(f'{len(whole)} bytes do not fit {meta}')
    if not count:
        return torch.empty_strided(meta.shape, meta.stride, dtype=dtype)
    own = whole if shared or whole is not data else bytearray(whole)
    flat = torch.frombuffer(own, dtype=torch.uint8).view(dtype)
    return flat.as_strided(meta.shape, meta.stride)


def encoded(meta: Meta, data: memoryview, to: inlets.Inlets) -> Any:
    """Return the bytes of a packed tensor as they cross the link; see `fleet_compute.inlets`."""
    if len(data) < inlets.LEAST:
        return data
    order = sorted(range(len(meta.shape)), key=lambda axis: (-meta.stride[axis], axis))
    shape = [meta.shape[axis] for axis in order]
    return to.encoded((meta.shape, meta.stride, meta.dtype),
                      inlets.elements_of(data, DTYPES[meta.dtype].itemsize),
                      inlets.layout_of(shape))


def decoded(meta: Meta, data: Any) -> Any:
    """Return the bytes from which `encoded` has made `data`, which are more; else `data` itself.

    Takes memory of some times `size_of(meta)`. Raises RemoteError if the data is damaged.
    """
    size = size_of(meta)
    if len(data) >= size:
        return data
    try:
        return inlets.decode(data, size).data
    except inlets.CodecError as error:
        raise RemoteError(f'{len(data)} bytes do not fit {meta}: {error}') from None


def ordinary() -> Any:
    """Return a context for computing with CPU tensors inside the implementation of an operator.

    Before PyTorch calls the implementation, it processes the operator's arguments in several steps.
    For example, it handles lazy conjugation, lazy negation and gradients. Inside the
    implementation, it skips these steps, even for tensors that are not arguments of the operator.
    Without the steps, PyTorch would ignore that such a tensor is lazily conjugated or negated. It
    would also ignore that a weight requires gradients, and so compute matrix products with this
    weight by another routine than usual. In the context, PyTorch does all steps.
    """
    included: Any = torch._C._dispatch_tls_local_include_set()
    return torch._C._ForceDispatchKeyGuard(included, _EXCLUDED)


_EXCLUDED: Any = torch._C._dispatch_tls_local_exclude_set()   # dispatch keys excluded by default


def size_of(meta: Meta) -> int:
    """Return the number of bytes of a dense tensor; 0 for an unknown dtype."""
    dtype = DTYPES.get(meta.dtype)
    return math.prod(meta.shape) * dtype.itemsize if dtype is not None else 0


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a copy of a dense CPU tensor on `device`; for the CPU, return the tensor itself."""
    if device.type == 'cpu':
        return tensor
    return uploaded(_flat(tensor), device).as_strided(tensor.shape, tensor.stride())


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor on the CPU; if it is already there, return the tensor itself."""
    if tensor.device.type == 'cpu':
        return tensor
    tensor = tensor.resolve_conj().resolve_neg()
    if not dense(tensor.shape, tensor.stride()):
        tensor = tensor.clone()
    return _flat(tensor).cpu().as_strided(tensor.shape, tensor.stride())


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor's elements as a one-dimensional view, in storage order."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def contiguous(shape: tuple[int, ...], dtype: str) -> Meta:
    """Return the meta of a tensor whose elements are in C order."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return Meta(shape, tuple(reversed(stride)), dtype)


def dense(shape: Any, stride: Any) -> bool:
    """Return whether the elements fill memory without gaps and without overlap.

    The dimensions may be in any order in memory.
    """
    if 0 in shape:
        return True
    expected = 1
    for step, size in sorted((st, n) for n, st in zip(shape, stride, strict=True) if n != 1):
        if step != expected:
            return False
        expected *= size
    return True
