"""What a fleet's server offers to the readers of its model: versions, in parts. Sans-I/O."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Any, NamedTuple

from fleet_compute.inlets import shortened
from fleet_env.versions import Version

from . import wire
from .errors import FollowError
from .parts import split

KEPT = 4     # versions that can be begun: the announcement of a newer one may be on its way
MOST_READERS = 64


class Parts(NamedTuple):
    """The parts of a version's file.

    ``size``: bytes of the file. ``root``: SHA-256 of its `parts.Index`. ``of``: that index and the
    tensors, by SHA-256.
    """

    version: Version
    size: int
    root: bytes
    of: dict[bytes, memoryview]


def parts_of(version: Version, content: Any) -> Parts:
    """Return the parts of a version's file. It takes a second for each gigabyte or more.

    :param content: the file, as bytes or a map of the file.
    :raises FollowError: the file is not the version's.
    """
    view = memoryview(content).cast('B')
    if hashlib.sha256(view).hexdigest() != version.digest:
        raise FollowError(f'the file of version {version.number} must have the SHA-256 that '
                          'its version.json says, but it was changed')
    index, tensors = split(view)
    encoded = index.encoded()
    digest = hashlib.sha256(encoded).digest()
    return Parts(version, len(view), digest, {**dict(zip(index.digests, tensors, strict=True)),
                                              digest: memoryview(encoded)})


class Source:
    """Offers one version at a time; what a reader fetches is not forgotten until it begins another.

    Else no version would ever be whole on a link that is slower than the training. It keeps no
    other state of any reader, so a reader goes on with another process of the server where it was.
    """

    def __init__(self) -> None:
        self.offered: wire.Announcement | None = None
        self.message = b''     # that announces `offered`; empty: nothing is offered yet
        self._kept: deque[Parts] = deque(maxlen=KEPT)
        self._fetched: dict[str, Parts] = {}    # what each reader fetches; the last asked is last

    def kept(self, version: Version) -> Parts | None:
        """Return the parts of a version if it was offered lately."""
        return next((parts for parts in self._kept if parts.version == version), None)

    def offer(self, parts: Parts, pinned: bool = False) -> None:
        """Offer a version from now on."""
        if parts in self._kept:
            self._kept.remove(parts)
        self._kept.append(parts)
        self.offered = wire.Announcement(parts.version, parts.size, parts.root.hex(),
                                         len(parts.of[parts.root]), pinned)
        self.message = wire.announce(self.offered)

    def answer(self, wanted: wire.Want, reader: str) -> bytes:
        """Return the message that answers a question of a reader, which is known by its name.

        :raises FollowError: no reader asks so.
        """
        fetched = self._fetched.pop(reader, None)
        for parts in self._kept:
            if parts.root == wanted.digest:
                fetched = parts
        if fetched is not None:
            self._fetched[reader] = fetched
            if len(self._fetched) > MOST_READERS:
                del self._fetched[next(iter(self._fetched))]
        for parts in (fetched, *reversed(self._kept)) if fetched else reversed(self._kept):
            if (whole := parts.of.get(wanted.digest)) is not None:
                if wanted.offset > len(whole) or not 0 < wanted.length <= wire.PART_BYTES:
                    raise FollowError(f'a part must begin within {len(whole)} bytes and have 1 to '
                                      f'{wire.PART_BYTES}, got {wanted.length} at {wanted.offset}')
                data = whole[wanted.offset:wanted.offset + wanted.length]
                return wire.part(wanted.digest, wanted.offset, len(whole), shortened(data))
        return wire.part(wanted.digest, wanted.offset, wire.GONE)
