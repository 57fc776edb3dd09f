"""Move a program's tensors to a server that is available again; each tensor keeps its handle."""

from __future__ import annotations

from typing import Any

import torch

from ..execution.context import Context
from ..protocol.errors import RrtoError
from ..protocol.record import Call, Meta, Ref
from ..protocol.tensors import meta_of, pack
from .percall import PerCall

STRIDED = 'aten.as_strided.default'


def migrate(context: Context, to: PerCall) -> None:
    """Create the tensors of `context` on the server of the engine `to`.

    This server must have no tensors of the program. Tensors that share memory also share it on the
    server. A weight is sent only if the server has not kept it. Raises RrtoError, for example if
    the server is lost or if tensors of different types share memory.
    """
    storages: dict[Any, list[tuple[int, torch.Tensor]]] = {}
    for handle, tensor in context.tensors.items():
        place = tensor.untyped_storage().data_ptr() or -handle
        storages.setdefault(place, []).append((handle, tensor))
    with torch.inference_mode():
        for sharing in storages.values():
            _move_storage(sharing, to)
    if not torch.equal(context.generator.get_state(), torch.Generator().get_state()):
        to.seed(int(torch.randint(1 << 62, (), generator=context.generator)))
    to.synchronize()


def _move_storage(sharing: list[tuple[int, torch.Tensor]], to: PerCall) -> None:
    first = sharing[0][1]
    if any(t.dtype != first.dtype or t.is_conj() or t.is_neg() for _, t in sharing):
        raise RrtoError('tensors of different types share memory')
    whole = first.untyped_storage().nbytes() // first.itemsize
    meta, data = pack(first.as_strided((whole,), (1,), 0))
    # Call the methods of the base class PerCall: if `to` is a Replaying, its own methods would
    # record these calls.
    base = PerCall.upload(to, meta, data, True)
    for handle, tensor in sharing:
        to.repeat(_view(base, handle, meta_of(tensor)))
    PerCall.free(to, [base])


def _view(base: int, handle: int, meta: Meta) -> Call:
    return Call(STRIDED, (Ref(base), meta.shape, meta.stride, meta.offset), (), (handle,), (meta,))
