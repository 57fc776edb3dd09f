"""The fleet key: which messages it proves, and how.

A fleet key is 32 random bytes. Each robot's own key is derived from it, so that a lost robot does
not reveal the key of another. When a robot registers, both sides derive two session keys from the
robot's key and the random numbers of the two processes, so messages of one session are invalid in
another. Every message carries a tag of 16 bytes over its typed fields, the same for every
implementation of DDS: keyed BLAKE2b (RFC 7693, `hashlib`); for large chunks GMAC, which is
AES-256-GCM without encryption (NIST SP 800-38D, package `cryptography`), as processors have
instructions for it. Its nonce is the number of the chunk, which no other chunk has with the same
key. The key proves who has sent a message; it hides nothing.

A fleet status is for all, also for robots that have not registered with this process, so it is
signed: Ed25519 (RFC 8032). A robot's key file holds the public half, which cannot sign.

Within a session a repeated message does no harm: transfers are numbered, chunks count once, and
statuses carry a counter. A registration names the server process that it is meant for, which
accepts each worker process once; control calls carry the time.
"""

from __future__ import annotations

import array
import hashlib
import hmac
import os
import secrets
import stat
import struct
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from fleet_env.errors import why_unread
from rog_core.errors import ConfigError, RemoteProtocolError
from rog_core.protocol.messages import Ack, Chunk
from rog_core.server.admission import MEMBERS

TAG = 16       # bytes of a tag
SECRET = 32    # bytes of a key
LARGE = 4096   # bytes of a chunk from which GMAC is faster than BLAKE2b
MAGIC = 'rog-key-1'


class SealError(RemoteProtocolError):
    """A message without the tag that the fleet's key gives it; nothing of it was applied."""


# -- keys ------------------------------------------------------------------------------------------

def derived(secret: bytes, *parts: str | int) -> bytes:
    """Return the key derived with these words and 64-bit numbers, in this order."""
    text = b''.join(_length(p.encode()) if isinstance(p, str) else b'#' + p.to_bytes(8, 'little')
                    for p in parts)
    return hashlib.blake2b(text, key=secret, digest_size=SECRET, person=b'rog key').digest()


def _length(data: bytes) -> bytes:
    return struct.pack('<I', len(data)) + data


def process_of(incarnation: int) -> int:
    """Return a public number of a process, which does not reveal its secret incarnation."""
    digest = hashlib.blake2b(incarnation.to_bytes(8, 'little'), digest_size=8, person=b'rog life')
    return int.from_bytes(digest.digest(), 'little')


class Key(NamedTuple):
    """A key file's content. ``robot``: whose key it is; empty: the fleet's.

    ``public``: 32 bytes that check the server's signatures; empty in the fleet's, which signs.
    """

    secret: bytes
    robot: str = ''
    public: bytes = b''

    def of(self, robot: str) -> Key:
        """Return the key of one robot, from its own or from the fleet's."""
        if self.robot not in ('', robot):
            raise ConfigError(f"this is the key of '{self.robot}', not of '{robot}'; write its own "
                              f'with rog key FILE --robot {robot}')
        return self if self.robot else Key(derived(self.secret, 'robot', robot), robot,
                                           Signature(self).public)

    def control(self) -> bytes:
        """Return the key of control calls, which only the fleet's key gives."""
        if self.robot:
            raise ConfigError(f"this is the key of '{self.robot}'; this needs the fleet's own")
        return derived(self.secret, 'control')

    def text(self) -> str:
        """Return the text of the key file."""
        return ' '.join((MAGIC, self.robot or '-', self.secret.hex(),
                         *[self.public.hex()] * bool(self.robot))) + '\n'


def new_key() -> Key:
    """Return a new fleet key."""
    return Key(secrets.token_bytes(SECRET))


def write_key(path: Path, key: Key) -> None:
    """Write a new file that only its owner can read; never replace an existing file."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f'{path} is there already; a key is never replaced') from None
    except OSError as error:
        raise ConfigError(f'{path} cannot be written: {error.strerror}') from None
    with os.fdopen(handle, 'w') as file:
        file.write(key.text())


def read_key(path: str | Path) -> Key:
    """Read a key file; `ConfigError` says what is wrong with it."""
    try:
        with open(path, encoding='ascii') as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            words = file.read(1024).split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f'the key {path} cannot be read: {why_unread(error, path)}; rog key '
                          'makes one') from None
    if mode & 0o077:
        raise ConfigError(f'the key {path} can be read by others (mode {mode:o}); chmod 600 {path}')
    try:
        magic, robot, *parts = words
        key = Key(bytes.fromhex(parts[0]), '' if robot == '-' else robot,
                  *map(bytes.fromhex, parts[1:]))
        if magic != MAGIC or [*map(len, (key.secret, key.public))] != [SECRET,
                                                                       SECRET * bool(key.robot)]:
            raise ValueError
    except (ValueError, IndexError, TypeError):
        raise ConfigError(f'{path} is not a key of rog key, or is damaged') from None
    return key


# -- what is proved --------------------------------------------------------------------------------

def canonical(message: Any) -> bytes:
    """Return the bytes of all fields of a ROS message but ``tag``, whoever made its class."""
    kind: Any = type(message)
    return b''.join([part(message) for part in _parts(kind)])


_SCALARS = {'boolean': '?', 'float': 'f', 'double': 'd', 'octet': 'B'} | {
    f'{u}int{bits}': 'Qq'[not u] for u in ('', 'u') for bits in (8, 16, 32, 64)}


@lru_cache(maxsize=64)
def _parts(kind: Any) -> list[Callable[[Any], bytes]]:
    """Return functions that give the bytes of the fields of a message, in their order."""
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
        if field == 'tag':
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


# The numbers under the tag of a chunk and of an acknowledgement. The first 12 bytes of a chunk's,
# padding included, are its nonce: they number it within a session and direction.
_CHUNK = struct.Struct('<IIBxxxBHQII').pack
_NONCE = slice(12)
_ACK = struct.Struct('<3sIBQIIQ').pack


def _cryptography() -> tuple[Any, Any, Any]:
    """Return what we use of the package `cryptography`, which only a fleet with a key needs."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ed25519
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigError('a fleet with a key needs the Python package cryptography; install '
                          'it here: pip install cryptography, or the package '
                          'python3-cryptography of the system') from None
    return AESGCM, ed25519, InvalidSignature


