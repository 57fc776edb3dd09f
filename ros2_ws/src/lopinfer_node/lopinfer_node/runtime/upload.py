"""How a model comes to a server that lacks it, as messages of a stream. Sans-I/O.

    robot:  {"digest": digest}; graph.json; contents.json
    server: {"missing": [[name, offset], ...]}: the weights that it has not kept, of some a part
    robot:  these weights from their offsets on, in parts, each as `inlets.shortened` makes it
    server: {"stored": true}; instead of any of its messages {"refused": reason}

So a weight is sent once, whatever model brings it, and after a lost session the upload goes on
where it was.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fleet_compute.inlets import Buffer, CodecError, lengthened, shortened
from fleet_link.errors import PeerError

from ..errors import ModelError, RemoteError
from ..model.files import CONTENTS, contents_of, texts
from ..model.traced import Content, bytes_of
from .store import Store

if TYPE_CHECKING:
    from ..model.traced import Traced

PART_BYTES = 256 << 10
MOST_CONTENTS = 4 << 20     # maximum bytes of the contents, enough for some 40,000 weights
MOST_MESSAGE = 64 << 20     # maximum bytes of a message, which a graph or the contents may have


class Sending:
    """The robot's side: sends a model.

    ``ended``: None; then '' if the server has the model, or why it refuses it.
    """

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        self.ended: str | None = None
        self.sent = self.total = 0      # bytes of weights; 0 before the server's answer
        self._parts: Iterator[Buffer] = iter(self._opening())

    def _opening(self) -> Iterator[Buffer]:
        yield json.dumps({'digest': self._traced.digest}).encode()
        yield from texts(self._traced).values()

    def take(self, message: bytes) -> None:
        """Handle a message of the server; raise PeerError if it is none."""
        try:
            answer = json.loads(message)
            if 'refused' in answer:
                self.ended = str(answer['refused']) or 'no reason'
            elif 'stored' in answer:
                self.ended = ''
            else:
                self._send([(name, offset, self._traced.contents[name].nbytes)
                            for name, offset in answer['missing']])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise PeerError(f'not an answer of a server: {error!r}') from None

    def _send(self, missing: list[tuple[str, int, int]]) -> None:
        if not all(type(offset) is int and 0 <= offset < size for _, offset, size in missing):
            raise PeerError('an offset must be within its weight')
        self.total = sum(size - offset for _, offset, size in missing)
        self._parts = self._of([(name, offset) for name, offset, _ in missing])

    def _of(self, missing: list[tuple[str, int]]) -> Iterator[Buffer]:
        for name, offset in missing:
            data = bytes_of(self._traced.parameters[name])
            for at in range(offset, len(data), PART_BYTES):
                part = data[at:at + PART_BYTES]
                self.sent += len(part)
                yield shortened(part)

    def part(self) -> Buffer | None:
        """Return the next message to send; None: the server is next."""
        return next(self._parts, None)


class Partial:
    """A weight of which a part has arrived."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._hash = hashlib.sha256()

    @property
    def received(self) -> int:
        """Return the number of bytes that are here."""
        return len(self.data)

    def add(self, data: Buffer) -> None:
        """Append bytes."""
        self.data += data
        self._hash.update(data)

    @property
    def sha256(self) -> str:
        """Return the digest of what is here."""
        return self._hash.hexdigest()


class Partials:
    """The weights of which a part has arrived, in all uploads of a server: at most ``most`` bytes.

    Those of sessions that have ended are parked for the next ones, by their SHA-256.
    """

    def __init__(self, most: int) -> None:
        self._most, self.used = most, 0
        self.parked: dict[str, Partial] = {}

    def begin(self, sha256: str) -> Partial:
        """Return what is parked of a weight, or a new one."""
        return self.parked.pop(sha256, None) or Partial()

    def add(self, partial: Partial, data: Buffer) -> None:
        """Append bytes; raise RemoteError, and change nothing, if there is no room for them."""
        while self.parked and self.used + len(data) > self._most:
            self.drop(self.parked.pop(next(iter(self.parked))))
        if self.used + len(data) > self._most:
            raise RemoteError('too many robots send models at once')
        partial.add(data)
        self.used += len(data)

    def park(self, partials: Mapping[str, Partial]) -> None:
        """Keep what has come for another session."""
        self.parked.update((key, p) for key, p in partials.items() if p.received)

    def drop(self, partial: Partial) -> None:
        """Forget a weight, which is whole or wrong."""
        self.used -= partial.received


