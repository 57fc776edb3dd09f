"""The handles of the program's tensors: decides when the server creates and frees each tensor.

A handle is the number of a tensor on the server. A wrapper (`remote.RemoteTensor`) is the object
that the program holds for this tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ..protocol.operators import operator
from ..protocol.record import Call, Meta, Ref
from ..protocol.tensors import meta_of, special
from .connection import Connection
from .remote import NOTHING, RemoteTensor, alias_kind, make, make_view, move, released

_PLAIN = frozenset((int, float, bool, str, complex, type(None)))


class NotOnDevice(Exception):
    """An argument of the operator is a tensor that is not on the device."""


class Memory(NamedTuple):
    """The memory of a tensor; tensors that share memory have the same `key`."""

    key: int
    size: int        # size in bytes
    shared: bool     # whether other tensors of the program use the same memory


class Lifetimes:
    """Creates and frees the program's tensors on the server.

    Call its methods only while you hold `Connection.lock`. Several wrappers may have the same
    handle. An uninitialised tensor (`torch.empty`) is *deferred*: it is created on the server only
    when an operator needs it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Maps the temporary handle of each deferred tensor to the call that will create the tensor:
        # (function, args, kwargs).
        self._deferred: dict[int, Any] = {}
        # maps a handle to the number of its wrappers, minus 1
        self._shared: Counter[int] = Counter()
        self._temporary = NOTHING  # the newest temporary handle; the next one is lower by 1

    def empty(self, function: Any, meta: Meta, args: Any, kwargs: Any) -> RemoteTensor:
        """Return an uninitialised tensor; defer the call that creates this tensor on the server.

        The first copy into the tensor may replace this call. A deferred tensor has exactly one
        wrapper, because `materialise` creates the tensor on the server before the tensor gets an
        alias or a view.
        """
        self._temporary -= 1
        self._deferred[self._temporary] = function, args, kwargs
        return make(self._temporary, meta)

    def is_deferred(self, tensor: RemoteTensor) -> bool:
        """Return whether the tensor is deferred, which means: not created on the server yet."""
        return tensor.handle in self._deferred

    def materialise(self, tensor: RemoteTensor) -> None:
        """Create the tensor on the server if it is deferred."""
        if tensor.handle in self._deferred:
            function, args, kwargs = self._deferred.pop(tensor.handle)
            keywords = tuple([(k, self.argument(v, [])) for k, v in kwargs.items()
                              if k not in ('pin_memory', 'non_blocking')])
            arguments = tuple([self.argument(a, []) for a in args])
            call = Call(operator(function).name, arguments, keywords)
            handle = self._connection.ask('execute', call, (), False).handles[0]
            assert handle is not None
            tensor.handle = handle

    def existing(self, values: Any) -> Iterator[RemoteTensor]:
        """Yield the remote tensors in `values` and in nested lists; create them if deferred."""
        for value in values:
            if isinstance(value, RemoteTensor):
                self.materialise(value)
                yield value
            elif isinstance(value, (list, tuple)):
                yield from self.existing(value)

    def argument(self, value: Any, given: list[RemoteTensor]) -> Any:
        """Return an operator's argument in the form of a `Call`; append its tensors to `given`.

        Raises NotOnDevice for a tensor that is not on the device, and Unsendable for a value that
        cannot be sent.
        """
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list or kind is tuple or kind is torch.Size:
            return tuple([self.argument(item, given) for item in value])
        if isinstance(value, torch.Tensor):
            if not isinstance(value, RemoteTensor):
                raise NotOnDevice
            self.materialise(value)
            given.append(value)
            return Ref(value.handle)
        return special(value)

    # -- wrappers --------------------------------------------------------------------------------

    def alias(self, tensor: RemoteTensor) -> RemoteTensor:
        """Return another wrapper of the same tensor; create the tensor first if it is deferred."""
        self.materialise(tensor)
        self._shared[tensor.handle] += 1
        return make_view(tensor.handle, meta_of(tensor), tensor, alias_kind())

    def has_aliases(self, tensor: RemoteTensor) -> bool:
        """Return whether the tensor has several wrappers."""
        return self._shared.get(tensor.handle, 0) > 0

    def set_to(self, target: RemoteTensor, source: RemoteTensor) -> RemoteTensor:
        """Make `target` another wrapper of the tensor of `source`."""
        if target.device != source.device:
            raise RuntimeError('Attempted to set the storage of a tensor on device '
                               f'"{target.device}" to a storage on different device '
                               f'"{source.device}".  This is no longer allowed; the devices must '
                               'match.')
        if target.dtype != source.dtype:
            raise RuntimeError(f'Could not set tensor of type {source.dtype} to a tensor of type '
                               f'{target.dtype}')
        return become(target, self.alias(source))

    def memory(self, tensor: RemoteTensor) -> Memory:
        """Return the `Memory` of a tensor; this costs a round trip."""
        with self._connection.lock:
            self.collect()
            self.materialise(tensor)
            key, size, sharers = self._connection.ask('memory', tensor.handle)
        return Memory(key, size, sharers > 1 or self.has_aliases(tensor))

    # -- freeing tensors -------------------------------------------------------------------------

    def collect(self, at_once: bool = False) -> None:
        """Free on the server the tensors that the program no longer references.

        If fewer than `engine.batch` tensors wait to be freed, free them only if ``at_once`` is
        True.

        Before that, shorten the journal, which stores the calls from which the client can compute
        its tensors again. If a tensor in the journal depends on a long chain of calls, fetch the
        tensor's values; in the journal, these values replace the chain.
        """
        connection = self._connection
        engine = connection.engine
        journal = engine.journal
        if journal is not None and connection.follower.expected is None:
            for handle in journal.deep():
                journal.fetched(handle, *connection.ask('download', handle))
        if len(released) < connection.engine.batch and not at_once:
            return
        if dropped := self.dropped():
            connection.ask('free', dropped)

    def dropped(self) -> list[int]:
        """Return, once, the tensors on the server that the program no longer references."""
        found = []
        while released:
            handle = released.popleft()
            if self._shared.get(handle, 0) > 0:
                self._shared[handle] -= 1
            elif self._deferred.pop(handle, None) is None:
                self._shared.pop(handle, None)
                found.append(handle)
        return found


def become(target: RemoteTensor, other: RemoteTensor) -> RemoteTensor:
    """Make `target` the wrapper of the tensor of `other`, and return `target`.

    The caller must not use `other` afterwards.
    """
    target.handle, other.handle = other.handle, target.handle
    move(target, meta_of(other))
    return target
