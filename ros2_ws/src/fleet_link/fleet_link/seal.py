"""Seals what two processes say to each other: nobody else can read, change or repeat it.

Sealed content is encrypted by AES-256-GCM (NIST SP 800-38D), which also proves it, together with a
header that stays readable. Content that may be read by everybody is only proved, by a keyed BLAKE2b
hash (RFC 7693), which needs no nonce. Both sides of a session derive its keys from the robot's key
and random numbers of both, so nothing of a former session is accepted. Within a session everything
is numbered, and taken once.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass

from .arrivals import WIRE, Arrivals
from .errors import KeyFileError, SealError
from .key import cryptography, derived

TAG = 16       # bytes that proving adds
_NUMBER = struct.Struct('<I')  # number of a tag, its first bytes
NONCE = 12     # bytes of a nonce


class Seal:
    """Seals what one side of a session says; its peer opens it with an equal `Seal`.

    ``first``: number of the first tag. A process that goes on in another one's place needs a higher
    one than that process has used.
    """

    def __init__(self, key: bytes, first: int = 0) -> None:
        aead, _, exceptions = cryptography()
        cipher = aead(derived(key, 'content'))
        self._encrypt, self._decrypt = cipher.encrypt, cipher.decrypt
        self._invalid = exceptions.InvalidTag
        self._begin = hashlib.blake2b(key=derived(key, 'messages'),
                                      digest_size=TAG - _NUMBER.size).copy
        self._numbers = itertools.count(first)
        self._tags, self._packets = Arrivals(), Arrivals()   # of the peer

    def encrypted(self, nonce: bytes, content: bytes, header: bytes) -> bytes:
        """Return ``content`` encrypted, `TAG` bytes longer.

        ``nonce``: `NONCE` bytes, which must never be the same for two contents.
        """
        sealed: bytes = self._encrypt(nonce, content, header)
        return sealed

    def decrypted(self, nonce: bytes, sealed: bytes, header: bytes) -> bytes:
        """Return the content of what `encrypted` has returned.

        Raises SealError if it was not made with this key, nonce and header.
        """
        try:
            content: bytes = self._decrypt(nonce, sealed, header)
        except (self._invalid, ValueError):
            raise _unproved(len(sealed)) from None
        return content

    def take_once(self, packet: int) -> None:
        """Raise SealError if a packet of the peer with this number was taken before."""
        if not self._packets.is_new(packet):
            raise SealError('it is repeated')

    def tag(self, content: bytes) -> bytes:
        """Return the `TAG` bytes that prove ``content``; no two tags are the same."""
        return self._tag(_NUMBER.pack(next(self._numbers) % WIRE), content)

    def _tag(self, number: bytes, content: bytes) -> bytes:
        digest = self._begin()
        digest.update(number)
        digest.update(content)
        return number + digest.digest()

    def check(self, tag: bytes, content: bytes) -> None:
        """Raise SealError unless ``tag`` is a tag of ``content`` that was not taken before."""
        number = tag[:_NUMBER.size]
        if not hmac.compare_digest(tag, self._tag(number, content)):
            raise _unproved(len(tag))
        if not self._tags.is_new(*_NUMBER.unpack(number)):
            raise SealError('it is repeated')


def _unproved(nbytes: int) -> SealError:
    return SealError('it is not sealed with our key, or was changed' if nbytes else
                     'it is not sealed, but this side has a key (security.key)')


LAST_WORDS = 1 << 30   # number of the first tag of `Session.last_words`


class Session:
    """The seals of both sides of a session.

    ``secret``: the robot's key. ``robot``, ``server``: random numbers of the two processes, or of
    their parts of the session if a process has several.
    """

    def __init__(self, secret: bytes, robot: int, server: int) -> None:
        self.number = robot ^ server
        self.secrets = (derived(secret, 'to server', robot, server),
                        derived(secret, 'to robot', robot, server))
        self.to_server, self.to_robot = map(Seal, self.secrets)

    def last_words(self) -> Seal:
        """Return what seals the words to the robot of a process that speaks for a dead one."""
        return Seal(self.secrets[1], LAST_WORDS)


# -- calls -----------------------------------------------------------------------------------------

MOST_LIVES = 100_000    # number of processes of one robot whose calls a server answers


class Caller:
    """Seals the calls of one process of a robot to a server, and opens the answers.

    A call says for which process of the server it is meant, so that nobody can repeat the calls of
    a former session. The first call cannot know the process; its answer names it.

    ``secret``: the robot's key. ``life``: random number of this process. ``server``: random number
    of the server's process, 0 before the first answer.
    """

    def __init__(self, secret: bytes, robot: str, life: int) -> None:
        self._name = _text(robot)
        self._asks, self._answers = Seal(derived(secret, 'ask')), Seal(derived(secret, 'answer'))
        self._numbers = itertools.count()
        self.life, self.server = life, 0

    def call(self, service: str, request: bytes) -> bytes:
        """Return ``request`` sealed; ``service``: name of what is asked for."""
        nonce = secrets.token_bytes(NONCE)
        content = _CALL.pack(self.life, self.server, next(self._numbers)) + request
        return self._name + nonce + self._asks.encrypted(
            nonce, content, self._name + service.encode())

    def answer(self, service: str, call: bytes, sealed: bytes) -> bytes | None:
        """Return the response to ``call``, or None if the call must be made again.

        It must be made again if it was meant for another process of the server. Raises SealError if
        the answer is not the server's, or not an answer to this call.
        """
        about = call[len(self._name):][:NONCE] + service.encode()
        content = self._answers.decrypted(sealed[:NONCE], sealed[NONCE:], about)
        used, self.server = _ANSWER.unpack_from(content)
        return content[_ANSWER.size:] if used else None


@dataclass(frozen=True)
class Call:
    """A call that a robot has sealed.

    ``life``: random number of the robot's process. ``request``: None if the call was meant for
    another process of the server; then the answer says so.
    """

    robot: str
    life: int
    service: str
    nonce: bytes
    request: bytes | None


class Answerer:
    """Opens the calls of robots to one process of a server, and seals the answers.

    ``secret_of(robot)``: returns the robot's key. ``life``: random number of this process.
    """

    def __init__(self, secret_of: Callable[[str], bytes], life: int) -> None:
        self._secret_of, self.life = secret_of, life
        # robot -> random number of a process of it -> the numbers of the calls that it has made
        self._made: dict[str, dict[int, Arrivals]] = {}

    def opened(self, service: str, sealed: bytes) -> Call:
        """Open a call; raise SealError if a robot has not sealed it, or it is repeated."""
        size = 1 + sealed[0] if sealed else 0
        name, nonce = sealed[:size], sealed[size:size + NONCE]
        try:
            robot = name[1:].decode()
        except UnicodeDecodeError:
            raise _unproved(len(sealed)) from None
        try:
            content = Seal(derived(self._secret_of(robot), 'ask')).decrypted(
                nonce, sealed[size + NONCE:], name + service.encode())
        except (SealError, KeyFileError) as error:
            raise SealError(f'in the name of {robot[:80]!r}: {error}') from None
        life, server, number = _CALL.unpack_from(content)
        if server != self.life:
            return Call(robot, life, service, nonce, None)
        lives = self._made.setdefault(robot, {})
        if len(lives) >= MOST_LIVES and life not in lives:
            raise SealError(f'{MOST_LIVES} processes of {robot} have called this server, which '
                            'must be restarted now')
        if not lives.setdefault(life, Arrivals()).is_new(number):
            raise SealError('the call is repeated')
        return Call(robot, life, service, nonce, content[_CALL.size:])

    def answer(self, call: Call, response: bytes) -> bytes:
        """Return the sealed answer to ``call``."""
        nonce = secrets.token_bytes(NONCE)
        content = _ANSWER.pack(call.request is not None, self.life) + response
        return nonce + Seal(derived(self._secret_of(call.robot), 'answer')).encrypted(
            nonce, content, call.nonce + call.service.encode())

    def session(self, call: Call, server: int) -> Session:
        """Return the seals of a session with the process of the caller.

        ``server``: this side's number of the session.
        """
        return Session(self._secret_of(call.robot), call.life, server)


# Before the request, a call has the random numbers of both processes and the number of the call;
# before the response, an answer says whether the call was used, and has the server's number.
_CALL, _ANSWER = struct.Struct('<QQI'), struct.Struct('<?Q')


def _text(name: str) -> bytes:
    data = name.encode()
    if len(data) > 255:
        raise KeyFileError(f'the name of a robot must have at most 255 bytes, got {len(data)}')
    return bytes([len(data)]) + data
