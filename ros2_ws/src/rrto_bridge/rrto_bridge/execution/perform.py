"""Execute a client's messages on its `Context`: the work of the server's computing thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from fleet_compute.weights import Weights

from ..protocol.actions import Value
from ..protocol.errors import OutOfMemory, Refused, RemoteError, described
from ..protocol.operators import operator, resolve
from ..protocol.record import DTOH, HTOD, Meta, metas
from ..protocol.requests import (
    FIND,
    FORM,
    FORMS,
    FREE,
    KEEP,
    KINDS,
    MEMORY,
    QUERY,
    RANDOM,
    SEED,
    from_item,
    value_to_message,
)
from ..protocol.tensors import decoded, dense, size_of
from ..protocol.wire import decode, encode
from .context import Context
from .executor import ContextExecutor
from .plan import MAX_STEPS
from .replay_server import ReplayServer
from .sharing import Sharing


class Performer:
    """Executes the messages of one client in order."""

    def __init__(self, context: Context, weights: Weights, sharing: Sharing | None = None) -> None:
        self.context = context
        self.replay = ReplayServer(ContextExecutor(context), sharing)
        self.weights = weights
        self._failure: tuple[str, str] | None = None  # (name, text) of the error for the next reply

    @property
    def used(self) -> int:
        """Number of bytes that count as the client's memory."""
        return self.context.used

    def close(self) -> None:
        """Free all tensors."""
        self.context.close()
        self.replay = ReplayServer(ContextExecutor(self.context))

    def perform(self, data: Any) -> Iterator[bytes]:
        """Execute a message; yield each reply as soon as it exists.

        Raises RemoteError for a malformed message. If an item fails, the next reply reports the
        error.
        """
        message = decode(data)
        if (type(message) is not tuple or len(message) != 3 or type(message[0]) is not int
                or type(message[1]) is not bool or type(message[2]) is not tuple):
            raise RemoteError('malformed message: expected (int, bool, tuple)')
        number, wanted, items = message
        value = None
        with torch.inference_mode():
            for item in items:
                if type(item) is tuple and item and item[0] in KINDS:
                    self._apply(item)
                    continue
                try:
                    value = self.item(item)
                except Exception as error:  # noqa: PERF203 - affects only this item
                    value = None
                    self._fail(item, error)
        values = self.replay.advance(MAX_STEPS)
        while True:
            # Leave inference mode before `yield`, so that the caller's code does not run in it.
            with torch.inference_mode():
                ready = next(values, None)
            if ready is None:
                break
            yield self._value(ready)
        if wanted:
            failure, self._failure = self._failure, None
            yield encode((number, *failure) if failure else (number, '', value))

    def _fail(self, item: Any, error: Exception) -> None:
        """Record that an item has failed; the next reply reports the first error."""
        self._failure = self._failure or described(error)
        self._note_failed(item, error)

    def _note_failed(self, item: Any, error: Exception) -> None:
        if type(item) is tuple and item:   # `place`: position of the first new handle in the item
            place = 1 if item[0] in (HTOD, KEEP, FIND) else 3 if item[0] not in _ITEMS else 1 << 30
            self.context.failed(item[place] if place < len(item) else None, *described(error))

    def _value(self, value: Value) -> bytes:
        """Encode a value of a run. Add the error of an earlier item if no reply has reported it."""
        if self._failure is not None:
            value = replace(value, error=': '.join(self._failure))
            self._failure = None
        return encode(value_to_message(value))

    def _apply(self, item: tuple[Any, ...]) -> None:
        """Apply a replay action.

        After most errors, raise RemoteError, which ends the session. Two errors do not end the
        session, because a program can cause them: an operator of a run has failed, or no memory
        is left. The next reply reports the error.
        """
        try:
            failed = self.replay.apply(from_item(item))
        except Exception as error:
            failed = error
            if described(error)[0] != OutOfMemory.__name__:
                raise RemoteError(f'{item[0]}: {error}') from error
        if failed is not None:
            self._failure = self._failure or described(failed)

    def make(self, item: tuple[Any, ...]) -> None:
        """Execute one item, and raise its error at once."""
        try:
            self.item(item)
        except Exception as error:
            self._note_failed(item, error)
            raise

    def item(self, item: Any) -> Any:
        """Execute one item of a message and return its result."""
        if type(item) is not tuple or not item or type(item[0]) is not str:
            raise RemoteError('malformed item: expected a tuple that begins with a string')
        kind, fields = item[0], item[1:]
        method = _ITEMS.get(kind)
        if method is not None:
            _check(kind, fields, method[1])
            return method[0](self, *fields)
        _check(kind[:80], fields[:3], (tuple, tuple, int))
        if not all(type(k) is tuple and len(k) == 2 for k in fields[1]):
            raise RemoteError('malformed item: keywords must be pairs')
        result = self.context.execute(kind, *fields[:3])
        if fields[3:] and fields[3:] != (result,):
            self._conform(kind, fields[2], result, fields[3])
        return result

    def _conform(self, op: str, first: int, made: Any, expected: Any) -> None:
        """Change the layout of an operator's results to the layout that the client has predicted.

        If that is impossible, free the results and raise RuntimeError.
        """
        pairs = list(enumerate(metas(made), first))
        wanted = list(metas(expected))
        if not operator(resolve(op)).view and _shapes(made) == _shapes(expected) and all(
                not meta.offset and dense(meta.shape, meta.stride) for meta in wanted):
            for (handle, _), meta in zip(pairs, wanted, strict=True):
                self.context.lay_out(handle, meta)
            return
        for handle, _ in pairs:
            self.context.free(handle)
        raise RuntimeError(f'{op} returned {made}, but the client expected {expected}')

    def _upload(self, handle: int, meta: Meta, data: Any) -> None:
        self.context.upload(handle, meta, data)

    def _keep(self, handle: int, meta: Meta, data: Any, digest: str) -> None:
        size = self.context.reserve(size_of(meta))      # few bytes can be a large tensor
        try:
            whole = decoded(meta, data)
            kept = self.weights.keep(whole, digest)
        except ValueError as error:
            raise RemoteError(str(error)) from None
        finally:
            self.context.credit(size)
        self.context.upload(handle, meta, whole if kept is None else kept, kept is not None)
        self.context.mark(handle, digest)

    def _download(self, handle: int) -> Any:
        return self.context.download(handle)

    def _find(self, handle: int, meta: Meta, digest: str) -> bool:
        kept = self.weights.find(digest, size_of(meta))
        if kept is not None:
            self.context.upload(handle, meta, kept, True)
            self.context.mark(handle, digest)
        return kept is not None

    def _free(self, handles: tuple[Any, ...]) -> None:
        for handle in handles:
            if type(handle) is not int:
                raise RemoteError('a handle must be an integer')
            self.context.free(handle)

    def _memory(self, handle: int) -> tuple[int, int, int]:
        return self.context.memory(handle)

    def _form(self, op: str, form: tuple[Any, ...]) -> None:
        if not all(type(text) is str for text in form):
            raise RemoteError('a form must be a tuple of strings')
        self.context.introduce(op, form)

    def _forms(self, forms: tuple[Any, ...]) -> tuple[bool, ...]:
        """Return for each (operator, form) whether calls need no other treatment here."""
        return tuple([self._has(*one) for one in forms])

    def _has(self, op: str, form: tuple[Any, ...]) -> bool:
        _check(FORM, (op, form), (str, tuple))
        try:
            self._form(op, form)
        except Refused:
            return False
        return op not in self.context.altered

    def _seed(self, seed: int) -> None:
        self.context.seed(seed)

    def _random(self, state: memoryview) -> bytes:
        generator = self.context.generator
        if state:
            generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        return bytes(generator.get_state().numpy())

    def _query(self, name: str) -> Any:
        return _answer(self.context, name)


