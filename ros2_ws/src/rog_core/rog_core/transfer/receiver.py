"""Receives the transfers of one robot in one direction.

A chunk is checked completely before any of its rows are returned to the caller. Its rows are
returned only once, even if the channel duplicates, delays or reorders the chunk. No rows are
returned after their transfer was closed. The table of states is
`rog_core.protocol.states.RECEIVER`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from fleet_link.arrivals import Arrivals
from numba import njit

from ..codecs import RAW, SMALLER, Codec, codec_on_wire, decode_ids
from ..errors import RemoteProtocolError, StaleMessageError
from ..model.partition import RowPartition
from ..protocol.messages import Ack, Chunk, End, Kind, Receipt, TransferId
from ..protocol.states import CLOSED, NONE, OPEN, RECEIVER

_NOTHING = np.zeros(0, bool)


class Rows(NamedTuple):
    """Checked rows of a chunk.

    ``ids`` int64: segments of the rows; ``data`` uint8: their values, encoded by ``codec``.
    """

    transfer: TransferId
    ids: np.ndarray
    codec: Codec
    data: np.ndarray
    energy: float  # sum of the squares of the decoded values


@dataclass
class Receiver:
    """Receives transfers of the session ``incarnation``, one after the other."""

    partition: RowPartition
    kinds: frozenset[Kind]
    incarnation: int
    codec: Codec                     # codec of rows; model values and full gradients are raw
    transfer: TransferId | None = None
    receipt: Receipt | None = None   # receipt of the transfer; None until the transfer is closed
    bytes_received: int = 0
    floor: int = 1                   # transfers with a lower number (`attempt`) are over
    granted: int | None = None  # iteration that the next transfer must have; None: any iteration
    kind: Kind | None = None  # kind that the next transfer must have; None: any of ``kinds``
    energy: float = 0.0              # sum of the squares of all accepted values of this transfer
    # number of chunks of this transfer that have arrived but are not applied
    refused: int = 0
    announced: End | None = None     # `End` that closes the transfer when all chunks have arrived
    state: str = NONE                # state of the present transfer
    _arrivals: Arrivals = field(default_factory=Arrivals)
    _flags: bytearray = field(default_factory=bytearray)
    _next: int = 0
    taken: int = 0                   # number of segments of this transfer that have arrived
    # Whether each segment of the present transfer has arrived, bool (segments,).
    _seen: np.ndarray = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        self._grown, self._raw = self.partition.grown, self.partition.grown.raw_partition

    def on_chunk(self, chunk: Chunk, now: float) -> tuple[Ack, Rows | None]:
        """Return the acknowledgement of a chunk, and its rows, which the caller must apply.

        The rows are None if the transfer is closed or over, or if the chunk is a duplicate or
        contains a segment of an earlier chunk.
        """
        self.check(chunk.transfer)
        if not self.is_open(chunk.transfer):
            return self.acknowledge(chunk, now), None
        rows = None
        if chunk.transfer != self.transfer or not self.has(chunk.sequence):
            rows = self._examine(chunk)
            self._open(chunk.transfer)
            self._mark(chunk.sequence)
            if _repeats(self._seen, rows.ids):
                rows = None
            else:
                self.taken += rows.ids.size
                self.bytes_received += chunk.ids.size + chunk.values.size
        return self.acknowledge(chunk, now), rows

    def acknowledge(self, chunk: Chunk, now: float) -> Ack:
        """Return the acknowledgement of a chunk that is valid, whether its rows are used or not."""
        return Ack(chunk.packet, self._arrivals.note(chunk.packet), now, self.incarnation)

    def examine(self, chunk: Chunk) -> Rows:
        """Check a chunk and return its rows; do not count the chunk as received.

        Raises `RemoteProtocolError` if the chunk is invalid.
        """
        self.check(chunk.transfer)
        return self._examine(chunk)

    def _examine(self, chunk: Chunk) -> Rows:
        self._expect(chunk.transfer)
        partition = self.rows_of(chunk.transfer)
        if not 0 <= chunk.sequence < partition.segments:
            raise RemoteProtocolError('sequence number of a chunk must be below the number of '
                                      f'segments, {partition.segments}, got {chunk.sequence}')
        ids = decode_ids(chunk.ids, chunk.segments, partition)
        codec = self._codec_of(chunk, ids)
        energy = codec.check(partition, ids, chunk.values)
        return Rows(chunk.transfer, ids, codec, chunk.values, energy)

    def on_end(self, end: End) -> tuple[Receipt, np.ndarray | None] | None:
        """Close the transfer; return its receipt, and the segments that have arrived (int64).

        If the transfer was already closed, None replaces the segments. If the `End` belongs to an
        earlier transfer, the function does nothing and returns None. It also returns None if the
        `End` takes effect only after more chunks have arrived.
        """
        self.examine_end(end)
        if self.is_closed(end.transfer):
            assert self.receipt is not None
            return self.receipt, None
        if not self.is_open(end.transfer):
            return None
        self._open(end.transfer)
        if len(self._flags) > end.chunks:
            raise RemoteProtocolError('chunks in an end of transfer must be at least the '
                                      f'{len(self._flags)} that were sent, got {end.chunks}')
        if end.whole and self._next < end.chunks:
            self.announced = end
            return None
        self._flags.extend(bytes(end.chunks - len(self._flags)))
        self.state = RECEIVER.after(self.state, 'end')
        self.receipt = self._current_receipt(end.chunks)
        return self.receipt, self._collect()

    def examine_end(self, end: End) -> None:
        """Check an `End` without taking it into account; raise `RemoteProtocolError` if invalid."""
        self.check(end.transfer)
        most = self.rows_of(end.transfer).segments  # maximum of chunks, one segment each
        if not 0 <= end.chunks <= most:
            raise RemoteProtocolError('chunks in an end of transfer must be at most its number '
                                      f'of segments, {most}, got {end.chunks}')
        if self.is_open(end.transfer):
            self._expect(end.transfer)

    @property
    def due(self) -> End | None:
        """The `End` that waited for chunks and can take effect now; None if there is none.

        It is None as long as a chunk is missing, and after the transfer is closed.
        """
        end = self.announced
        whole = end is not None and len(self._flags) == self._next == end.chunks
        return end if whole and self.state == OPEN else None

    def check(self, transfer: TransferId) -> None:
        """Raise `RemoteProtocolError` if the transfer is of another session or direction."""
        if transfer.incarnation != self.incarnation:
            raise StaleMessageError(f'session of a message must be {self.incarnation:#x}, got '
                                    f'{transfer.incarnation:#x}: it is from before a restart or '
                                    'of another robot')
        if transfer.kind not in self.kinds:
            raise RemoteProtocolError('kind of a message in this direction must be one of '
                                      f'{sorted(map(int, self.kinds))}, got {int(transfer.kind)}')

    def _expect(self, transfer: TransferId) -> None:
        """Raise `RemoteProtocolError` for a transfer that cannot come next.

        A sender numbers its transfers without gaps. It begins a transfer only when the previous
        transfer is over. If a forged, much higher number were accepted, every later transfer of the
        sender would look old. If one transfer could begin repeatedly, its rows would be applied
        each time.
        """
        last = self.transfer
        if transfer == last:
            return
        if last is not None and self.state == OPEN and last.attempt >= self.floor:
            raise RemoteProtocolError(f'transfer {transfer.attempt} must begin after transfer '
                                      f'{last.attempt}, which is not over')
        following = self.floor if last is None else max(self.floor, last.attempt + 1)
        if transfer.attempt != following:
            raise RemoteProtocolError(f'number of the next transfer must be {following}, got '
                                      f'{transfer.attempt}')
        if self.granted is not None and transfer.iteration != self.granted:
            raise RemoteProtocolError(f'iteration of the next transfer must be {self.granted}, '
                                      f'which was granted, got {transfer.iteration}')
        if self.kind is not None and transfer.kind != self.kind:
            raise RemoteProtocolError(f'kind of the next transfer must be {self.kind.name}, got '
                                      f'{transfer.kind.name}')

    def is_open(self, transfer: TransferId) -> bool:
        """Return whether the receiver still accepts chunks and the `End` of this transfer."""
        if transfer.attempt < self.floor:
            return False
        if self.transfer is None or transfer.attempt > self.transfer.attempt:
            return True
        return transfer == self.transfer and self.state == OPEN

    def has(self, sequence: int) -> bool:
        """Return whether this chunk of the present transfer has arrived."""
        return 0 <= sequence < len(self._flags) and bool(self._flags[sequence])

    def is_closed(self, transfer: TransferId) -> bool:
        """Return whether this transfer is the latest transfer and has been closed."""
        return self.state == CLOSED and self.transfer == transfer

    def known(self) -> Receipt | None:
        """Return a receipt of the latest transfer, open or closed: it names the arrived chunks.

        Returns None if there was no transfer yet.
        """
        if self.transfer is None:
            return None
        return self.receipt or self._current_receipt(len(self._flags))

    def close(self) -> np.ndarray:
        """Close the present transfer although its `End` has not arrived.

        Returns the segments that have arrived.
        """
        if self.state == OPEN:
            self.state = RECEIVER.after(self.state, 'cut short')
            self.receipt = self._current_receipt(len(self._flags))
        return self._collect()

    def restore(self, receipt: Receipt) -> None:
        """Resume after a restart: the last transfer is closed, and ``receipt`` is its receipt."""
        self.state = RECEIVER.after(self.state, 'restore')
        self.transfer, self.receipt = receipt.transfer, receipt

    # -- internals -------------------------------------------------------------------------------

    def _codec_of(self, chunk: Chunk, ids: np.ndarray) -> Codec:
        # Check the codec here, not later when rows are applied. So a chunk with a wrong codec does
        # not open its transfer.
        codec = codec_on_wire(chunk.codec, self.codec)
        allowed: tuple[Codec, ...]
        if chunk.transfer.kind.is_raw:
            what, allowed = chunk.transfer.kind.name, (RAW,)
        else:
            buffers = self.rows_of(chunk.transfer).buffer_segments
            count = 0
            if buffers.start < buffers.stop:
                count = int(np.diff(np.searchsorted(ids, (buffers.start, buffers.stop)))[0])
            if 0 < count < ids.size:
                raise RemoteProtocolError('chunk must hold segments of buffers alone, or of '
                                          f'parameters alone, got segments {ids.tolist()[:20]}')
            what = chunk.transfer.kind.name + ' with buffers' * (count > 0)
            allowed = (RAW,) if count else (self.codec, SMALLER)
        if codec not in allowed:
            raise RemoteProtocolError(f"chunk of a {what} has codec '{codec.name}'; it must be "
                                      f"'{allowed[0].name}'")
        return codec

    def rows_of(self, transfer: TransferId) -> RowPartition:
        """Return the partition whose segments a transfer carries.

        It contains the frozen parameters, too, because the peer may have unfrozen one.
        """
        return self._raw if transfer.kind.is_raw else self._grown

    def _open(self, transfer: TransferId) -> None:
        if transfer != self.transfer:
            self.state = RECEIVER.after(self.state, 'begin')
            self.transfer, self.receipt = transfer, None
            self._flags, self._next, self.taken = bytearray(), 0, 0
            self._seen = np.zeros(self.rows_of(transfer).segments, bool)
            self.energy, self.refused, self.announced = 0.0, 0, None

    def _mark(self, sequence: int) -> None:
        if sequence >= len(self._flags):
            self._flags.extend(bytes(sequence + 1 - len(self._flags)))
        self._flags[sequence] = 1
        gap = self._flags.find(0, self._next)
        self._next = len(self._flags) if gap < 0 else gap

    def _collect(self) -> np.ndarray:
        """Return the segments of the present transfer that have arrived; then forget them."""
        seen, self._seen = self._seen, _NOTHING
        return np.flatnonzero(seen)

    def _current_receipt(self, chunks: int) -> Receipt:
        assert self.transfer is not None
        flags = np.frombuffer(bytes(self._flags), np.uint8)
        return Receipt(self.transfer, chunks, np.packbits(flags, bitorder='little').tobytes(),
                       self.refused)


@njit(nogil=True, cache=True)
def _repeats(seen, ids):
    """Return whether any segment of ``ids`` is marked in ``seen``; if not, mark all ``ids``."""
    for i in ids:
        if seen[i]:
            return True
    for i in ids:
        seen[i] = True
    return False
