"""Send the transfers of one direction in pieces, and lost pieces again.

`fleet_link.link.Link` decides when a piece may be sent, and which are lost. Topics
are best effort, because a reliable queue of the middleware would keep old messages while the link
is dead and deliver them before newer messages.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from fleet_link.errors import PeerError
from fleet_link.link import DATAGRAM, Link

from ..errors import RemoteError
from .wire import MAX_PIECE, PROBE, Ack, Buffer, Piece, bounds, parts_of

# seconds that sending a piece should take; short, because a fade of the link loses whole pieces
PIECE_TIME = 0.003
# Minimum bytes of a piece where that many take at most `LEAST_TIME` seconds; elsewhere, a piece is
# one datagram.
MIN_PIECE, LEAST_TIME = 4096, 0.02


@dataclass(frozen=True, slots=True)
class Route:
    """What is the same for all pieces of a request.

    `deadline`: time at which the robot no longer waits; infinite on the server.
    """

    request: int
    plan: int
    bin: int
    deadline: float = math.inf


@dataclass(slots=True, eq=False)
class _Part:
    """One part of a transfer; each transmission of the part is one piece."""

    route: Route
    transfer: int
    part: int
    parts: int
    data: Buffer
    size: int               # bytes of the whole transfer
    repeat: bool = True     # whether the part is sent again if it is lost
    arrived: bool = False


class Outbox:
    """Accepts transfers and acknowledgements; `poll` returns the pieces to send now."""

    def __init__(self, incarnation: int, piece_bytes: int) -> None:
        self.incarnation = incarnation
        self.link: Link[_Part] = Link()
        # seconds that this side has computed for the present request; every piece carries this
        # number; it stays 0 on the client
        self.busy = 0.0
        self.bytes_sent = 0
        self._most = min(piece_bytes, MAX_PIECE)
        self._waiting: deque[_Part] = deque()

    def clear(self) -> None:
        """Drop all queued transfers.

        Pieces that are on the way still count for the window, but are not sent again if they are
        lost.
        """
        self._waiting.clear()
        for part in self.link.items:
            part.repeat = False

    @property
    def idle(self) -> bool:
        """Return whether no piece waits to be sent or to be acknowledged."""
        return not self._waiting and self.link.quiet

    @property
    def piece_bytes(self) -> int:
        """Return the size of the next transfer's pieces in bytes."""
        rate = self.link.rate
        least = min(max(rate * LEAST_TIME, DATAGRAM), MIN_PIECE)
        return int(min(max(rate * PIECE_TIME, least), self._most))

    def offer(self, route: Route, transfer: int, data: Buffer) -> None:
        """Queue one transfer; its bytes must not change until they are acknowledged."""
        view = memoryview(data).cast('B')
        parts = parts_of(len(view), self.piece_bytes)
        for part in range(parts):
            lo, hi = bounds(len(view), part, parts)
            self._waiting.append(_Part(route, transfer, part, parts, view[lo:hi],
                                       len(view)))

    def probe(self, nbytes: int, pieces: int) -> None:
        """Queue ``pieces`` pieces with ``nbytes`` bytes in all, to measure the link.

        The pieces belong to no request and are never repeated.
        """
        for part in range(pieces):
            self._waiting.append(_Part(Route(0, 0, 0), PROBE, part, pieces,
                                       bytes(nbytes // pieces), nbytes, repeat=False))

    def on_ack(self, ack: Ack, now: float) -> None:
        """Handle an acknowledgement; raise RemoteError if it cannot be true."""
        try:
            arrived, lost = self.link.on_ack(ack, now)
        except PeerError as error:
            raise RemoteError(str(error)) from None
        for part in arrived:
            part.arrived = True
        self._queue_again(lost)

    def poll(self, now: float) -> list[Piece]:
        """Return the pieces to send now; call this after every event and at `deadline`."""
        self._queue_again(self.link.poll(now, lambda part: part.repeat and not part.arrived))
        out = []
        while self._waiting:
            part = self._waiting[0]
            if not part.arrived:
                if not self.link.room(len(part.data)):
                    break
                out.append(self._transmit(part, now))
            self._waiting.popleft()
        return out

    def _queue_again(self, parts: Iterable[_Part]) -> None:
        self._waiting.extendleft(
            part for part in reversed(list(parts)) if part.repeat and not part.arrived)

    def _transmit(self, part: _Part, now: float) -> Piece:
        packet = self.link.send(part, len(part.data), now)
        self.bytes_sent += len(part.data)
        within = max(0.0, part.route.deadline - now) if part.route.deadline < math.inf else 0.0
        return Piece(self.incarnation, part.route.plan, packet, part.route.request, part.transfer,
                     part.part, part.parts, part.route.bin, self.busy, part.data,
                     within=within, size=part.size).sealed()

    @property
    def deadline(self) -> float:
        """Return the time at which `poll` must run if no event comes before."""
        return self.link.deadline
