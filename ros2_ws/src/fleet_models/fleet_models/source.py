"""What a fleet's server offers to the readers of its model: versions, in parts. Sans-I/O."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Any

from fleet_env.versions import Version

from . import wire
from .errors import FollowError
from .parts import split

KEPT = 4     # versions whose parts can be asked for: a slow reader may still fetch an earlier one


class Source:
    """Offers one version at a time.

    It keeps no state of any reader, so a reader goes on with another process of the server where it
    was.
    """

    def __init__(self) -> None:
        self.offered: wire.Announcement | None = None
        self.message = b''     # that announces `offered`; empty: nothing is offered yet
        # for each kept version, the parts of its file by SHA-256
        self._kept: deque[dict[bytes, memoryview]] = deque(maxlen=KEPT)

    def offer(self, version: Version, content: Any, pinned: bool = False) -> None:
        """Offer a version from now on.

        :param content: its file, as bytes or a map of the file.
        :raises FollowError: the file is not the version's.
        """
        view = memoryview(content).cast('B')
        if hashlib.sha256(view).hexdigest() != version.digest:
            raise FollowError(f'the file of version {version.number} must have the SHA-256 that '
                              'its version.json says, but it was changed')
        index, tensors = split(view)
        encoded = index.encoded()
        digest = hashlib.sha256(encoded)
        parts = dict(zip(index.digests, tensors, strict=True))
        self._kept.append({**parts, digest.digest(): memoryview(encoded)})
        self.offered = wire.Announcement(version, len(view), digest.hexdigest(), len(encoded),
                                         pinned)
        self.message = wire.announce(self.offered)

    def answer(self, wanted: wire.Want) -> bytes:
        """Return the message that answers a question.

        :raises FollowError: no reader asks so.
        """
        for parts in reversed(self._kept):
            if (whole := parts.get(wanted.digest)) is not None:
                if wanted.offset > len(whole) or not 0 < wanted.length <= wire.PART_BYTES:
                    raise FollowError(f'a part must begin within {len(whole)} bytes and have 1 to '
                                      f'{wire.PART_BYTES}, got {wanted.length} at {wanted.offset}')
                data = whole[wanted.offset:wanted.offset + wanted.length]
                return wire.part(wanted.digest, wanted.offset, len(whole), data)
        return wire.part(wanted.digest, wanted.offset, wire.GONE)
