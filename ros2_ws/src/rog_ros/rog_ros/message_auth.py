"""The fleet key: it proves who has sent a message. It does not hide the content.

A fleet key is 32 random bytes. Each robot has its own key, which is derived from the fleet key, so
that a stolen robot does not reveal the key of another robot. When a robot registers, both sides
derive two session keys from the robot's key and the random numbers of the two processes. So
messages of one session are invalid in another session.

Every message except the fleet status carries a tag of 16 bytes. The tag is computed over the typed
fields of the message, so it is the same for every implementation of DDS. It is a keyed BLAKE2b hash
(RFC 7693, `hashlib`). For large chunks it is a GMAC, which is AES-256-GCM without encryption (NIST
SP 800-38D, package `cryptography`), because processors have instructions for it. The nonce of the
GMAC is made of the packet and the transfer of the chunk, never the same twice with one key.

All robots read the statuses of the fleet, also robots that have not registered yet. So these
statuses are signed with Ed25519 (RFC 8032). A robot's key file holds the public key, which can
check signatures but cannot sign.

A repeated message does no harm within a session: transfers are numbered, a chunk counts only once,
and statuses carry a counter. A registration names the server process for which it is meant, and the
server accepts each worker process only once. Control calls carry their time.
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
LARGE = 4096   # size in bytes from which GMAC is faster than BLAKE2b for a chunk
MAGIC = 'rog-key-1'


class SealError(RemoteProtocolError):
    """A message carries no valid tag, so no part of it was applied."""


# -- keys ------------------------------------------------------------------------------------------

def derived(secret: bytes, *parts: str | int) -> bytes:
    """Return the key that is derived from ``secret`` and ``parts`` (texts and 64-bit numbers)."""
    text = b''.join(_length(p.encode()) if isinstance(p, str) else b'#' + p.to_bytes(8, 'little')
                    for p in parts)
    return hashlib.blake2b(text, key=secret, digest_size=SECRET, person=b'rog key').digest()


def _length(data: bytes) -> bytes:
    return struct.pack('<I', len(data)) + data


def process_of(incarnation: int) -> int:
    """Return the public number of a process; it does not reveal the secret incarnation."""
    digest = hashlib.blake2b(incarnation.to_bytes(8, 'little'), digest_size=8, person=b'rog life')
    return int.from_bytes(digest.digest(), 'little')


class Key(NamedTuple):
    """The content of a key file.

    ``robot``: name of the robot that owns the key; empty in the fleet key. ``public``: 32
    bytes that check the signatures of the server. This field is empty in the fleet key,
    because the fleet key itself can make and check signatures.
    """

    secret: bytes
    robot: str = ''
    public: bytes = b''

    def of(self, robot: str) -> Key:
        """Return the key of ``robot``, which is derived from the fleet key.

        If this key is the key of ``robot`` already, return this key.

        :raises ConfigError: this key belongs to another robot.
        """
        if self.robot not in ('', robot):
            raise ConfigError(f"this is the key of '{self.robot}', not of '{robot}'; write its own "
                              f'with rog key FILE --robot {robot}')
        return self if self.robot else Key(derived(self.secret, 'robot', robot), robot,
                                           Signature(self).public)

    def control(self) -> bytes:
        """Return the key of control calls; only a holder of the fleet key can derive it."""
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
    """Write a new key file that only its owner can read; never replace an existing file."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f'{path} is there already; a key is never replaced') from None
    except OSError as error:
        raise ConfigError(f'{path} cannot be written: {error.strerror}') from None
    with os.fdopen(handle, 'w') as file:
        file.write(key.text())


def read_key(path: str | Path) -> Key:
    """Read a key file.

    :raises ConfigError: the file cannot be read, other users can read it, or it is not a key.
    """
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


# -- tags and signatures ---------------------------------------------------------------------------

def canonical(message: Any) -> bytes:
    """Return the bytes of a ROS message: the name of its type, and all fields except ``tag``.

    The bytes do not depend on the version of ROS 2 or on the DDS that made the message.
    """
    kind: Any = type(message)
    return b''.join([part(message) for part in _parts(kind)])


_SCALARS = {'boolean': '?', 'float': 'f', 'double': 'd', 'octet': 'B'} | {
    f'{u}int{bits}': 'Qq'[not u] for u in ('', 'u') for bits in (8, 16, 32, 64)}


