"""Messages between client and server in an inference: pieces and acknowledgements.

A piece is one part of one transfer of a plan. Every piece contains the number of its
plan, which comes from the plan's digest. So the server can begin a request with whichever
piece arrives first.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet_link import arrivals

from ..errors import RemoteError

PROBE = 0xFFFFFFFF      # transfer number of pieces that measure the link and belong to no request
PROBE_PIECES = 4
MAX_PROBE = 240000      # maximum bytes of all pieces of a probe together
MAX_PIECE = 245760      # maximum bytes of data in one piece
MAX_PARTS = 0xFFFF

OK, NOT_OPEN, NO_PLAN, LEAVING, PIXELS, FAILED = range(6)   # status of an acknowledgement

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct('<QQIIIHHBffI')


@dataclass(frozen=True, slots=True)
class Piece:
    """Part ``part`` of ``parts`` of one transfer; fields as in lopinfer_msgs/Piece.

    ``busy``: seconds for which the server has computed. ``within``: seconds for which the robot
    still waits for the result. ``size``: bytes of the transfer; if they are fewer than those of the
    tensor, they are encoded (`fleet_compute.inlets`).
    """

    incarnation: int
    plan: int
    packet: int
    request: int
    transfer: int
    part: int
    parts: int
    bin: int
    busy: float
    data: Buffer
    check: int = 0
    within: float = 0.0
    size: int = 0

    def checksum(self) -> int:
        """Return the CRC-32 of header and data."""
        header = _HEADER.pack(self.incarnation, self.plan, self.packet, self.request, self.transfer,
                              self.part, self.parts, self.bin, self.busy, self.within,
                              self.size)
        return zlib.crc32(self.data, zlib.crc32(header))

    def sealed(self) -> Piece:
        """Return a copy of the piece with the right checksum."""
        return replace(self, check=self.checksum())

    def verify(self) -> None:
        """Raise RemoteError if the piece has invalid sizes or a wrong checksum."""
        if not (self.part < self.parts and len(self.data) <= MAX_PIECE):
            raise RemoteError(f'piece has part {self.part} of {self.parts} with '
                              f'{len(self.data)} bytes')
        if self.check != self.checksum():
            raise RemoteError('piece has a wrong checksum')


@dataclass(frozen=True, slots=True)
class Ack(arrivals.Ack):
    """Acknowledges a piece.

    ``rate``: measured rate, in bytes/s, of the pieces that go in the opposite direction; 0 before a
    measurement. ``wait``: seconds that the server needs for the requests of other robots; 0 if it
    has none, or does not know.
    """

    incarnation: int
    status: int = OK
    rate: float = 0.0
    wait: float = 0.0


def acknowledge(inbox: arrivals.Arrivals, piece: Piece, now: float, status: int = OK,
                rate: float = 0.0, wait: float = 0.0) -> Ack:
    """Note that a piece has arrived; return its acknowledgement."""
    return Ack(piece.packet, inbox.note(piece.packet), now, piece.incarnation, status, rate, wait)


def parts_of(size: int, piece_bytes: int) -> int:
    """Return into how many pieces a transfer of ``size`` bytes is divided."""
    least = -(-size // MAX_PARTS)
    return max(1, -(-size // max(least, min(piece_bytes, MAX_PIECE))))


def bounds(size: int, part: int, parts: int) -> tuple[int, int]:
    """Return the bytes [lo, hi) of a transfer that part number ``part`` of ``parts`` carries."""
    step = -(-size // parts)
    return min(part * step, size), min((part + 1) * step, size)


def plan_number(digest: bytes) -> int:
    """Return the first eight bytes of a plan's digest, as the number in every piece."""
    return int.from_bytes(digest[:8], 'little')


class Inbox:
    """Assembles the incoming transfers of one request from parts in any order.

    ``sizes`` maps the number of each expected transfer to the bytes of its tensor; the transfer
    may have fewer, if they are encoded.
    """

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self._sizes = sizes
        # maps an incomplete transfer to its data, and to one flag per part: whether the part has
        # arrived
        self._open: dict[int, tuple[bytearray, bytearray]] = {}
        self._complete: set[int] = set()

    def take(self, piece: Piece) -> bytearray | None:
        """Store a part; if it completes its transfer, return the whole transfer, else None.

        Raises RemoteError, and changes nothing, if the part does not fit the plan.
        """
        most = self._sizes.get(piece.transfer)
        if most is None:
            raise RemoteError(f'the plan has no transfer {piece.transfer} in this direction')
        size = piece.size
        if size > most:
            raise RemoteError(f'transfer {piece.transfer} must have at most {most} bytes, got '
                              f'{size}')
        lo, hi = bounds(size, piece.part, piece.parts)
        if hi - lo != len(piece.data):
            raise RemoteError(f'part {piece.part} of {piece.parts} of transfer {piece.transfer} '
                              f'has {len(piece.data)} bytes; it must have {hi - lo}')
        if piece.transfer in self._complete:
            return None
        data, flags = self._open.get(piece.transfer) or (bytearray(size), bytearray(piece.parts))
        if (len(flags), len(data)) != (piece.parts, size):
            raise RemoteError(f'transfer {piece.transfer} must have {len(flags)} parts and '
                              f'{len(data)} bytes, got {piece.parts} and {size}')
        self._open[piece.transfer] = data, flags
        data[lo:hi] = piece.data
        flags[piece.part] = 1
        if 0 in flags:
            return None
        del self._open[piece.transfer]
        self._complete.add(piece.transfer)
        return data
