"""The tensors that one client has on the server, and the execution of its calls on them.

A client's calls can name only tensors of its context, because handles are resolved only here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn

import torch
from fleet_compute.inlets import Inlets

from ..protocol.errors import (
    Failed,
    Missing,
    OutOfMemory,
    Refused,
    RemoteError,
    UnknownOperator,
)
from ..protocol.operators import DEFAULT, USUAL, agree, operator, resolve
from ..protocol.record import DTOH, GIVEN, HTOD, SEEDING, Meta, Ref, Special
from ..protocol.tensors import (
    encoded,
    from_special,
    meta_of,
    pack,
    size_of,
    to_device,
    to_host,
    unpack,
)
from .kernels import kernel
from .plan import values_at

# Maximum number of failed calls that a context remembers. A later call that uses the result of a
# failed call raises the same error.
FAILURES = 1024
REACH = 1 << 16   # maximum number of tensors that one call creates


def default_generator(device: torch.device) -> torch.Generator:
    """Return the generator from which PyTorch's random operators draw by default."""
    if device.type == 'cuda':
        torch.cuda.init()
        found: torch.Generator = torch.cuda.default_generators[device.index or 0]
        return found
    return torch.default_generator


class Context:
    """Tensors of one client on `device`, at most `limit` bytes in total.

    `note(op)` is called before each operator. `generator` draws the client's random numbers; in a
    process that serves only this client, it is PyTorch's default generator.
    """

    def __init__(self, device: torch.device, limit: int, note: Callable[[str], object] = len,
                 generator: torch.Generator | None = None) -> None:
        self.device = device
        self.limit = limit
        self.note = note
        self.used = 0                     # number of bytes that count as the client's memory now
        self.tensors: dict[int, torch.Tensor] = {}
        self.generator = torch.Generator(device) if generator is None else generator
        self.inlets: Inlets | None = None  # encodes what is sent to the client
        # Digests of the bytes of tensors, by handle, as long as the tensors contain these bytes;
        # and the handles of these tensors, by their storage.
        self.digests: dict[int, str] = {}
        self._digested: dict[int, list[int]] = {}
        # what to call before the first change of a storage that is also used elsewhere
        self._lent: dict[int, Callable[[], object]] = {}
        self._shelved: dict[int, tuple[Meta, Any]] = {}     # tensors in host memory, see `shelve`
        # operators that this client's PyTorch has in another form
        self.altered: set[str] = set()
        self._calls: dict[str, Callable[..., Any]] = {SEEDING: self._seeding}
        self._failed: list[tuple[int, Failed]] = []   # (first handle of a failed call, error)
        # maps a storage, see `_storage`, to [number of tensors, bytes]
        self._storages: dict[int, list[int]] = {}
        self._storage_of: dict[int, int] = {}       # maps a handle to a storage

    def close(self) -> None:
        """Free all tensors."""
        self.tensors.clear()
        self._storages.clear()
        self._storage_of.clear()
        self.digests.clear()
        self._digested.clear()
        self._lent.clear()
        self._shelved.clear()
        self.used = 0

    # -- tensors ---------------------------------------------------------------------------------

    def add(self, handle: int, tensor: torch.Tensor) -> None:
        """Add a tensor; if another tensor has this handle, free that tensor first.

        Clients choose the handles, so a handle can occur twice. Raises OutOfMemory; then nothing is
        added.
        """
        self.free(handle)
        storage = _storage(tensor)
        entry = self._storages.get(storage)
        if entry is None:
            entry = self._storages[storage] = [0, self.charge(tensor)]
        entry[0] += 1
        self.tensors[handle] = tensor
        self._storage_of[handle] = storage

    def charge(self, tensor: torch.Tensor) -> int:
        """Count a tensor's memory as memory of the client; return the number of bytes.

        Raises OutOfMemory; then nothing is counted.
        """
        return self.reserve(tensor.untyped_storage().nbytes())

    def reserve(self, size: int) -> int:
        """Count `size` bytes as memory of the client; return `size`.

        Raises OutOfMemory; then nothing is counted.
        """
        if self.used + size > self.limit:
            raise OutOfMemory(f'the server gives this program {self.limit >> 20} MiB; '
                              f'{self.used >> 20} MiB are in use, {size >> 10} KiB were requested')
        self.used += size
        return size

    def credit(self, size: int) -> None:
        """Stop counting bytes that `charge` or `reserve` has counted."""
        self.used -= size

    def free(self, handle: int) -> None:
        """Free a tensor.

        Ignore an unknown handle, because the call that creates it has possibly failed.
        """
        self.digests.pop(handle, None)
        self._shelved.pop(handle, None)
        if self.tensors.pop(handle, None) is None:
            return
        storage = self._storage_of.pop(handle)
        entry = self._storages[storage]
        entry[0] -= 1
        if not entry[0]:
            self.used -= entry[1]
            del self._storages[storage]
            self._digested.pop(storage, None)
            self._lent.pop(storage, None)

    def tensor(self, handle: int) -> torch.Tensor:
        """Return the tensor of a handle; raises Missing."""
        found = self.tensors.get(handle)
        if found is not None:
            return found
        if handle not in self._shelved:
            raise self._missing(handle)
        (meta, data), digest = self._shelved[handle], self.digests[handle]
        self.upload(handle, meta, data, True)
        self.mark(handle, digest)
        return self.tensors[handle]

    def mark(self, handle: int, digest: str) -> None:
        """Record the digest of the bytes of a tensor; a change of the tensor forgets it."""
        self.digests[handle] = digest
        self._digested.setdefault(self._storage_of[handle], []).append(handle)

    def note_write(self, tensor: torch.Tensor) -> None:
        """Forget the digests of all tensors that share memory with one that will be changed."""
        storage = _storage(tensor)
        for handle in self._digested.pop(storage, ()):
            self.digests.pop(handle, None)
        if storage in self._lent:
            self._lent.pop(storage)()

    def lend(self, handle: int, keep: Callable[[], object]) -> None:
        """Call ``keep`` before the memory of a tensor changes for the first time."""
        self._lent[self._storage_of[handle]] = keep

    def shelve(self, handle: int, meta: Meta, data: Any) -> None:
        """Free the memory of a tensor that has a digest, until it is used; `data` are its bytes.

        A tensor that shares its memory stays where it is.
        """
        if self._storages[self._storage_of[handle]][0] == 1:
            digest = self.digests[handle]
            self.free(handle)
            self._shelved[handle], self.digests[handle] = (meta, data), digest

    def lay_out(self, handle: int, meta: Meta) -> None:
        """Change strides and offset of a tensor to those of `meta`.

        No other tensor may share the memory of this tensor.
        """
        tensor = self.tensor(handle)
        if meta_of(tensor) != meta:
            self.free(handle)
            other = torch.empty_strided(meta.shape, meta.stride, dtype=tensor.dtype,
                                        device=tensor.device)
            self.add(handle, other.copy_(tensor))

    def memory(self, handle: int) -> tuple[int, int, int]:
        """Return (key, size in bytes, number of tensors) for the memory of a tensor.

        The number counts the tensors that share this memory; the key is their lowest handle.
        """
        size = self.tensor(handle).untyped_storage().nbytes()
        storage = self._storage_of[handle]
        sharers = [h for h, other in self._storage_of.items() if other == storage]
        return (min(sharers), size, len(sharers)) if size else (handle, 0, 1)

    def failed(self, first: Any, kind: str, text: str) -> None:
        """Record a failed call; `first`: the handle that its first result would have got.

        A later call that uses a result of the failed call raises the same error.
        """
        if type(first) is int:
            self._failed.append((first, Failed(kind, text)))
            if len(self._failed) > FAILURES:
                del self._failed[:FAILURES // 2]

    def _missing(self, handle: int) -> Missing:
        before = [(first, k) for k, (first, _) in enumerate(self._failed)
                  if first <= handle < first + REACH]
        # Choose the failed call whose first handle is nearest to `handle`. If several calls have
        # this first handle, choose the latest.
        if before:
            error = self._failed[max(before)[1]][1]
            return Failed(error.kind, error.text)
        return Missing(f'there is no tensor {handle} (its call may have failed)')

    def seed(self, seed: int) -> None:
        """Seed the random operators of this client."""
        self.generator.manual_seed(seed % (1 << 64))

    # -- calls -----------------------------------------------------------------------------------

    def upload(self, handle: int, meta: Meta, data: Any, shared: bool = False) -> None:
        """Copy bytes to the device as a tensor.

        `shared`: whether the tensor is allowed to use the memory of `data`.
        """
        self.add(handle, self.received(meta, data, shared))

    def received(self, meta: Meta, data: Any, shared: bool = False) -> torch.Tensor:
        """Return a new tensor on the device with bytes as they crossed the link.

        Raises OutOfMemory before memory is taken. `shared`: as in `upload`.
        """
        size = self.reserve(max(len(data), size_of(meta)))   # few bytes can be a large tensor
        try:
            return to_device(unpack(meta, data, shared), self.device)
        finally:
            self.credit(size)

    def download(self, handle: int) -> tuple[Meta, Any]:
        """Return the meta and the bytes of a tensor, copied to the host; see `packed`."""
        return self.packed(self.tensor(handle))

    def packed(self, tensor: torch.Tensor) -> tuple[Meta, Any]:
        """Return the meta and the bytes of a tensor as they are best sent to the client."""
        meta, data = pack(to_host(tensor))
        return meta, data if self.inlets is None else encoded(meta, data, self.inlets)

    def execute(self, op: str, arguments: tuple[Any, ...], keywords: tuple[tuple[str, Any], ...],
                first: int) -> Any:
        """Run an operator; its new tensors get the handles first, first + 1, ... in order.

        Returns the operator's result with replacements. A new tensor becomes its Meta. If the
        operator returns its tensor argument number k, this tensor becomes the pair (Special(GIVEN,
        k), Meta). A list becomes a tuple. If the operator returns None, the result is (). Scalars,
        and None in a list, stay unchanged. Raises Refused, RemoteError, OutOfMemory, or any error
        of the operator; then no handle is created.
        """
        if op in (HTOD, DTOH):
            raise RemoteError(f'{op} is not an operator')
        call = self.prepare(op)
        self.note(op)
        given: list[torch.Tensor] = []
        places = writes(op)
        for changed in values_at(places, arguments, keywords):
            for value in changed if type(changed) is tuple else (changed,):
                if type(value) is Ref:
                    self.note_write(self.tensor(value.handle))
        args = tuple([self._value(a, given) for a in arguments])
        kwargs = {_name(k): self._value(v, given) for k, v in keywords}
        result = call(*args, **kwargs)
        for name, value in keywords:
            if name in places:
                self._resized(value)
        made: list[torch.Tensor] = []
        described = () if result is None else _describe(result, given, made)
        added = 0
        try:
            for added, tensor in enumerate(made):
                self.add(first + added, tensor)
        except Exception:
            for k in range(added):
                self.free(first + k)
            raise
        return described

    def introduce(self, op: str, form: tuple[str, ...]) -> None:
        """Compare an operator with the `form` that it has in the program's PyTorch.

        If this PyTorch has the operator in another form, later calls raise UnknownOperator; if only
        some last arguments are missing here, calls that pass one of them raise Refused. Raises
        Refused as `resolve` does.
        """
        function = resolve(op)
        self._calls.pop(op, None)
        self.altered.add(op)
        try:
            if agree(op, form):
                self.altered.discard(op)
            else:
                self._calls[op] = _without_more(function, self.prepare(op))
        except UnknownOperator as error:
            self._calls[op] = _refusing(str(error))

    def prepare(self, op: str) -> Callable[..., Any]:
        """Return a function that runs an operator; random operators use this client's generator."""
        found = self._calls.get(op)
        if found is None:
            function = resolve(op)
            found = kernel(function, self.device)
            if torch.Tag.nondeterministic_seeded in function.tags:
                found = self._random(found, 'generator' in (a.name for a in
                                                            function._schema.arguments))
            found = self._calls[op] = _with_default(found)
        return found

    def _seeding(self, number: torch.Tensor) -> None:
        self.seed(int(number))

    def _random(self, function: Callable[..., Any], takes: bool) -> Callable[..., Any]:
        own, default = self.generator, default_generator(self.device)
        if own is default:
            return function   # no call has a generator argument, because a generator cannot be sent

        def call(*args: Any, **kwargs: Any) -> Any:
            if takes:
                return function(*args, **{**kwargs, 'generator': own})
            before = default.get_state()
            default.set_state(own.get_state())
            try:
                return function(*args, **kwargs)
            finally:
                own.set_state(default.get_state())
                default.set_state(before)

        return call

    def _resized(self, value: Any) -> None:
        """Count memory again for a result that the caller gave (`out=`), which may be larger now.

        Raises OutOfMemory; then this tensor is freed.
        """
        if type(value) is Ref:
            entry = self._storages[self._storage_of[value.handle]]
            more = self.tensors[value.handle].untyped_storage().nbytes() - entry[1]
            try:
                entry[1] += self.reserve(more)
            except OutOfMemory:
                self.free(value.handle)
                raise
        elif type(value) is tuple:
            for item in value:
                self._resized(item)

    def _value(self, value: Any, given: list[torch.Tensor]) -> Any:
        kind = type(value)
        if kind is Ref:
            given.append(self.tensor(value.handle))
            return given[-1]
        if kind is tuple:
            return [self._value(item, given) for item in value]
        if kind is Special:
            return from_special(value, self.device)
        if kind in (Meta, memoryview):
            raise RemoteError(f'an argument must not be a {kind.__name__}')
        return value


def _storage(tensor: torch.Tensor) -> int:
    """Return what names a tensor's storage as long as it exists, also if its memory is replaced."""
    found: int = tensor.untyped_storage()._cdata
    return found


@lru_cache(4096)
def writes(op: str) -> tuple[int | str, ...]:
    """Return the places of the arguments that an operator changes: positions and names."""
    if op == SEEDING:
        return ()
    function = resolve(op)
    names = [argument.name for argument in function._schema.arguments]
    found = operator(function).writes
    return (*map(names.index, found), *found)


def _with_default(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs the operator with the program's default dtype."""
    def call(*args: Any, **kwargs: Any) -> Any:
        before, wanted = torch.get_default_dtype(), kwargs.pop(DEFAULT, USUAL)
        if wanted is before:
            return function(*args, **kwargs)
        torch.set_default_dtype(wanted)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_default_dtype(before)

    return call


def _refusing(reason: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnknownOperator(reason)
    return call


def _without_more(operator: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs the operator, but refuses arguments that it does not have."""
    arguments = operator._schema.arguments
    most = sum(not a.kwarg_only for a in arguments)
    names = {DEFAULT, *(a.name for a in arguments)}

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > most or not kwargs.keys() <= names:
            raise Refused(f'{operator} has fewer arguments in PyTorch {torch.__version__}')
        return function(*args, **kwargs)
    return call


def _name(value: Any) -> str:
    if type(value) is not str:
        raise RemoteError('the name of an argument must be a string')
    return value


def _describe(result: Any, given: list[torch.Tensor], made: list[torch.Tensor]) -> Any:
    if isinstance(result, torch.Tensor):
        for k, tensor in enumerate(given):
            if tensor is result:
                return (Special(GIVEN, str(k)), meta_of(result))
        meta = meta_of(result)
        made.append(result)
        return meta
    if isinstance(result, (tuple, list)):
        return tuple([_describe(item, given, made) for item in result])
    return result
