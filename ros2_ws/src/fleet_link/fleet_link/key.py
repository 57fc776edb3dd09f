"""The key of a team, the keys of its robots, and the files of both.

A team's key is 32 random bytes. Each robot has its own key, which is derived from the team's key
and its name, so that a stolen robot does not reveal the key of another robot.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import struct
from pathlib import Path
from typing import Any, NamedTuple

from .errors import KeyFileError

SECRET = 32    # bytes of a key
MAGIC = 'rog-key-1'


def derived(secret: bytes, *parts: str | int) -> bytes:
    """Return the key that is derived from ``secret`` and ``parts`` (texts and 64-bit numbers)."""
    text = b''.join(_length(p.encode()) if isinstance(p, str) else b'#' + p.to_bytes(8, 'little')
                    for p in parts)
    return hashlib.blake2b(text, key=secret, digest_size=SECRET, person=b'rog key').digest()


def _length(data: bytes) -> bytes:
    return struct.pack('<I', len(data)) + data


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

        :raises KeyFileError: this key belongs to another robot.
        """
        if self.robot not in ('', robot):
            raise KeyFileError(f"this is the key of '{self.robot}', not of '{robot}'; write its "
                               f'own with rog key FILE --robot {robot}')
        return self if self.robot else Key(self.secret_of(robot), robot, Signer(self).public)

    def secret_of(self, robot: str) -> bytes:
        """Return the secret of the key of ``robot``.

        A holder of the fleet key can, or of this robot's key.
        """
        if self.robot and self.robot == robot:
            return self.secret
        return derived(self.own().secret, 'robot', robot)

    def control(self) -> bytes:
        """Return the key of control calls; only a holder of the fleet key can derive it."""
        return derived(self.own().secret, 'control')

    def own(self) -> Key:
        """Return this key if it is the fleet's own, which a server needs."""
        if self.robot:
            raise KeyFileError(f"this is the key of '{self.robot}'; this needs the fleet's own")
        return self

    def of_client(self, name: str) -> Key:
        """Return the key of the robot that a client belongs to; see `may_be`."""
        return self if may_be(self.robot, name) else self.of(name)

    def text(self) -> str:
        """Return the text of the key file."""
        return ' '.join((MAGIC, self.robot or '-', self.secret.hex(),
                         *[self.public.hex()] * bool(self.robot))) + '\n'


def may_be(robot: str, client: str) -> bool:
    """Return whether a client of this name may belong to a robot.

    It has the robot's name, or is inside the robot's namespace (robot1/model2).
    """
    return robot != '' and f'{client}/'.startswith(f'{robot}/')


def new_key() -> Key:
    """Return a new fleet key."""
    return Key(secrets.token_bytes(SECRET))


def write_key(path: Path, key: Key) -> None:
    """Write a new key file that only its owner can read; never replace an existing file."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise KeyFileError(f'{path} is there already; a key is never replaced') from None
    except OSError as error:
        raise KeyFileError(f'{path} cannot be written: {error.strerror}') from None
    with os.fdopen(handle, 'w') as file:
        file.write(key.text())


def read_key(path: str | Path) -> Key:
    """Read a key file.

    :raises KeyFileError: the file cannot be read, other users can read it, or it is not a key.
    """
    try:
        with open(path, encoding='ascii') as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            words = file.read(1024).split()
    except OSError as error:
        why = f'there is no such file in {Path(path).absolute().parent}' if isinstance(
            error, FileNotFoundError) else error.strerror
        raise KeyFileError(f'the key {path} cannot be read: {why}; rog key makes one') from None
    except UnicodeDecodeError:
        words, mode = [], 0
    if mode & 0o077:
        raise KeyFileError(f'the key {path} can be read by others (mode {mode:o}); chmod 600 '
                           f'{path}')
    try:
        magic, robot, *parts = words
        key = Key(bytes.fromhex(parts[0]), '' if robot == '-' else robot,
                  *map(bytes.fromhex, parts[1:]))
        if magic != MAGIC or [*map(len, (key.secret, key.public))] != [SECRET,
                                                                       SECRET * bool(key.robot)]:
            raise ValueError
    except (ValueError, IndexError, TypeError):
        raise KeyFileError(f'{path} is not a key of rog key, or is damaged') from None
    return key


def cryptography() -> tuple[Any, Any, Any]:
    """Return AESGCM, ed25519 and the module `exceptions` of the package `cryptography`.

    Only a team with a key needs this package, so it is imported here.
    """
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives.asymmetric import ed25519
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise KeyFileError('a key needs the Python package cryptography; install it here: pip '
                           'install cryptography, or the package python3-cryptography of the '
                           'system') from None
    return AESGCM, ed25519, exceptions


class Signer:
    """Makes and checks signatures of the server (Ed25519, RFC 8032); a robot can only check."""

    def __init__(self, key: Key) -> None:
        _, ed25519, self._errors = cryptography()
        self._private = None
        if key.robot:
            self.public = key.public
        else:
            self._private = ed25519.Ed25519PrivateKey.from_private_bytes(
                derived(key.secret, 'statuses'))
            self.public = self._private.public_key().public_bytes_raw()
        self._verify = ed25519.Ed25519PublicKey.from_public_bytes(self.public).verify

    def sign(self, content: bytes) -> bytes:
        """Return the signature of ``content``, 64 bytes."""
        assert self._private is not None, 'a robot cannot sign'
        signature: bytes = self._private.sign(content)
        return signature

    def proves(self, signature: bytes, content: bytes) -> bool:
        """Return whether a server with the team's key has signed ``content``."""
        try:
            self._verify(signature, content)
        except self._errors.InvalidSignature:
            return False
        return True
