"""Seals ROS messages and calls of services with the key of a team (`fleet_link.seal`).

A message whose type has a field ``tag`` stays readable: the tag proves all its other fields. A
message without it has a ``packet`` number; its field ``values`` or ``data`` is encrypted, and the
other fields are proved with it. A call and its answer are encrypted whole, in the field ``sealed``
of a request and a response that are empty otherwise.
"""

from __future__ import annotations

import array
import struct
import threading
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from fleet_link.errors import SealError
from fleet_link.seal import NONCE, Answerer, Call, Caller, Seal
from rclpy.node import Node
from rclpy.serialization import deserialize_message, serialize_message
from rclpy.task import Future

# Fields that make the nonce of a message with a `packet` number. In one direction of a session, no
# two messages have the same numbers in those of these fields that they have.
_NONCE = ('packet', 'attempt', 'kind', 'request', 'number')


def octets(data: Any) -> array.array[int]:
    """Return bytes as an `array`, which rclpy accepts without a check of each element."""
    made = array.array('B')
    made.frombytes(data)
    return made


def seal(key: Seal | None, message: Any) -> Any:
    """Seal a ROS message if there is a key; return the message."""
    if key is not None:
        form = _form_of(message)
        if form.content:
            content = key.encrypted(form.nonce(message), getattr(message, form.content),
                                    form.header(message))
            setattr(message, form.content, octets(content))
        else:
            message.tag = octets(key.tag(form.header(message)))
    return message


def unseal(key: Seal | None, message: Any) -> None:
    """Check the seal of a ROS message, and decrypt its content, if there is a key.

    Raises SealError, and changes nothing, if the message was not sealed with this key, or was taken
    before.
    """
    if key is None:
        return
    form = _form_of(message)
    if form.content:
        content = key.decrypted(form.nonce(message), getattr(message, form.content),
                                form.header(message))
        key.take_once(message.packet)
        setattr(message, form.content, octets(content))
    else:
        key.check(bytes(message.tag), form.header(message))


class _Form(NamedTuple):
    """How messages of a type are sealed.

    ``content``: the field that is encrypted, '' if the message stays readable. ``header(message)``
    returns the bytes that are proved, ``nonce(message)`` the nonce of the content.
    """

    content: str
    header: Callable[[Any], bytes]
    nonce: Callable[[Any], bytes]


def _form_of(message: Any) -> _Form:
    kind: Any = type(message)
    return _form(kind)


@lru_cache(maxsize=64)
def _form(kind: Any) -> _Form:
    fields = list(kind.get_fields_and_field_types())
    if 'tag' in fields:
        return _Form('', canonical, lambda message: b'')
    names = [name for name in _NONCE if name in fields]
    pack, get = struct.Struct(f'<{len(names)}I{NONCE - 4 * len(names)}x').pack, attrgetter(*names)
    content = 'values' if 'values' in fields else 'data'
    parts = _parts(kind, content)
    return _Form(content, lambda m: b''.join([part(m) for part in parts]),
                 lambda m: pack(*get(m)))


def _length(data: bytes) -> bytes:
    return struct.pack('<I', len(data)) + data


def canonical(message: Any) -> bytes:
    """Return the bytes of a ROS message: the name of its type, and all fields except ``tag``.

    The bytes do not depend on the version of ROS 2 or on the DDS that made the message.
    """
    kind: Any = type(message)
    return b''.join([part(message) for part in _parts(kind)])


_SCALARS = {'boolean': '?', 'float': 'f', 'double': 'd', 'octet': 'B'} | {
    f'{u}int{bits}': 'Qq'[not u] for u in ('', 'u') for bits in (8, 16, 32, 64)}


@lru_cache(maxsize=64)
def _parts(kind: Any, without: str = 'tag') -> list[Callable[[Any], bytes]]:
    """Return the functions that make the parts of `canonical`, in order.

    The first part is the name of the message type; the other parts are its fields, except
    ``without``.
    """
    name = _length(kind.__name__.encode())
    parts: list[Callable[[Any], bytes]] = [lambda message: name]
    run: list[tuple[str, str]] = []

    def end_of_run() -> None:
        if run:
            names, codes = zip(*run, strict=True)
            pack, get = struct.Struct('<' + ''.join(codes)).pack, attrgetter(*names)
            parts.append((lambda m: pack(*get(m))) if len(names) > 1 else lambda m: pack(get(m)))
            run.clear()

    fields: dict[str, str] = kind.get_fields_and_field_types()
    for field, idl in fields.items():
        if field == without:
            continue
        if idl in _SCALARS:
            run.append((field, _SCALARS[idl]))
            continue
        end_of_run()
        parts.append(_part(attrgetter(field), idl))
    end_of_run()
    return parts