class Side:
    """The keys with which one side of a session seals what it sends."""

    def __init__(self, key: bytes) -> None:
        self._begin = hashlib.blake2b(key=derived(key, 'messages'), digest_size=TAG).copy
        aead, _, _ = _cryptography()
        self._gmac = aead(derived(key, 'chunks')).encrypt

    def tag_of(self, message: Any, value: Any = None) -> bytes:
        """Return the tag of a message of ROS, or of a `Chunk` or an `Ack`.

        ``value``: the message converted to a `Chunk` or an `Ack`, if known. These are many, and
        reading a field of a ROS message costs more than one of a value.
        """
        content = message if value is None else value
        kind = type(content)
        if kind is Chunk:
            transfer, ids = content.transfer, content.ids
            header = _CHUNK(transfer.attempt, content.sequence, transfer.kind, content.codec,
                            content.segments, transfer.incarnation, transfer.iteration, ids.size)
            proved = b''.join((header, ids, content.values))
            if len(proved) >= LARGE:
                return self._gmac(header[_NONCE], b'', proved)
        elif kind is Ack:
            transfer = content.transfer
            proved = _ACK(b'ack', transfer.attempt, transfer.kind, transfer.incarnation,
                          transfer.iteration, content.next_expected, content.received_mask)
        else:
            proved = canonical(message)
        digest = self._begin()
        digest.update(proved)
        return digest.digest()

    def check(self, message: Any, value: Any = None) -> None:
        """Raise `SealError` unless a message has the tag that the keys give it; see `tag_of`."""
        _check(message, self.tag_of(message, value))


def tag_of(key: bytes, message: Any, more: bytes = b'') -> bytes:
    """Return the tag of a message outside a session; ``more``: bytes that the tag also proves."""
    return hashlib.blake2b(canonical(message) + more, key=key, digest_size=TAG).digest()


def check(key: bytes, message: Any, more: bytes = b'') -> None:
    """Raise `SealError` unless the message has the tag that the key gives it."""
    _check(message, tag_of(key, message, more))


def only_proved(future: Any, proves: Callable[[Any], bool]) -> None:
    """Let only an answer that ``proves`` accepts complete a call.

    Anyone can offer a service of the same name, and its answer may arrive first. ROS 2 passes on
    all answers to a call as long as its future is pending.
    """
    complete = future.set_result

    def set_result(answer: Any) -> None:
        if proves(answer):
            complete(answer)

    future.set_result = set_result


def _check(message: Any, tag: bytes) -> None:
    if not hmac.compare_digest(message.tag, tag):
        raise SealError('its tag is not made with our key, or it was changed or repeated'
                        if len(message.tag) else
                        'it carries no tag, but this side has a key (security.key)')


class Signature:
    """Signs and checks the statuses of a fleet's server; a robot's ``key`` can only check."""

    def __init__(self, key: Key) -> None:
        _, ed25519, self._invalid = _cryptography()
        self._private = None
        if key.robot:
            self.public = key.public
        else:
            self._private = ed25519.Ed25519PrivateKey.from_private_bytes(
                derived(key.secret, 'statuses'))
            self.public = self._private.public_key().public_bytes_raw()
        self._verify = ed25519.Ed25519PublicKey.from_public_bytes(self.public).verify

    def sign(self, status: Any) -> None:
        """Give a status its signature."""
        assert self._private is not None, 'a robot cannot sign'
        status.tag = array.array('B', self._private.sign(canonical(status)))

    def proves(self, status: Any) -> bool:
        """Whether a server with the fleet's key has sent this status, at whatever time."""
        if len(status.robots) > MEMBERS:  # a check takes longer for a longer status
            return False
        try:
            self._verify(bytes(status.tag), canonical(status))
        except self._invalid:
            return False
        return True


class Session:
    """The keys of both sides of a session; ``session``: its number, which transfers carry."""

    def __init__(self, key: Key, worker: int, server: int) -> None:
        self.session = worker ^ server
        self.to_server = Side(derived(key.secret, 'to server', worker, server))
        self.to_robot = Side(derived(key.secret, 'to robot', worker, server))


def sealed(key: Side | bytes | None, message: Any, more: bytes = b'') -> Any:
    """Return the message with its tag; without a key, as it is."""
    if key is not None:
        tag = key.tag_of(message) if isinstance(key, Side) else tag_of(key, message, more)
        message.tag = array.array('B', tag)
    return message
