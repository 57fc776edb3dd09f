"""One end of a session: a stream of messages until a side ends it or falls silent. Sans-I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .errors import PeerError
from .stream import Ack, Frame, Stream

SILENT = 'it was silent for too long'
# A side that ends the session says so every `AGAIN` seconds until its peer answers, at most
# `LAST_WORDS` seconds.
AGAIN, LAST_WORDS = 0.1, 0.5
MOST_REASON = 200   # characters of the peer's reason that are kept


@dataclass(frozen=True, slots=True)
class End:
    """Says that the session is over, and why."""

    reason: str


Packet = Frame | Ack | End


class Session:
    """One end of a session.

    Call `poll` after every other method and at `deadline`; it returns what to send. To send a
    message, give it to ``stream.sender``.

    :param most: maximum bytes of a message of the peer.
    :param lease: seconds of silence of the peer after which the session ends.
    :param pings: whether this side shows the other in time that both live; one of them does.
    """

    def __init__(self, most: int, lease: float, pings: bool, now: float) -> None:
        self.stream, self.lease, self._pings = Stream(most), lease, pings
        self.ended = ''         # why the session is over; '' if it is not
        self.answered = False   # whether the peer has said, too, that it is over
        self.ours = False       # whether this side has ended it
        self._said = False      # whether it has said so
        self._say_at = self._until = math.inf   # time of the next `End`, and of the last one
        self.begin(now)

    def begin(self, now: float) -> None:
        """Count the silence of the peer from now on."""
        self.heard = now
        self._ping_at = now + self.lease / 4 if self._pings else math.inf

    def ping(self, now: float) -> None:
        """Ask at once whether the peer lives."""
        self._ping_at = now

    def take(self, packet: Packet, now: float) -> list[bytes]:
        """Process what the peer has sent; return the messages that are complete now.

        What no peer sends ends the session; raises MemoryError.
        """
        if isinstance(packet, End):
            self.answered = True
            if not self.ours:
                self.ended = self.ended or packet.reason[:MOST_REASON]
                self._say_at = now      # each time, because the answer may be lost
            elif self._said:
                self._say_at = math.inf
            return []
        if self.ended:
            return []
        self.heard = now
        try:
            if isinstance(packet, Frame):
                return self.stream.take(packet, now)
            self.stream.sender.on_ack(packet, now)
        except PeerError as error:
            self.end(str(error), now)
        return []

    def end(self, reason: str, now: float) -> None:
        """End the session, if it is not over, and tell the peer why."""
        if not self.ended:
            self.ended, self.ours = reason, True
            self._say_at, self._until = now, now + LAST_WORDS

    def poll(self, now: float) -> list[Packet]:
        """Return what to send now."""
        if now >= self.heard + self.lease:
            self.end(SILENT, now)
        if self.ended:
            return self._last_words(now)
        packets: list[Packet] = [*self.stream.poll(now)]
        if now >= self._ping_at:
            self._ping_at = now + self.lease / 4
            packets.append(self.stream.sender.ping(now))
        return packets

    def _last_words(self, now: float) -> list[Packet]:
        if now < self._say_at:
            return []
        self._said = True
        waits = self.ours and not self.answered and now + AGAIN <= self._until
        self._say_at = now + AGAIN if waits else math.inf
        return [End(self.ended)]

    @property
    def over(self) -> bool:
        """Whether nothing more is to be said: the session has ended, and the peer knows it."""
        return bool(self.ended) and self._say_at == math.inf

    @property
    def deadline(self) -> float:
        """Time at which `poll` must be called if nothing happens before; infinity: never."""
        if self.ended:
            return self._say_at
        return min(self.stream.deadline, self._ping_at, self.heard + self.lease)
