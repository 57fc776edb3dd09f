"""Tensor types such as `torch.cuda.FloatTensor`, with which older programs choose the device."""

from __future__ import annotations

from typing import Any

import torch

from ..remote import CUDA, RemoteTensor

_DTYPES = {'Float': torch.float32, 'Double': torch.float64, 'Half': torch.float16,
           'BFloat16': torch.bfloat16, 'Byte': torch.uint8, 'Char': torch.int8,
           'Short': torch.int16, 'Int': torch.int32, 'Long': torch.int64, 'Bool': torch.bool}


class _Kind(type):
    dtype: torch.dtype

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, RemoteTensor) and instance.dtype is cls.dtype

    def __call__(cls, *args: Any, device: Any = CUDA) -> Any:
        """Create a tensor with the given values, or an uninitialised one with the given sizes."""
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.as_tensor(args[0], dtype=cls.dtype, device=device)
        return torch.empty(*args or [0], dtype=cls.dtype, device=device)


def install() -> None:
    """Add types such as `torch.cuda.FloatTensor`; make PyTorch's functions accept these types.

    The functions are `Tensor.type` and `torch.set_default_tensor_type`.
    """
    kinds = {f'{name}Tensor': _Kind(f'{name}Tensor', (), {
        'dtype': dtype, 'is_cuda': True, 'is_sparse': False, 'layout': torch.strided,
        '__module__': 'torch.cuda'}) for name, dtype in _DTYPES.items()}
    for name, kind in kinds.items():
        setattr(torch.cuda, name, kind)
    plain, plain_default = torch.Tensor.type, torch.set_default_tensor_type

    def named(kind: Any) -> tuple[bool, torch.dtype | None]:
        """Return whether `kind` is one of the types for 'cuda', and the dtype of `kind`.

        The dtype is None if `kind` is not a type of dense tensors.
        """
        space, _, name = kind.rpartition('.') if isinstance(kind, str) else ('', '', '')
        if space in ('torch', 'torch.cuda') and name in kinds:
            return space == 'torch.cuda', kinds[name].dtype
        if isinstance(kind, _Kind):
            return True, kind.dtype
        dense = isinstance(kind, type(torch.FloatTensor)) and not (kind.is_sparse or kind.is_cuda)
        return False, kind.dtype if dense else None

    def type_of(self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        ours, wanted = named(dtype)
        if wanted is None or not (ours or isinstance(self, RemoteTensor)):
            return plain(self, dtype, non_blocking, **kwargs)
        return self.to(CUDA if ours else 'cpu', wanted)

    def set_default(kind: Any) -> None:
        ours, wanted = named(kind)
        if ours and wanted is not None:
            torch.set_default_dtype(wanted)
        else:
            plain_default(kind)
        torch.set_default_device('cuda' if ours else None)

    torch.Tensor.type = type_of  # type: ignore[method-assign]
    torch.set_default_tensor_type = set_default
