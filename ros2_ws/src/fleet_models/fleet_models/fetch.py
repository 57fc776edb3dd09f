"""A reader's side: which version to fetch, and which parts of it are still missing. Sans-I/O.

A version is fetched whole before another one is begun, unless a person has pinned the other one: on
a slow link, versions may come faster than they can be fetched, and each would be a half. Then the
newest is next. Tensors that the reader has, of whatever version, are not fetched again.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from fleet_compute.inlets import CodecError, lengthened

from . import wire
from .errors import FollowError
from .parts import MOST_HEADER, Index, join, read_index, split

AHEAD = 32    # questions that wait for an answer, so that an empty link need not wait for the next


Questions = list[wire.Want | wire.Drop]


class Fetched(NamedTuple):
    """A version that is here whole: its announcement and the content of its file."""

    announcement: wire.Announcement
    content: bytes


class Fetch:
    """Fetches the versions that are announced and wanted.

    :param refusal: returns why a version is not wanted, '' if it is; called when a version is
        announced and again before it is begun.
    :param most: maximum bytes of a version.
    """

    def __init__(self, refusal: Callable[[wire.Announcement], str], most: int) -> None:
        self._refusal, self._most = refusal, most
        self.newest: wire.Announcement | None = None   # the last that was announced
        self.present: wire.Announcement | None = None  # the one that is being fetched
        self.refused = ''           # why `newest` is not fetched
        self.got = 0                # bytes of `present` that are here
        self.used = ''              # digest of the version in use, which is not fetched
        self._done = '', False      # digest of the last version that came whole; whether pinned
        self._index: Index | None = None
        self._whole: dict[bytes, bytes | bytearray] = {}     # parts that are here, by SHA-256
        self._partial: dict[bytes, bytearray] = {}
        self._missing: dict[bytes, int] = {}       # what is still to be fetched, and its bytes
        # Questions without an answer, the oldest first; None: its answer is not wanted any more.
        self._asked: deque[wire.Want | None] = deque()

    def on_new_session(self) -> None:
        """Begin a session: the questions of the former one get no answer."""
        self._asked.clear()

    def questions(self) -> Questions:
        """Return the next questions; call it when a session is open."""
        return self._begin()

    def on_announced(self, what: wire.Announcement) -> Questions:
        """Handle an announcement; return the next questions."""
        self.newest = what
        self.refused = self._refusal(what)
        if self.present is not None and what.pinned and not self._is_newest(self.present):
            self._end()
            return [wire.Drop(), *self._begin()]
        return self._begin()

    def _is_newest(self, what: wire.Announcement | None) -> bool:
        return what is not None and self.newest is not None \
            and what.version.digest == self.newest.version.digest

    def on_part(self, part: wire.Part) -> tuple[Fetched | None, Questions]:
        """Handle an answer; return the version if it is whole now, and the next questions.

        :raises FollowError: the answer is wrong; what it was about is fetched again.
        """
        if not self._asked:
            raise FollowError('an answer must be to a question')
        asked = self._asked.popleft()
        if asked is None:
            return None, self._questions()
        if (asked.digest, asked.offset) != (part.digest, part.offset):
            self._end()
            raise FollowError('an answer must be to the oldest question')
        if part.total == wire.GONE:
            if self._is_newest(self.present):    # the server has another one, and will announce it
                self.newest = None
            self._end()
            return None, self._begin()
        size = self._missing[part.digest]
        held = self._partial.setdefault(part.digest, bytearray())
        length = min(asked.length, size - part.offset)
        try:
            if part.total != size or part.offset != len(held):
                raise CodecError('it is of another place')
            held += lengthened(part.data, length)
        except CodecError as error:
            self._end()
            raise FollowError(f'a part must continue what is here, {len(held)} of {size} bytes, '
                              f'got {len(part.data)} at {part.offset} of {part.total}: {error}'
                              ) from None
        self.got += length
        if len(held) < size:
            return None, self._questions()
        del self._partial[part.digest], self._missing[part.digest]
        if hashlib.sha256(held).digest() != part.digest:
            self._end()
            raise FollowError('a part of a version must have the SHA-256 by which it was asked '
                              'for')
        if self._index is None:
            self._note_index(bytes(held))
        else:
            self._whole[part.digest] = held
        return self._completed()

    def _begin(self) -> Questions:
        """Begin to fetch the newest version if it is wanted and nothing is being fetched."""
        what = self.newest
        if self.present is not None or what is None or what.version.digest == self.used \
                or self._done in ((what.version.digest, what.pinned), (what.version.digest, True)):
            return self._questions()
        self.refused = self._refusal(what)
        if not self.refused and what.size > self._most:
            self.refused = f'it has {what.size >> 20} MiB, more than {self._most >> 20}'
        if not self.refused and what.index_size > MOST_HEADER + what.size:
            self.refused = 'its index is too large'
        if self.refused:
            return []
        self.present, self.got, self._index = what, 0, None
        self._missing = {bytes.fromhex(what.index): what.index_size}
        return self._questions()

    def _note_index(self, data: bytes) -> None:
        assert self.present is not None
        try:
            index = read_index(data)
            if len(index.header) + sum(index.sizes) != self.present.size:
                raise FollowError('the index of a version must fit its size')
        except FollowError:
            self._end()
            raise
        self._index = index
        self.got = len(index.header)
        for digest, size in zip(index.digests, index.sizes, strict=True):
            if digest in self._whole:
                self.got += size
            elif size:
                self._missing[digest] = size
            else:
                self._whole[digest] = b''

    def _completed(self) -> tuple[Fetched | None, Questions]:
        if self._missing or self._index is None or self.present is None:
            return None, self._questions()
        what, index = self.present, self._index
        wanted = set(index.digests)
        self._end()
        self._whole = {d: data for d, data in self._whole.items() if d in wanted}
        try:
            content = join(index, self._whole, what.version.digest)
        except (FollowError, KeyError):
            self._whole.clear()
            raise
        self._done = what.version.digest, what.pinned
        return Fetched(what, content), self._begin()

    def _questions(self) -> Questions:
        """Return the next questions, at most as many as may wait for an answer."""
        new: Questions = []
        asked = {w.digest: w.offset + w.length for w in self._asked if w is not None}
        for digest, size in self._missing.items():
            at = asked.get(digest, len(self._partial.get(digest, b'')))
            while at < size and len(self._asked) < AHEAD:
                one = wire.Want(digest, at, min(wire.PART_BYTES, size - at))
                new.append(one)
                self._asked.append(one)
                at += one.length
            if len(self._asked) >= AHEAD:
                break
        return new

    def _end(self) -> None:
        """Fetch the present version no longer; its whole tensors may be those of the next one."""
        self.present, self._index, self.got = None, None, 0
        self._missing.clear()
        self._partial.clear()
        self._asked = deque([None] * len(self._asked))

    def know(self, content: bytes) -> None:
        """Use the tensors of a file that the reader has; ignore it if it is no such file."""
        try:
            index, tensors = split(memoryview(content))
        except FollowError:
            return
        self._whole.update(zip(index.digests, map(bytes, tensors), strict=True))
