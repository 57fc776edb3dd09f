"""Move a program's tensors to a server that is available again; each tensor keeps its handle.

The tensors of another process come here first: `carried` there, `restored` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from ..execution.context import Context
from ..protocol.errors import RrtoError
from ..protocol.record import Call, Meta, Ref
from ..protocol.tensors import dense, meta_of, pack, size_of, to_host, unpack
from ..protocol.wire import decode, encode
from .journal import Journal
from .percall import PerCall
from .port import Upload

NOTHING: Mapping[int, str] = MappingProxyType({})
STRIDED = 'aten.as_strided.default'


def migrate(context: Context, to: PerCall, there: Mapping[int, str] = NOTHING) -> None:
    """Create the tensors of `context` on the server of the engine `to`.

    This server must have no other tensors of the program than ``there``, see `prepare`. Tensors
    that share memory also share it on the server. A weight is sent only if the server has not kept
    it. Raises RrtoError, for example if the server is lost or if tensors of different types share
    memory.
    """
    with torch.inference_mode():
        storages = [sharing for sharing in _storages(context) if len(sharing) > 1
                    or not _is_there(context, sharing[0][0], there)]
        moved = {handle for sharing in storages for handle, _ in sharing}
        PerCall.free(to, [h for h in there if h in moved or h not in context.tensors])
        made = to.weights(_upload(context, sharing) for sharing in storages)
        bases = []
        for base, sharing in zip(made, storages, strict=True):
            if base != sharing[0][0]:
                bases.append(base)
                for handle, tensor in sharing:
                    to.repeat(_view(base, handle, meta_of(tensor)))
    # The method of the base class PerCall: if `to` is a Replaying, its own would record the call.
    PerCall.free(to, bases)
    if _has_drawn(context):
        to.seed(_drawn(context))
    to.synchronize()


def prepare(journal: Journal, to: PerCall) -> dict[int, str]:
    """Send what the tensors of `journal` were made from, so that the server keeps it.

    Return the tensors that are there now, as handles and digests of their bytes.
    """
    there = {}
    for upload in journal.uploads():
        # not an encoded input, which `migrate` sends as it is
        if len(upload.data) == size_of(upload.meta):
            handle, = to.weights([upload])
            if upload.digest and upload.handle:
                there[handle] = upload.digest
            else:
                PerCall.free(to, [handle])
    to.synchronize()
    return there


def _is_there(context: Context, handle: int, there: Mapping[int, str]) -> bool:
    return handle in there and context.digests.get(handle) == there[handle]


def carried(context: Context) -> Iterator[bytes]:
    """Yield a message for each memory of `context`, and one about its random generator.

    The messages are for `restored`. If tensors of different types share memory, one of them says
    so.
    """
    for sharing in _storages(context):
        try:
            with torch.inference_mode():
                meta, data = _whole(sharing)
        except RrtoError as error:
            yield encode(str(error))
            continue
        yield encode((meta, data, tuple([(handle, meta_of(t)) for handle, t in sharing])))
    if _has_drawn(context):
        yield encode(_drawn(context))


def restored(messages: Iterable[bytes]) -> Context:
    """Return a context on the CPU with the tensors of `carried`; take all of its messages.

    Raises RrtoError if tensors of different types share memory.
    """
    context, wrong = Context(torch.device('cpu'), 1 << 40), ''
    for message in messages:
        value = decode(message)
        if isinstance(value, str):
            wrong = value
        elif isinstance(value, int):
            context.seed(value)
        else:
            meta, data, tensors = value
            whole = unpack(meta, data)
            for handle, of in tensors:
                context.add(handle, whole.as_strided(of.shape, of.stride, of.offset))
    if wrong:
        raise RrtoError(wrong)
    return context


def _storages(context: Context) -> list[list[tuple[int, torch.Tensor]]]:
    """Return the tensors that share memory, with their handles, for each memory."""
    storages: dict[Any, list[tuple[int, torch.Tensor]]] = {}
    for handle, tensor in context.tensors.items():
        place = tensor.untyped_storage().data_ptr() or -handle
        storages.setdefault(place, []).append((handle, tensor))
    return list(storages.values())


def _upload(context: Context, sharing: list[tuple[int, torch.Tensor]]) -> Upload:
    """Return the upload of a memory: that of its tensor, if it has only one that fills it."""
    handle, tensor = sharing[0]
    if len(sharing) > 1 or tensor.nbytes != tensor.untyped_storage().nbytes() \
            or not dense(tensor.shape, tensor.stride()) or tensor.is_conj() or tensor.is_neg():
        return Upload(*_whole(sharing))
    return Upload(*pack(to_host(tensor)), context.digests.get(handle, ''), handle)


def _whole(sharing: list[tuple[int, torch.Tensor]]) -> tuple[Meta, Any]:
    """Return meta and bytes of a memory as one dimension of the type of its tensors."""
    first = sharing[0][1]
    if any(t.dtype != first.dtype or t.is_conj() or t.is_neg() for _, t in sharing):
        raise RrtoError('tensors of different types share memory')
    whole = first.untyped_storage().nbytes() // first.itemsize
    return pack(to_host(first.as_strided((whole,), (1,), 0)))


def _has_drawn(context: Context) -> bool:
    fresh = torch.Generator(context.device)
    return not torch.equal(context.generator.get_state(), fresh.get_state())


def _drawn(context: Context) -> int:
    return int(torch.randint(1 << 62, (), generator=context.generator, device=context.device))


def _view(base: int, handle: int, meta: Meta) -> Call:
    return Call(STRIDED, (Ref(base), meta.shape, meta.stride, meta.offset), (), (handle,), (meta,))
