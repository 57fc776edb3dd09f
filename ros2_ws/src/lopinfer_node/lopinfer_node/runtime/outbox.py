"""Send pieces in one direction within a bounded window, and send lost pieces again.

Topics are best effort, and this module bounds the bytes in flight. It does not use a reliable queue
of the middleware, because such a queue would keep old messages while the link is dead and deliver
them before newer messages. Every transmission has its own packet number (as in QUIC), so an
acknowledgement identifies one transmission and its duration.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from ..errors import RemoteError
from .link import LinkEstimate
from .wire import MASK_BITS, PROBE, Ack, Buffer, Piece, bounds, parts_of

# when packet n is acknowledged, unacknowledged packets up to n - REORDER count as lost
REORDER = 3


@dataclass(frozen=True, slots=True)
class Route:
    """The fields that are the same in all pieces of a request."""

    request: int
    plan: int
    bin: int


@dataclass(slots=True, eq=False)
class _Part:
    """One part of a transfer; each transmission of the part is one piece."""

    route: Route
    transfer: int
    part: int
    parts: int
    data: Buffer
    repeat: bool = True     # whether the part is sent again if it is lost
    arrived: bool = False


@dataclass(frozen=True, slots=True)
class _Sent:
    """One transmission of a part, which becomes one packet."""

    part: _Part
    at: float
    delivered: int          # bytes that had been acknowledged when this transmission began


class Outbox:
    """Accepts transfers and acknowledgements; `poll` returns the pieces to send now."""

    def __init__(self, incarnation: int, piece_bytes: int) -> None:
        self.incarnation = incarnation
        self.link = LinkEstimate(piece_bytes)
        # seconds that this side has computed for the present request; every piece carries this
        # number; it stays 0 on the client
        self.busy = 0.0
        self.bytes_sent = 0
        self.next_packet = 0
        self._waiting: deque[_Part] = deque()
        # packets that are sent and neither acknowledged nor lost: packet number -> transmission,
        # in ascending order
        self._flight: dict[int, _Sent] = {}
        # the latest packets that count as lost; an acknowledgement may still arrive for them
        self._late: dict[int, _Sent] = {}
        self.in_flight = 0         # bytes that were sent and are neither acknowledged nor lost

    def clear(self) -> None:
        """Drop all queued transfers.

        Pieces that are on the way still count for the window, but are not sent again if they are
        lost.
        """
        self._waiting.clear()
        for sent in self._flight.values():
            sent.part.repeat = False

    @property
    def idle(self) -> bool:
        """Return whether no piece waits to be sent or to be acknowledged."""
        return not self._waiting and not self._flight

    def offer(self, route: Route, transfer: int, data: Buffer) -> None:
        """Queue one transfer; its bytes must not change until they are acknowledged."""
        view = memoryview(data).cast('B')
        parts = parts_of(len(view), self.link.piece_bytes)
        for part in range(parts):
            lo, hi = bounds(len(view), part, parts)
            self._waiting.append(_Part(route, transfer, part, parts, view[lo:hi]))

    def probe(self, nbytes: int, pieces: int) -> None:
        """Queue ``pieces`` pieces with ``nbytes`` bytes in all, to measure the link.

        The pieces belong to no request and are never repeated.
        """
        for part in range(pieces):
            self._waiting.append(_Part(Route(0, 0, 0), PROBE, part, pieces,
                                       bytes(nbytes // pieces), repeat=False))

    def on_ack(self, ack: Ack, now: float) -> None:
        """Handle an acknowledgement.

        Raise RemoteError if no packet with this number was sent, or if the time of arrival is not
        finite.
        """
        if not 0 <= ack.packet < self.next_packet or not math.isfinite(ack.arrived):
            raise RemoteError(f'acknowledged packet must be below {self.next_packet}, got '
                              f'{ack.packet}')
        sent = self._arrive(ack.packet)
        if sent is not None:
            self.link.sample(ack.packet, len(sent.part.data), sent.at, sent.delivered, ack.arrived,
                             now)
        for k in range(min(ack.mask.bit_length(), MASK_BITS)):
            if ack.mask >> k & 1:
                self._arrive(ack.packet - 1 - k)
        for packet in reversed([p for p in self._flight if p <= ack.packet - REORDER]):
            self._lose(packet)

    def _arrive(self, packet: int) -> _Sent | None:
        """Mark a packet as arrived; return its transmission, or None if it is no longer known."""
        sent = self._flight.pop(packet, None)
        if sent is not None:
            self.in_flight -= len(sent.part.data)
        else:
            sent = self._late.pop(packet, None)
        if sent is not None:
            sent.part.arrived = True
            self.link.delivered += len(sent.part.data)
        return sent

    def _lose(self, packet: int) -> None:
        """Count a packet as lost, and queue its part again unless the part must not be repeated.

        If its acknowledgement arrives later, the packet counts as arrived after all.
        """
        sent = self._late[packet] = self._flight.pop(packet)
        if len(self._late) > MASK_BITS:
            del self._late[next(iter(self._late))]
        self.in_flight -= len(sent.part.data)
        if sent.part.repeat:
            self._waiting.appendleft(sent.part)

    def poll(self, now: float) -> list[Piece]:
        """Return the pieces to send now; call this after every event and at `deadline`."""
        while self._flight:
            packet, oldest = next(iter(self._flight.items()))
            if oldest.at + self.link.timeout > now:
                break
            self._lose(packet)
            self.link.timed_out(now)
        out = []
        while self._waiting:
            part = self._waiting[0]
            if not part.arrived:
                if self._flight and self.in_flight + len(part.data) > self.link.window_bytes:
                    break
                out.append(self._transmit(part, now))
            self._waiting.popleft()
        return out

    def _transmit(self, part: _Part, now: float) -> Piece:
        packet, self.next_packet = self.next_packet, self.next_packet + 1
        self._flight[packet] = _Sent(part, now, self.link.delivered)
        self.in_flight += len(part.data)
        self.bytes_sent += len(part.data)
        return Piece(self.incarnation, part.route.plan, packet, part.route.request, part.transfer,
                     part.part, part.parts, part.route.bin, self.busy, part.data).sealed()

    @property
    def deadline(self) -> float:
        """Return the time at which `poll` must run if no event comes before."""
        if not self._flight:
            return math.inf
        return next(iter(self._flight.values())).at + self.link.timeout