_ITEMS: dict[str, tuple[Any, tuple[type, ...]]] = {
    HTOD: (Performer._upload, (int, Meta, memoryview)),
    KEEP: (Performer._keep, (int, Meta, memoryview, str)),
    DTOH: (Performer._download, (int,)),
    FIND: (Performer._find, (int, Meta, str)),
    FREE: (Performer._free, (tuple,)),
    MEMORY: (Performer._memory, (int,)),
    RANDOM: (Performer._random, (memoryview,)),
    SEED: (Performer._seed, (int,)),
    FORM: (Performer._form, (str, tuple)),
    FORMS: (Performer._forms, (tuple,)),
    QUERY: (Performer._query, (str,)),
}


def _shapes(described: Any) -> Any:
    """Return a result of `Context.execute` with (shape, dtype) in place of each Meta."""
    if type(described) is Meta:
        return described.shape, described.dtype
    return tuple(map(_shapes, described)) if type(described) is tuple else described


def _check(kind: str, fields: tuple[Any, ...], types: tuple[type, ...]) -> None:
    if tuple(type(f) for f in fields) != types:
        raise RemoteError(f'malformed {kind}: expected fields of types '
                          f'{", ".join(t.__name__ for t in types)}')


def _answer(context: Context, name: str) -> Any:
    device = context.device
    if device.type == 'cuda':
        free, total = torch.cuda.mem_get_info(device)
        name_of = torch.cuda.get_device_name(device)
        capability = torch.cuda.get_device_capability(device)
    else:
        free, total = context.limit - context.used, context.limit
        name_of, capability = 'CPU', (0, 0)
    answers = {'name': name_of, 'capability': capability, 'total': total, 'free': free,
               'used': context.used, 'current_device': 0, 'device_count': 1, 'synchronize': None}
    if name not in answers:
        raise RemoteError(f'unknown query {name[:40]!r}')
    return answers[name]