class Taking:
    """The server's side: takes a model into a store.

    ``partials``: of all uploads.
    ``served()``: digests of models that must not be deleted to make room. ``ended``: as in
    `Sending`; it stays None, because the robot ends the session. ``stored()``: called when models
    came or went. ``refused(reason)``: called when the robot is told why its model is not stored.
    """

    def __init__(self, store: Store, partials: Partials, served: Callable[[], Collection[str]],
                 stored: Callable[[], None], refused: Callable[[str], None]) -> None:
        self._store, self._partials, self._served, self._stored = store, partials, served, stored
        self._refused = refused
        self.ended: str | None = None
        self._digest = ''
        self._texts: list[bytes] = []
        self._missing: deque[Content] = deque()
        self._partial: dict[str, Partial] = {}      # of `_missing`, by SHA-256
        self._answers: deque[Buffer] = deque()
        self._next: Callable[[bytes], None] = self._begin

    @property
    def begun(self) -> bool:
        """Return whether a message has come."""
        return self._next != self._begin

    def take(self, message: bytes) -> None:
        """Handle a message of the robot; `part` returns the answer."""
        try:
            self._next(message)
        except (RemoteError, ModelError) as error:
            self._refuse(str(error))
        except CodecError as error:
            self._refuse(f'a part is damaged: {error}')
        except (OSError, MemoryError) as error:     # such as a full disk
            reason = getattr(error, 'strerror', None) or error
            self._refuse(f'the server cannot keep it in {self._store.directory}: {reason}')

    def part(self) -> Buffer | None:
        """Return the next message to send; None: the robot is next."""
        return self._answers.popleft() if self._answers else None

    def _answer(self, **fields: Any) -> None:
        self._answers.append(json.dumps(fields).encode())

    def _refuse(self, reason: str) -> None:
        self._refused(reason)
        self._answer(refused=reason)
        self._next = lambda message: None

    def _begin(self, message: bytes) -> None:
        try:
            self._digest = json.loads(message)['digest']
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RemoteError('the first message must name the model') from None
        self._store.check(self._digest)
        self._next = self._take_text

    def _take_text(self, message: bytes) -> None:
        self._texts.append(message)
        if len(self._texts) == 2:
            if len(message) > MOST_CONTENTS:
                raise RemoteError(f'{CONTENTS} must have at most {MOST_CONTENTS} bytes, got '
                                  f'{len(message)}')
            self._ask(contents_of(message))

    def _ask(self, contents: dict[str, Content]) -> None:
        self._store.check_room(contents.values())
        names = {content: name for name, content in contents.items()
                 if not self._store.want(content)}       # equal weights are one
        self._missing += names
        self._partial = {c.sha256: self._partials.begin(c.sha256) for c in names}
        self._next = self._take_part
        if names:
            self._answer(missing=[(name, self._partial[content.sha256].received)
                                  for content, name in names.items()])
        else:
            self._complete()

    def _take_part(self, message: bytes) -> None:
        content = self._missing[0]
        partial = self._partial[content.sha256]
        self._partials.add(partial, lengthened(
            message, min(PART_BYTES, content.nbytes - partial.received)))
        if partial.received < content.nbytes:
            return
        self._partials.drop(self._partial.pop(content.sha256))
        if partial.sha256 != content.sha256:
            raise RemoteError('a weight is not what was said of it')
        self._store.keep(partial.data, content)
        self._missing.popleft()
        if not self._missing:
            self._complete()

    def close(self) -> None:
        """End the session; what has come in part need not be sent again in the next one."""
        self._partials.park(self._partial)
        self._partial = {}

    def _complete(self) -> None:
        graph, contents = self._texts
        self._store.put(self._digest, self._served(), graph, contents)
        self._stored()
        self._answer(stored=True)
        self._next = lambda message: None
