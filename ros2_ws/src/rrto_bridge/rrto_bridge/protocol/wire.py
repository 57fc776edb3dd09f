"""Encodes values (calls, metas, scalars) as bytes, and decodes them without pickle.

The decoder checks every length before it uses the length.

An encoded value consists of a tag byte and the content. Integers have 64 bits, little endian;
strings are UTF-8. Tuples nest at most `DEPTH` deep. The size of a message limits the size of its
decoded value.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from .errors import RemoteError
from .record import Meta, Persistent, Ref, Special
from .sequence import Bound, Own

DEPTH = 12
MAX_STRING = 1 << 16

_INT = struct.Struct('<q')
_FLOAT = struct.Struct('<d')
_COMPLEX = struct.Struct('<dd')
_COUNT = struct.Struct('<I')

_INDEXED: dict[bytes, Any] = {b'r': Ref, b'o': Own, b'p': Persistent, b'n': Bound}
_NAMED: dict[bytes, Any] = {b'D': Special, b'M': Meta}
_TAGS = {kind: tag for tag, kind in (_INDEXED | _NAMED).items()}


def encode(value: Any) -> bytes:
    """Return the bytes of a scalar, str, bytes, Ref, role, Special, Meta, or tuple of these.

    Raises TypeError for any other value, OverflowError for an integer beyond 64 bits.
    """
    out = bytearray()
    _encode(value, out)
    return bytes(out)


def encode_tuple(encoded: Sequence[bytes]) -> bytes:
    """Return the bytes of a tuple; `encoded`: the bytes of its items."""
    return b'(' + _COUNT.pack(len(encoded)) + b''.join(encoded)


def _encode(value: Any, out: bytearray) -> None:
    kind = type(value)
    if kind is int:
        if not -1 << 63 <= value < 1 << 63:
            raise OverflowError(f'an integer must fit into 64 bits, got {value}')
        out += b'i' + _INT.pack(value)
    elif kind is tuple:
        out += b'(' + _COUNT.pack(len(value))
        for item in value:
            _encode(item, out)
    elif kind is Ref:
        out += b'r' + _INT.pack(value.handle)
    elif kind is Own:
        out += b'o' + _INT.pack(value.slot)
    elif kind is Persistent:
        out += b'p' + _INT.pack(value.handle)
    elif kind is Bound:
        out += b'n' + _INT.pack(value.index)
    elif value is None:
        out += b'N'
    elif kind is bool:
        out += b'T' if value else b'F'
    elif kind is float:
        out += b'f' + _FLOAT.pack(value)
    elif kind is str:
        data = value.encode()
        if len(data) > MAX_STRING:
            raise OverflowError(f'a string must have at most {MAX_STRING} bytes, got {len(data)}')
        out += b's' + _COUNT.pack(len(data)) + data
    elif kind is bytes or kind is memoryview or kind is bytearray:
        out += b'b' + _COUNT.pack(len(value)) + value
    elif kind is complex:
        out += b'c' + _COMPLEX.pack(value.real, value.imag)
    elif kind is Meta or kind is Special:
        out += _TAGS[kind]
        _encode(tuple(value), out)
    else:
        raise TypeError(f'{kind.__name__} cannot be sent')


def decode(data: bytes | memoryview) -> Any:
    """Return the value that `data` encodes.

    Raises RemoteError if `data` is invalid, or if bytes follow the value.
    """
    reader = _Reader(memoryview(data))
    value = reader.value(0)
    if reader.at != len(reader.data):
        raise RemoteError(f'{len(reader.data) - reader.at} bytes follow the value')
    return value


class _Reader:
    """Reads values from a buffer, beginning at position `at`."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> memoryview:
        end = self.at + size
        if end > len(self.data):
            raise RemoteError(f'truncated message: {end - len(self.data)} bytes are missing')
        piece = self.data[self.at:end]
        self.at = end
        return piece

    def count(self, least: int) -> int:
        """Read the number of the items that follow; each item has at least `least` bytes."""
        count: int = _COUNT.unpack(self.take(4))[0]
        if count * least > len(self.data) - self.at:
            raise RemoteError(f'{count} items announced, {len(self.data) - self.at} bytes left')
        return count

    def value(self, depth: int) -> Any:
        if depth > DEPTH:
            raise RemoteError(f'values must nest at most {DEPTH} deep')
        tag = bytes(self.take(1))
        if tag == b'i':
            return _INT.unpack(self.take(8))[0]
        if tag == b'(':
            return tuple([self.value(depth + 1) for _ in range(self.count(1))])
        if tag in _INDEXED:
            return _INDEXED[tag](_INT.unpack(self.take(8))[0])
        if tag in b'NTF':
            return None if tag == b'N' else tag == b'T'
        if tag == b'f':
            return _FLOAT.unpack(self.take(8))[0]
        if tag == b's':
            return self.text()
        if tag == b'b':
            return self.take(self.count(1))
        if tag == b'c':
            return complex(*_COMPLEX.unpack(self.take(16)))
        if tag in _NAMED:
            return self.named(tag, depth)
        raise RemoteError(f'unknown tag {tag!r}')

    def text(self) -> str:
        try:
            return str(self.take(self.count(1)), 'utf-8')
        except UnicodeDecodeError as error:
            raise RemoteError(f'a string must be UTF-8: {error}') from error

    def named(self, tag: bytes, depth: int) -> Any:
        fields = self.value(depth + 1)
        kind = _NAMED[tag]
        if type(fields) is not tuple or len(fields) != len(kind._fields):
            raise RemoteError(f'malformed {kind.__name__}: expected {len(kind._fields)} fields')
        made = kind(*fields)
        if not (_is_meta(made) if isinstance(made, Meta) else _is_plain(made)):
            raise RemoteError(f'malformed {kind.__name__}: invalid field types')
        return made


def _is_meta(meta: Meta) -> bool:
    return (_are_sizes(meta.shape) and _are_sizes(meta.stride) and type(meta.dtype) is str
            and len(meta.shape) == len(meta.stride) and type(meta.offset) is int
            and meta.offset >= 0)


def _are_sizes(value: Any) -> bool:
    return type(value) is tuple and all(type(n) is int and n >= 0 for n in value)


def _is_plain(made: Special) -> bool:
    return type(made.kind) is str and type(made.name) is str
