"""The sending end of a link that carries chunks of rows."""

from __future__ import annotations

from typing import Any

from fleet_link.arrivals import Ack
from fleet_link.errors import PeerError
from fleet_link.link import DATAGRAM, Link

from ..errors import RemoteProtocolError

MIN_CHUNK = DATAGRAM   # lower limit of `RowLink.chunk_bytes`


class RowLink(Link[Any]):
    """A `Link` to one peer, and the size of the chunks that suits it.

    A chunk has as many bytes as the link carries in ``chunk_time`` seconds, at most ``max_chunk``.
    ``scale``: see `Link`; in a simulation, a small model may represent a large model.
    """

    def __init__(self, max_chunk: int, chunk_time: float, scale: float = 1.0) -> None:
        super().__init__(scale)
        self._most, self._time = max_chunk, chunk_time

    @property
    def least_chunk(self) -> int:
        """Number of bytes of ids and values that any link takes in one chunk."""
        return int(MIN_CHUNK / self.scale)

    @property
    def chunk_bytes(self) -> int:
        """Maximum number of bytes of ids and values in the next chunk."""
        on_air = min(max(self.speed.value * self._time, MIN_CHUNK), self._most)
        return int(on_air / self.scale)

    def on_ack(self, ack: Ack, now: float) -> tuple[list[Any], list[Any]]:
        """Handle an acknowledgement; raise `RemoteProtocolError` if it cannot be true."""
        try:
            return super().on_ack(ack, now)
        except PeerError as error:
            raise RemoteProtocolError(str(error)) from None