@lru_cache(maxsize=64)
def _parts(kind: Any) -> list[Callable[[Any], bytes]]:
    """Return the functions that make the parts of `canonical`, in order.

    The first part is the name of the message type; the other parts are its fields.
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


# `_CHUNK` and `_ACK` pack the numbers over which the tags of a chunk and of an
# acknowledgement are computed. The first 12 bytes that `_CHUNK` packs, with padding, are
# the nonce of the chunk. No other chunk of the same session and direction begins with the
# same 12 bytes.
_CHUNK = struct.Struct('<IIBxxxBHQIII').pack
_NONCE = slice(12)
_ACK = struct.Struct('<3sQIQd').pack


def _cryptography() -> tuple[Any, Any, Any]:
    """Return AESGCM, ed25519 and InvalidSignature of the package `cryptography`.

    Only a fleet with a key needs this package, so it is imported here.
    """
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
    """The keys with which one side of a session makes the tags of its messages."""

    def __init__(self, key: bytes) -> None:
        self._begin = hashlib.blake2b(key=derived(key, 'messages'), digest_size=TAG).copy
        aead, _, _ = _cryptography()
        self._gmac = aead(derived(key, 'chunks')).encrypt

    def tag_of(self, message: Any, value: Any = None) -> bytes:
        """Return the tag of a ROS message, of a `Chunk` or of an `Ack`.

        :param value: the `Chunk` or `Ack` from which the ROS message was made, if it is known. Its
            fields are faster to read than the fields of the ROS message, and there are many chunks
            and acknowledgements.
        """
        content = message if value is None else value
        kind = type(content)
        if kind is Chunk:
            transfer, ids = content.transfer, content.ids
            header = _CHUNK(content.packet, transfer.attempt, transfer.kind, content.codec,
                            content.segments, transfer.incarnation, transfer.iteration, ids.size,
                            content.sequence)
            proved = b''.join((header, ids, content.values))
            if len(proved) >= LARGE:
                return self._gmac(header[_NONCE], b'', proved)
        elif kind is Ack:
            proved = _ACK(b'ack', content.incarnation, content.packet, content.mask,
                          content.arrived)
        else:
            proved = canonical(message)
        digest = self._begin()
        digest.update(proved)
        return digest.digest()

    def check(self, message: Any, value: Any = None) -> None:
        """Raise `SealError` unless the message carries the tag that `tag_of` returns for it."""
        _check(message, self.tag_of(message, value))


def tag_of(key: bytes, message: Any, more: bytes = b'') -> bytes:
    """Return the tag of a message outside a session; ``more``: bytes that the tag also covers."""
    return hashlib.blake2b(canonical(message) + more, key=key, digest_size=TAG).digest()


def check(key: bytes, message: Any, more: bytes = b'') -> None:
    """Raise `SealError` unless the message carries the tag that `tag_of` returns for it."""
    _check(message, tag_of(key, message, more))


def only_proved(future: Any, proves: Callable[[Any], bool]) -> None:
    """Change the future of a service call so that only an authenticated answer completes it.

    Anyone can offer a service with the name of the called service, and the answer of that service
    may arrive first. While the future is pending, ROS 2 gives it every answer to the call.

    :param proves: function that returns whether an answer is authenticated.
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
    """Signs and checks the statuses of a fleet's server; a robot's key can only check them."""

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
        """Sign ``status``: write the signature into its field ``tag``."""
        assert self._private is not None, 'a robot cannot sign'
        status.tag = array.array('B', self._private.sign(canonical(status)))

    def proves(self, status: Any) -> bool:
        """Return whether a server with the fleet key has signed this status, now or earlier."""
        # The time of a check grows with the length of the status, so refuse a status with too many
        # robots.
        if len(status.robots) > MEMBERS:
            return False
        try:
            self._verify(bytes(status.tag), canonical(status))
        except self._invalid:
            return False
        return True


class Session:
    """The keys of both sides of a session.

    ``session``: number of the session, which its transfers carry.

    :param worker, server: incarnations of the two processes.
    """

    def __init__(self, key: Key, worker: int, server: int) -> None:
        self.session = worker ^ server
        self.to_server = Side(derived(key.secret, 'to server', worker, server))
        self.to_robot = Side(derived(key.secret, 'to robot', worker, server))


def sealed(key: Side | bytes | None, message: Any, more: bytes = b'') -> Any:
    """Write the tag that ``key`` makes into the message, if there is a key; return the message.

    ``more``: bytes that the tag also covers; not used if ``key`` is a `Side`.
    """
    if key is not None:
        tag = key.tag_of(message) if isinstance(key, Side) else tag_of(key, message, more)
        message.tag = array.array('B', tag)
    return message
