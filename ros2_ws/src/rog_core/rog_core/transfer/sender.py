"""Sends one transfer over an unreliable datagram channel (the paper's SendWithTimeout).

Source: ROG, Section IV-B, Algorithm 4 (SpeculativeTransmission). Our own acknowledgements replace
the paper's socket time-out.

Until the budget (the MTA time) is over, the sender keeps as many unacknowledged bytes under way as
the link can carry; `fleet_link.link.Link` says how many, and which are lost. If the mandatory
segments of the plan have not arrived by then, the sender continues with only these segments. An End
follows the last chunk at once. This End takes effect when all chunks have arrived, so the receiver
can answer without a further round trip. If no answer comes, the sender sends an End that takes
effect at once, and repeats it until the Receipt arrives. A repeated chunk carries the bytes of the
first transmission, not the rows' present values: a lossy codec has already kept back what these
bytes lack, so the rows would have to be put together again from both.

The table of states is `rog_core.protocol.states.SENDER`.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from fleet_link.estimate import LONGEST_OUTAGE

from ..arrays import Array
from ..codecs import RAW, Codec, Part, at_once, split_into_chunks
from ..errors import RemoteProtocolError
from ..model.partition import RowPartition
from ..protocol.messages import Ack, Chunk, Command, End, Receipt, TransferId
from ..protocol.states import CLOSING, DONE, SENDER, SENDING
from .link import RowLink
from .plan import Plan

MOST_ID = 3       # bytes that the number of a segment takes in a chunk at most, in usual models
# Least seconds until an End is repeated: the peer may first have to handle a message of another
# topic, such as the receipt of the transfer before.
END_PAUSE = 0.05


@dataclass(slots=True, eq=False)
class _Sent:
    """A chunk and the state of its transmissions."""

    transfer: TransferId
    sequence: int
    codec: int
    segments: np.ndarray
    ids: np.ndarray           # of the segments, encoded
    values: np.ndarray
    nbytes: int
    on_way: bool = False      # whether it was sent, and has neither arrived nor been lost
    arrived: bool = False


class Rows(Protocol):
    """The source of the values of a transfer."""

    @property
    def at_once(self) -> int:
        """Maximum number of bytes that one call of `encode` should return; 0 means one window."""

    def encode(self, codec: Codec, ids: np.ndarray) -> np.ndarray:
        """Encode the segments ``ids``, which form one or more of the next windows; return uint8."""


class RawRows:
    """Provides ``values``, float32 (elements,), uncompressed.

    ``partition``: made by `RowPartition.raw_partition`.
    """

    def __init__(self, partition: RowPartition, values: Array) -> None:
        self._partition, self._values = partition, values

    @property
    def at_once(self) -> int:
        """Maximum number of bytes that one call of `encode` should return; 0: one window."""
        return at_once(self._values)

    def encode(self, codec: Codec, ids: np.ndarray) -> np.ndarray:
        """Encode the segments ``ids`` as raw float32, whatever ``codec`` is; see `Rows.encode`."""
        return RAW.snapshot(self._partition, self._values, ids)


@dataclass
class Sender:
    """Sends the windows of a plan; `poll` returns the messages that the caller must send now."""

    transfer: TransferId
    partition: RowPartition
    plan: Plan
    codec: Codec
    rows: Rows
    link: RowLink
    started: float
    command: Command = Command()
    switched: tuple[int, ...] = ()  # see `End`
    state: str = SENDING
    bytes_sent: int = 0
    mta_duration: float = math.inf
    receipt: Receipt | None = None
    closed: float = math.inf  # time at which the first End was sent
    _chunks: list[_Sent] = field(default_factory=list)
    _window: int = 0          # number of the plan's next window to divide into chunks
    # Encoded windows, from number `_window` on: (number of windows, segments, values).
    _ready: deque[tuple[int, np.ndarray, np.ndarray]] = field(default_factory=deque)
    _fresh: int = 0           # number of chunks sent at least once
    _mandatory: int = 0       # number of chunks made so far from mandatory windows
    _arrived: int = 0         # number of chunks that the receiver has acknowledged
    _mandatory_arrived: int = 0
    _on_way: int = 0          # number of chunks that were sent, and neither arrived nor lost
    _lost: list[int] = field(default_factory=list)  # heap of the numbers of chunks to send again
    _resend_end: float = 0.0  # time at which the End is sent again
    _end_interval: float = 0.0
    _end_sent: float = -math.inf
    _message: End | None = None  # the End that is repeated while the transfer is closing
    _last_poll: float = -math.inf
    segments_arrived: int = 0  # number of segments that are known to have arrived

    def __post_init__(self) -> None:
        self._sizes = self.partition.sizes(self.codec)  # number of bytes of each segment

    # -- events ----------------------------------------------------------------------------------

    def on_ack(self, ack: Ack, now: float) -> None:
        """Handle an acknowledgement; raise `RemoteProtocolError` if it cannot be true.

        It may acknowledge chunks of earlier transfers over the same link.
        """
        if ack.incarnation != self.transfer.incarnation:
            return
        arrived, lost = self.link.on_ack(ack, now)
        if self.state != DONE:
            self._arrive(arrived, now)
            self._lose(lost)

    def on_receipt(self, receipt: Receipt, now: float) -> bool:
        """Handle the receipt; return whether it has closed the transfer.

        It answers an End, or the receiver has ended the transfer early. Then it need not name the
        last chunks, although they were acknowledged: they came too late.
        """
        if receipt.transfer != self.transfer or self.state == DONE:
            return False
        if not 0 <= receipt.chunks <= self._fresh \
                or len(receipt.taken) != (receipt.chunks + 7) // 8:
            raise RemoteProtocolError(f'receipt must have a bit for each of at most {self._fresh} '
                                      f'chunks, got {len(receipt.taken)} bytes for '
                                      f'{receipt.chunks} chunks')
        if self.state == SENDING:
            bits = int.from_bytes(receipt.taken, 'little')
            taken = [k for k in range(receipt.chunks) if bits >> k & 1]
            self._arrive([self._chunks[k] for k in taken], now)
        self._end(receipt, 'receipt')
        return True

    def cut_short(self, now: float) -> None:
        """Send no more chunks; the receipt will say which of those sent have arrived."""
        if self.state == SENDING:
            self._close(now)

    def abort(self, receipt: Receipt | None = None) -> None:
        """End the transfer at once.

        ``receipt`` names the chunks that have arrived; if it is None, no chunk counts as arrived.
        """
        self._end(receipt, 'abort')

    def _end(self, receipt: Receipt | None, event: str) -> None:
        taken = b'' if receipt is None else receipt.taken[:(self._fresh + 7) // 8]
        taken += bytes((self._fresh + 7) // 8 - len(taken))
        refused = 0 if receipt is None else receipt.refused
        self.receipt = Receipt(self.transfer, self._fresh, taken, refused)
        self.state = SENDER.after(self.state, event)
        # The receiver has answered after all chunks, or the link was dead for long.
        self.link.forget(lambda sent: sent.transfer is self.transfer)

    def on_heard(self, now: float) -> None:
        """Handle a message of the peer that shows that the link may be back; see `Link.on_heard`.

        An End is repeated, but not before the time of a round trip is over.
        """
        self.link.on_heard(now)
        if self.state == CLOSING:
            self._end_interval = self.link.trip.timeout
            self._resend_end = min(self._resend_end, max(now, self._end_sent + self._end_interval))

    def poll(self, now: float) -> list[Chunk | End]:
        """Return the messages to send now; call this after every event and at `deadline`."""
        out = self._send(now) if self.state == SENDING else []
        if self.state == SENDING:
            if self._finished(now):
                self._close(now)
            elif self._all_sent(now) and math.isinf(self.closed):
                self.closed = self._end_sent = now
                return [*out, self._end_message(now, whole=True)]
            else:
                return out
        if self.state == CLOSING and now >= self._resend_end:
            assert self._message is not None
            self._end_sent, self._resend_end = now, now + self._end_interval
            self._end_interval = min(2 * self._end_interval, LONGEST_OUTAGE)
            out.append(self._message)
        return out

    @property
    def deadline(self) -> float:
        """Time at which `poll` must be called even if no message arrives; infinity means never."""
        if self.state == DONE:
            return math.inf
        if self.state == CLOSING:
            return self._resend_end
        over = self.started + self.plan.budget
        if over <= self._last_poll:
            over += self.link.trip.timeout
        return min(self.link.deadline, over) if over > self._last_poll else self.link.deadline

    # -- outcome ---------------------------------------------------------------------------------

    def taken(self) -> np.ndarray:
        """Return the segments that have arrived according to the receipt, int64.

        The transfer must be in the state DONE.
        """
        parts = [ids for ids, _ in self.taken_chunks()]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def complete(self) -> bool:
        """Return whether all rows of the plan have arrived; the state must be DONE."""
        return self._window == len(self.plan.windows) and not self.untaken()

    def untaken(self) -> list[Part]:
        """Return (segments, encoded values) of all encoded segments that have not arrived."""
        return [*self._parts(taken=False), *((ids, values) for _, ids, values in self._ready)]

    def taken_chunks(self) -> list[Part]:
        """Return (segments, encoded values) of the chunks that have arrived."""
        return self._parts(taken=True)

    def _parts(self, taken: bool) -> list[Part]:
        assert self.receipt is not None
        bits = np.unpackbits(np.frombuffer(self.receipt.taken, np.uint8), bitorder='little')
        flags = np.zeros(len(self._chunks), bool)
        flags[:self._fresh] = bits[:self._fresh]
        return [(sent.segments, sent.values) for sent, flag
                in zip(self._chunks, flags.tolist(), strict=True) if flag == taken]

    # -- internals -------------------------------------------------------------------------------

    def _arrive(self, chunks: Iterable[_Sent], now: float) -> None:
        for sent in chunks:
            if not self._is_missing(sent):
                continue
            sent.arrived = True
            self._arrived += 1
            self.segments_arrived += sent.segments.size
            self._on_way -= sent.on_way
            if sent.sequence < self._mandatory:
                self._mandatory_arrived += 1
        if self._minimum_arrived() and math.isinf(self.mta_duration):
            self.mta_duration = (now - self.started) * self.plan.mta_factor

    def _is_missing(self, sent: _Sent) -> bool:
        """Return whether a chunk is of this transfer, and not known to have arrived."""
        return not sent.arrived and sent.transfer is self.transfer

    def _lose(self, chunks: Iterable[_Sent]) -> None:
        for sent in chunks:
            if sent.on_way and self._is_missing(sent):
                sent.on_way = False
                self._on_way -= 1
                heapq.heappush(self._lost, sent.sequence)

    def _minimum_arrived(self) -> bool:
        return self._window >= self.plan.mandatory and self._mandatory_arrived == self._mandatory

    def _over(self, now: float) -> bool:
        return now >= self.started + self.plan.budget

    def _send(self, now: float) -> list[Chunk | End]:
        self._last_poll = now
        limited = self._over(now)
        self._lose(self.link.poll(now, lambda sent: self._is_missing(sent) and not (
            limited and sent.sequence >= self._mandatory)))
        out: list[Chunk | End] = []
        while self._lost and not (limited and self._lost[0] >= self._mandatory):
            sent = self._chunks[self._lost[0]]
            if not sent.arrived and not self.link.room(sent.nbytes):
                return out
            heapq.heappop(self._lost)
            if not sent.arrived:
                out.append(self._transmit(sent, now))
        size = self.link.chunk_bytes
        while self.link.room(size):
            if self._fresh == len(self._chunks) and not self._divide_window(limited, now):
                break
            if limited and self._fresh >= self._mandatory:
                break
            out.append(self._transmit(self._chunks[self._fresh], now))
            self._fresh += 1
        return out

    def _transmit(self, sent: _Sent, now: float) -> Chunk:
        self._on_way += not sent.on_way
        sent.on_way = True
        self.bytes_sent += sent.nbytes
        return Chunk(self.transfer, sent.sequence, sent.codec, sent.segments.size, sent.ids,
                     sent.values, self.link.send(sent, sent.nbytes, now))

    def _encode(self, now: float) -> None:
        """Encode the next window, and more windows that will be sent, up to `Rows.at_once` bytes.

        A window will be sent if it is mandatory, or if the link can carry it within the plan's
        budget. Small windows share a chunk, because on a slow link the headers of a datagram take
        as long as the rows of a small window.
        """
        most, first, plan = self.rows.at_once, self._window, self.plan
        likely = min(most, self.link.rate * (self.started + plan.budget - now))
        # Windows of one chunk. How many share it does not depend on measurements, so that equal
        # runs send equal chunks.
        shared: list[list[np.ndarray]] = []
        sizes: list[int] = []   # bytes of the values of each chunk
        total, room = 0, -1
        buffers = self.partition.are_buffers(plan.windows[first])
        for number, ids in enumerate(plan.windows[first:], first):
            size = int(np.add.reduce(self._sizes[ids]))
            total += size
            room -= size + MOST_ID * ids.size
            joins = room >= 0 and number != plan.mandatory and not 0 < most < total
            if shared and (self.partition.are_buffers(ids) != buffers or not joins
                           and total > (most if number < plan.mandatory else likely)):
                break
            if joins:
                shared[-1].append(ids)
                sizes[-1] += size
            else:
                shared.append([ids])
                sizes.append(size)
                room = self.link.least_chunk - size - MOST_ID * ids.size
        windows = [np.sort(np.concatenate(each)) if len(each) > 1 else each[0] for each in shared]
        values = self.rows.encode(self.codec, np.concatenate(windows))
        begin = 0
        for each, ids, size in zip(shared, windows, sizes, strict=True):
            end = begin + size
            self._ready.append((len(each), ids, values[begin:end]))
            begin = end

    def _divide_window(self, limited: bool, now: float) -> bool:
        """Divide the next window into chunks; return False if no further window may be sent."""
        mandatory = self._window < self.plan.mandatory
        if self._window >= len(self.plan.windows) or (limited and not mandatory):
            return False
        if not self._ready:
            self._encode(now)
        windows, ids, values = self._ready.popleft()
        codec = self.partition.codec_of(ids, self.codec)
        self._window += windows
        first = begin = 0
        chunks = split_into_chunks(ids, self._sizes[ids], self.link.chunk_bytes)
        for stop, end, id_bytes in chunks:
            part, data = ids[first:stop], values[begin:end]
            self._chunks.append(_Sent(self.transfer, len(self._chunks), codec.number, part,
                                      id_bytes, data, id_bytes.size + data.size))
            first, begin = stop, end
        if mandatory:
            self._mandatory = len(self._chunks)
        return True

    def _finished(self, now: float) -> bool:
        everything = self._window == len(self.plan.windows)
        if everything and self._arrived == self._fresh == len(self._chunks):
            return True
        if not (self._over(now) and self._minimum_arrived()):
            return False
        # Wait one time-out for the chunks in flight, so that few rows must be sent again later.
        return self._on_way == 0 \
            or now >= self.started + self.plan.budget + self.link.trip.timeout

    def _all_sent(self, now: float) -> bool:
        """Return whether all chunks were sent once; after the budget, mandatory windows suffice."""
        if self._window == len(self.plan.windows) and self._fresh == len(self._chunks):
            return True
        return self._over(now) and self._window >= self.plan.mandatory \
            and self._fresh >= self._mandatory

    def _close(self, now: float) -> None:
        self.state = SENDER.after(self.state, 'close')
        if math.isinf(self.mta_duration):
            self.mta_duration = now - self.started
        self._message = self._end_message(now)
        self._resend_end, self._end_interval = now, self.link.trip.timeout
        if math.isinf(self.closed):
            self.closed = now
        elif self._arrived == self._fresh:  # the first End has arrived or will arrive soon
            self._resend_end = max(now, self.closed + max(2 * self.link.round_trip, END_PAUSE))

    def _end_message(self, now: float, whole: bool = False) -> End:
        duration, mta = now - self.started, self.mta_duration
        if math.isinf(mta):  # estimated time until the mandatory rows are acknowledged
            mta = (duration + self.link.round_trip) * self.plan.mta_factor
        return End(self.transfer, self._fresh, duration, mta, self.command, whole, self.switched)
