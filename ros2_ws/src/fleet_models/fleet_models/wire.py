"""The messages of a session between a fleet's server and a reader of its model.

Each message is a kind, a byte, and what belongs to it. Server to reader: ANNOUNCE (JSON of an
`Announcement`), PART (digest, offset, total size, data, which `fleet_compute.inlets.shortened`).
Reader to server: WANT (digest, offset, length), DROP (answer no earlier question; each gets a PART
that has `GONE`), SAYS (JSON of what the reader does with versions, for people). An announcement
overtakes answers.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import typing
from dataclasses import dataclass
from typing import Any, NamedTuple

from fleet_env.versions import Version, description, version_from

from .errors import FollowError
from .parts import DIGEST

PROTOCOL = 3
ANNOUNCE, PART, WANT, SAYS, DROP = range(5)
PART_BYTES = 16 << 10      # maximum bytes of a part; on a slow link, an announcement waits for one
MOST_TEXT = 16 << 10       # maximum bytes of a message in JSON
GONE = (1 << 64) - 1       # total size of what the server does not have any more
MOST = max(MOST_TEXT, 1 + DIGEST + 16 + PART_BYTES)   # maximum bytes of a message
_WANT, _PART = struct.Struct(f'<B{DIGEST}sQI'), struct.Struct(f'<B{DIGEST}sQQ')


@dataclass(frozen=True)
class Announcement:
    """A version that the server offers now.

    ``size``: bytes of its file. ``index``: SHA-256 of its `parts.Index`, and ``index_size`` its
    bytes. ``pinned``: a person has chosen it, so it is taken whatever its accuracy is.
    """

    version: Version
    size: int
    index: str
    index_size: int
    pinned: bool = False


class Want(NamedTuple):
    """A question for a part of what has this SHA-256."""

    digest: bytes
    offset: int
    length: int


class Drop(NamedTuple):
    """The reader takes back its earlier questions; each is answered with `GONE`."""


class Part(NamedTuple):
    """The answer; ``total``: bytes of the whole, `GONE` if the server does not have it."""

    digest: bytes
    offset: int
    total: int
    data: memoryview


def announce(what: Announcement) -> bytes:
    """Return the message of an announcement."""
    fields = {f.name: getattr(what, f.name) for f in dataclasses.fields(what)}
    fields['version'] = description(what.version)
    return _text(ANNOUNCE, fields)


def says(what: dict[str, Any]) -> bytes:
    """Return the message in which a reader says what it does with versions."""
    return _text(SAYS, what)


def want(what: Want | Drop) -> bytes:
    """Return the message of a question."""
    return _WANT.pack(WANT, *what) if isinstance(what, Want) else bytes([DROP])


def part(digest: bytes, offset: int, total: int, data: Any = b'') -> bytes:
    """Return the message of an answer."""
    return _PART.pack(PART, digest, offset, total) + bytes(data)


def _text(kind: int, fields: dict[str, Any]) -> bytes:
    return bytes([kind]) + json.dumps(fields).encode()


def read(message: bytes) -> Announcement | Part | Want | Drop | dict[str, Any]:
    """Return what a message says; of SAYS, the dict.

    :raises FollowError: it is not a message of this protocol.
    """
    kind = message[0] if message else -1
    if kind == WANT and len(message) == _WANT.size:
        return Want(*_WANT.unpack(message)[1:])
    if kind == DROP and len(message) == 1:
        return Drop()
    if kind == PART and len(message) >= _PART.size:
        _, digest, offset, total = _PART.unpack_from(message)
        return Part(digest, offset, total, memoryview(message)[_PART.size:])
    if kind in (ANNOUNCE, SAYS) and len(message) <= MOST_TEXT:
        try:
            fields = json.loads(message[1:])
            if not isinstance(fields, dict):
                raise ValueError('it must be an object')
            return _announcement(fields) if kind == ANNOUNCE else fields
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FollowError(f'malformed message of kind {kind}: {error}') from None
    raise FollowError(f'malformed message of kind {kind}, {len(message)} bytes')


def _announcement(fields: dict[str, Any]) -> Announcement:
    version = version_from(fields.pop('version'))
    for name, kind in typing.get_type_hints(Announcement).items():
        if name != 'version' and type(fields[name]) is not kind:
            raise ValueError(f'{name} must be of type {kind.__name__}')
    if fields['size'] < 0 or fields['index_size'] < 0 or len(fields['index']) != 2 * DIGEST:
        raise ValueError('sizes must not be negative, and digests SHA-256')
    return Announcement(version, **{f.name: fields[f.name]
                                    for f in dataclasses.fields(Announcement)[1:]})