def _part(get: Callable[[Any], Any], idl: str) -> Callable[[Any], bytes]:
    if idl.startswith('string'):
        return lambda m: _length(get(m).encode('utf-8', 'surrogatepass'))
    if not idl.startswith('sequence<'):
        return lambda m: canonical(get(m))
    inner = idl[len('sequence<'):].rstrip('>').partition(',')[0]
    if inner in ('uint8', 'octet'):
        return lambda m: _length(bytes(memoryview(get(m))))
    if inner in _SCALARS:
        code = _SCALARS[inner]
        return lambda m: _length(struct.pack(f'<{len(get(m))}{code}', *get(m)))
    one = _part(lambda item: item, inner)
    return lambda m: struct.pack('<I', len(get(m))) + b''.join(map(one, get(m)))


# -- calls -----------------------------------------------------------------------------------------

AGAIN = 3    # maximum repetitions of a call that was meant for another process of the server


class ServiceClient:
    """A client of a ROS service whose calls are sealed if there is a key.

    ``caller``: seals the calls; None: there is no key. Answers that are not sealed by the server
    are ignored: anyone can offer a service of this name, and answer first. ``refused(reason)`` is
    called for each of them.
    """

    def __init__(self, node: Node, kind: Any, name: str, caller: Caller | None,
                 refused: Callable[[str], None]) -> None:
        self._node, self._client = node, node.create_client(kind, name)
        self._kind, self._caller, self._refused = kind, caller, refused
        self._pending: dict[Future, Future] = {}   # future of the caller -> future of the call
        self.srv_name: str = node.resolve_service_name(name)
        self.service_is_ready = self._client.service_is_ready
        self.wait_for_service = self._client.wait_for_service

    def call_async(self, request: Any) -> Future:
        """Call the service; return the future of its response."""
        if self._caller is None:
            return self._client.call_async(request)
        future: Future = Future()
        self._ask(self._caller, serialize_message(request), future, AGAIN)
        return future

    def call(self, request: Any, timeout_sec: float) -> Any:
        """Call the service; return its response, or None if none came within ``timeout_sec``."""
        done = threading.Event()
        future = self.call_async(request)
        future.add_done_callback(lambda _: done.set())
        done.wait(timeout_sec)
        self.remove_pending_request(future)
        return future.result() if future.done() else None

    def remove_pending_request(self, future: Future) -> None:
        """Forget a call."""
        self._client.remove_pending_request(self._pending.pop(future, future))

    def close(self) -> None:
        """Remove the client from its node."""
        self._pending.clear()
        self._node.destroy_client(self._client)

    def _ask(self, caller: Caller, request: bytes, future: Future, again: int) -> None:
        call = caller.call(self.srv_name, request)
        asked = self._client.call_async(self._kind.Request(sealed=octets(call)))
        self._pending[future] = asked

        def on_answer(answer: Any) -> None:
            try:
                response = caller.answer(self.srv_name, call, bytes(answer.sealed))
            except SealError as error:
                self._refused(f'an answer to a call of {self.srv_name} was ignored: {error}')
                return
            if self._pending.get(future) is not asked:
                return
            if response is not None:
                self.remove_pending_request(future)
                future.set_result(deserialize_message(response, self._kind.Response))
            elif again:
                self.remove_pending_request(future)
                self._ask(caller, request, future, again - 1)

        # While a future is pending, rclpy gives it every answer to its call.
        asked.set_result = on_answer  # type: ignore[method-assign]


def serve(node: Node, kind: Any, name: str, answer: Callable[[Any, Any, Call | None], Any],
          answerer: Answerer | None, refused: Callable[[str], None]) -> None:
    """Offer a ROS service; if there is a key, answer only calls that are sealed with it.

    ``answer(request, response, call)`` fills the response and returns it; ``call`` says who has
    sealed the request, None without a key. ``refused(reason)`` is called for each other call.
    """
    if answerer is None:
        node.create_service(kind, name, lambda request, response: answer(request, response, None))
        return

    def on_call(request: Any, response: Any) -> Any:
        sealed = bytes(request.sealed)
        try:
            call = answerer.opened(node.resolve_service_name(name), sealed)
        except SealError as error:
            refused(f'refused a call of {name}: {error}')
            if not sealed:
                setattr(response, 'reason' if hasattr(response, 'reason') else 'message', UNSEALED)
            return response
        filled = b''
        if call.request is not None:
            try:
                asked = deserialize_message(call.request, kind.Request)
            except Exception as error:   # rclpy's errors have no common base class
                refused(f'refused a call of {name} by {call.robot}: {error}')
                return response
            filled = serialize_message(answer(asked, kind.Response(), call))
        response.sealed = octets(answerer.answer(call, filled))
        return response

    node.create_service(kind, name, on_call)


# What a caller without a key is told. It proves nothing, so a caller with a key never sees it.
UNSEALED = ('the server has a key: make one for this robot (rog key FILE --robot NAME), and give '
            'it by security.key, --key or FLEET_KEY')
