"""The receiving end: which packets have arrived, and the acknowledgement of each.

An acknowledgement is sent at once for every packet, so the receiver adds no delay that the sender
would have to subtract (RFC 9002, section 5.3). A lost acknowledgement costs nothing: each one
repeats what has arrived among the `MASK_BITS` packets before its own.
"""

from __future__ import annotations

from dataclasses import dataclass

MASK_BITS = 64
HISTORY = 4 * MASK_BITS  # number of packets that a receiver remembers
WIRE = 1 << 32           # packet numbers modulo this number are on the wire
_MASK, _HISTORY = (1 << MASK_BITS) - 1, (1 << HISTORY) - 1


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledges ``packet``, which arrived at ``arrived``.

    ``packet``: its number on the wire. ``mask``: bit k says whether the packet with the number
    (``packet`` minus 1 minus k) has arrived, too. ``arrived``: seconds, by the receiver's clock.
    """

    packet: int
    mask: int
    arrived: float


def expanded(number: int, near: int) -> int:
    """Return the packet number nearest to ``near`` that is ``number`` on the wire.

    Source: RFC 9000, section 17.1 and appendix A.3.
    """
    half = WIRE // 2
    return near + (number - near + half) % WIRE - half


class Arrivals:
    """Records which packets of one sender have arrived."""

    def __init__(self) -> None:
        self._newest = -1
        self._bits = 0  # bit k: whether packet (newest minus k) has arrived

    def note(self, packet: int) -> int:
        """Mark a packet as arrived; return the mask of its acknowledgement, see `Ack`.

        ``packet``: the number on the wire. The caller acknowledges only what it has accepted.
        """
        newest = self._newest
        if packet == newest + 1:  # the usual case
            self._newest, self._bits = packet, (self._bits << 1 | 1) & _HISTORY
            return self._bits >> 1 & _MASK
        number = expanded(packet, newest) if newest >= 0 else packet
        behind = newest - number
        if behind < 0:
            self._bits = (self._bits << min(-behind, HISTORY) | 1) & _HISTORY
            self._newest, behind = number, 0
        elif behind < HISTORY:
            self._bits |= 1 << behind
        return self._bits >> behind + 1 & _MASK

    def is_new(self, packet: int) -> bool:
        """Mark a packet as arrived; return whether it certainly had not arrived before."""
        former = self._newest, self._bits
        self.note(packet)
        return (self._newest, self._bits) != former
