"""What one client has on the server: its tensors, and the execution of its calls on them.

Only tensors of this context can be named by its calls: handles are looked up here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .allow import resolve
from .errors import Missing, OutOfMemory, RemoteError
from .record import DTOH, HTOD, Meta, Ref, Special
from .tensors import from_special, meta_of, pack, unpack

GIVEN = 'given'  # Special in a result: the k-th tensor argument came back; its meta follows

# Memory as the allocator leaves it may hold another client's values.
UNINITIALISED = frozenset(('aten.empty.memory_format', 'aten.empty_strided.default',
                            'aten.empty_like.default', 'aten.new_empty.default',
                            'aten.new_empty_strided.default', 'aten.empty_permuted.default'))


class Context:
    """Tensors of one client on `device`, at most `limit` bytes of them."""

    def __init__(self, device: torch.device, limit: int) -> None:
        self.device = device
        self.limit = limit
        self.used = 0                     # bytes of all storages
        self.tensors: dict[int, torch.Tensor] = {}
        self.generator = torch.Generator(device)
        self._storages: dict[int, list[int]] = {}   # by address: tensors on it, bytes
        self._addresses: dict[int, int] = {}        # by handle

    def close(self) -> None:
        """Free everything."""
        self.tensors.clear()
        self._storages.clear()
        self._addresses.clear()
        self.used = 0

    # -- tensors ---------------------------------------------------------------------------------

    def add(self, handle: int, tensor: torch.Tensor) -> None:
        """Take a tensor in under a new handle. Raises OutOfMemory, RemoteError; then it did not."""
        if handle in self.tensors:
            raise RemoteError(f'handle {handle} is in use')
        address = tensor.untyped_storage().data_ptr()
        entry = self._storages.get(address)
        if entry is None:
            entry = self._storages[address] = [0, self.charge(tensor)]
        entry[0] += 1
        self.tensors[handle] = tensor
        self._addresses[handle] = address

    def charge(self, tensor: torch.Tensor) -> int:
        """Count the memory of a tensor; returns its bytes. Raises OutOfMemory; then it did not."""
        size = tensor.untyped_storage().nbytes()
        if self.used + size > self.limit:
            raise OutOfMemory(f'the server gives this program {self.limit >> 20} MiB; '
                              f'{self.used >> 20} MiB are in use, {size >> 10} KiB are asked')
        self.used += size
        return size

    def credit(self, size: int) -> None:
        """Bytes that were charged are free again."""
        self.used -= size

    def free(self, handle: int) -> None:
        """Forget a tensor; an unknown handle is nothing (its call may have failed)."""
        if self.tensors.pop(handle, None) is None:
            return
        address = self._addresses.pop(handle)
        entry = self._storages[address]
        entry[0] -= 1
        if not entry[0]:
            self.used -= entry[1]
            del self._storages[address]

    def tensor(self, handle: int) -> torch.Tensor:
        """The tensor of a handle; raises Missing."""
        found = self.tensors.get(handle)
        if found is None:
            raise Missing(f'there is no tensor {handle} (its call may have failed)')
        return found

    def lay_out(self, handle: int, meta: Meta) -> None:
        """Give a tensor that nothing else shares another layout: of the same shape and dtype."""
        tensor = self.tensor(handle)
        if meta_of(tensor) != meta:
            self.free(handle)
            other = torch.empty_strided(meta.shape, meta.stride, dtype=tensor.dtype,
                                        device=tensor.device)
            self.add(handle, other.copy_(tensor))

    def memory(self, handle: int) -> tuple[int, int, int]:
        """Of the memory of a tensor: its first handle, bytes, how many tensors share it."""
        size = self.tensor(handle).untyped_storage().nbytes()
        address = self._addresses[handle]
        sharers = [h for h, other in self._addresses.items() if other == address]
        return (min(sharers), size, len(sharers)) if size else (handle, 0, 1)

    def seed(self, seed: int) -> None:
        """Seed of the random operators of this client."""
        self.generator.manual_seed(seed)

    # -- calls -----------------------------------------------------------------------------------

    def upload(self, handle: int, meta: Meta, data: Any) -> None:
        """Host to device."""
        self.add(handle, unpack(meta, data).to(self.device))

    def download(self, handle: int) -> tuple[Meta, memoryview]:
        """Device to host."""
        return pack(self.tensor(handle).cpu())

    def execute(self, op: str, arguments: tuple[Any, ...], keywords: tuple[tuple[str, Any], ...],
                first: int) -> Any:
        """Run an operator; its new tensors get the handles first, first + 1, ... in order.

        Returns the result with Meta for a new tensor and Special(GIVEN, k) for an argument that
        came back, scalars and None as they are, lists as tuples. Raises Refused, RemoteError,
        OutOfMemory, and whatever the operator raises; then no handle was made.
        """
        if op in (HTOD, DTOH):
            raise RemoteError(f'{op} is no operator')
        function = resolve(op)
        given: list[torch.Tensor] = []
        args = tuple([self._value(a, given) for a in arguments])
        kwargs = {_name(k): self._value(v, given) for k, v in keywords}
        result = self.run(function, args, kwargs)
        if op in UNINITIALISED:
            result.zero_()
        if 'out' in kwargs:
            self._moved((arguments, keywords))
        made: list[torch.Tensor] = []
        described = _describe(result, given, made)
        added = 0
        try:
            for added, tensor in enumerate(made):
                self.add(first + added, tensor)
        except Exception:
            for k in range(added):
                self.free(first + k)
            raise
        return described

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on tensors; a random one draws from this client's own generator."""
        if torch.Tag.nondeterministic_seeded not in function.tags:
            return function(*args, **kwargs)
        if any(a.name == 'generator' for a in function._schema.arguments):
            return function(*args, **{**kwargs, 'generator': self.generator})
        default = torch.default_generator
        before = default.get_state()
        default.set_state(self.generator.get_state())
        try:
            return function(*args, **kwargs)
        finally:
            self.generator.set_state(default.get_state())
            default.set_state(before)

    def _moved(self, value: Any) -> None:
        """Account again for arguments whose storage an `out=` operator has replaced."""
        if type(value) is Ref:
            tensor = self.tensors[value.handle]
            if tensor.untyped_storage().data_ptr() != self._addresses[value.handle]:
                self.free(value.handle)
                self.add(value.handle, tensor)
        elif type(value) is tuple:
            for item in value:
                self._moved(item)

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
            raise RemoteError(f'an argument is a {kind.__name__}')
        return value


def _name(value: Any) -> str:
    if type(value) is not str:
        raise RemoteError('the name of an argument is no string')
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


def metas(described: Any) -> Iterator[Meta]:
    """Metas of the new tensors in what `execute` returned, in the order of their handles."""
    if type(described) is Meta:
        yield described
    elif type(described) is tuple and not (described and type(described[0]) is Special):
        for item in described:
            yield from metas(item)
