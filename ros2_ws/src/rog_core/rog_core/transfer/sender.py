"""Sends one transfer over an unreliable datagram channel (the paper's SendWithTimeout).

Source: ROG, Section IV-B, Algorithm 4 (SpeculativeTransmission). Our own acknowledgements replace
the paper's socket time-out.

Until the budget (the MTA time) is over, the sender keeps as many unacknowledged bytes under way as
the link can carry. If the mandatory segments of the plan have not arrived by then, the sender
continues with only these segments. An End follows the last chunk at once. This End takes effect
when all chunks have arrived, so the receiver can answer without a further round trip. If no answer
comes, the sender sends an End that takes effect at once, and repeats it until the Receipt arrives.
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

from ..arrays import Array
from ..codecs import RAW, Codec, Part, at_once, split_into_chunks
from ..errors import RemoteProtocolError
from ..model.partition import RowPartition
from ..protocol.messages import Ack, Chunk, Command, End, Receipt, TransferId
from ..protocol.states import CLOSING, DONE, SENDER, SENDING
from .link import LinkEstimate
from .plan import Plan

# A chunk counts as lost if a chunk has arrived that was sent DUPLICATES or more transmissions later
DUPLICATES = 3


@dataclass(slots=True, eq=False)
class _Sent:
    """A chunk and the state of its transmission."""

    chunk: Chunk
    segments: np.ndarray
    nbytes: int
    order: int = -1           # number of the chunk's last transmission; -1: not sent yet
    sent_at: float = 0.0
    delivered_then: int = 0
    full: bool = False        # whether the window was full when the chunk was sent
    tries: int = 0
    arrived: bool = False
    lost: bool = False

    def on_way(self, order: int) -> bool:
        """Return whether transmission ``order`` is neither acknowledged nor given up."""
        return self.order == order and not self.arrived and not self.lost


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
        """See `Rows.at_once`."""
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
    link: LinkEstimate
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
    _ready: deque[Part] = field(default_factory=deque)  # encoded windows, from number `_window` on
    _fresh: int = 0           # number of chunks sent at least once
    _mandatory: int = 0       # number of chunks made so far from mandatory windows
    _arrived: int = 0         # number of chunks that the receiver has acknowledged
    _mandatory_arrived: int = 0
    _in_flight: int = 0       # number of bytes that were sent, and neither acknowledged nor lost
    _order: int = 0           # number of the next transmission; repeated chunks count again
    _newest: int = -1         # number of the latest transmission that has arrived
    # (order, chunk) of each transmission, oldest first; some of the chunks may have arrived.
    _flight: deque[tuple[int, _Sent]] = field(default_factory=deque)
    # Heap of (time, order, chunk) of each transmission; ``time``: when it times out, in seconds.
    _expiry: list[tuple[float, int, _Sent]] = field(default_factory=list)
    _lost: list[int] = field(default_factory=list)  # heap of the numbers of chunks to send again
    _resend_end: float = 0.0  # time at which the End is sent again
    _end_interval: float = 0.0
    _message: End | None = None  # the End that is repeated while the transfer is closing
    _last_poll: float = -math.inf
    _low: int = 0             # all chunks whose numbers are lower than this number have arrived
    segments_arrived: int = 0  # number of segments that are known to have arrived

    def __post_init__(self) -> None:
        self._sizes = self.partition.sizes(self.codec)  # number of bytes of each segment

    # -- events ----------------------------------------------------------------------------------

    def on_ack(self, ack: Ack, now: float) -> None:
        """Handle an acknowledgement; raise `RemoteProtocolError` if it names a chunk never sent."""
        if ack.transfer != self.transfer or self.state == DONE:
            return
        if ack.next_expected < 0 or ack.claimed > self._fresh:
            raise RemoteProtocolError(f'acknowledgement claims {ack.claimed} chunks, '
                                      f'{self._fresh} were sent')
        self._arrive(range(self._first_missing(), ack.next_expected), now)
        self._arrive(ack.later(), now)

    def on_receipt(self, receipt: Receipt, now: float) -> bool:
        """Handle the receipt; return whether it has closed the transfer.

        In the state SENDING, a receipt has one of two causes: it answers the End that followed the
        last chunk, or the receiver has ended the transfer early.
        """
        if receipt.transfer != self.transfer or self.state == DONE:
            return False
        least = 0 if self.state == SENDING else self._fresh
        if not least <= receipt.chunks <= self._fresh \
                or len(receipt.taken) != (receipt.chunks + 7) // 8:
            raise RemoteProtocolError(f'receipt must have a bit for each of {least} to '
                                      f'{self._fresh} chunks, got {len(receipt.taken)} bytes for '
                                      f'{receipt.chunks} chunks')
        if self.state == SENDING:
            bits = int.from_bytes(receipt.taken, 'little')
            taken = [k for k in range(receipt.chunks) if bits >> k & 1]
            # The receipt gives the acknowledgement time of the newest chunk only. The other chunks
            # arrived earlier, and their acknowledgements may have been lost.
            newest = max(taken, key=lambda k: self._chunks[k].order, default=-1)
            self._arrive((k for k in taken if k != newest), now, timed=False)
            self._arrive((k for k in taken if k == newest), now)
        self._end(receipt, 'receipt')
        return True

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

    def wake(self, now: float) -> None:
        """Count all chunks under way as lost when the link works again; `poll` resends them."""
        self.link.is_back()
        for _, order, sent in self._expiry:
            if sent.on_way(order):
                self._give_up(sent)
        self._expiry.clear()
        self._resend_end, self._end_interval = now, self._first_interval

    @property
    def _first_interval(self) -> float:
        """Seconds after which the End is repeated for the first time."""
        return max(self.link.timeout, 0.2)

    def expect(self, now: float) -> None:
        """Repeat the End soon: the peer has received it, but the receipt may have been lost."""
        if self.state == CLOSING:
            self._end_interval = self._first_interval
            self._resend_end = min(self._resend_end, now + self._end_interval)

    def poll(self, now: float) -> list[Chunk | End]:
        """Return the messages to send now; call this after every event and at `deadline`."""
        out = self._send(now) if self.state == SENDING else []
        if self.state == SENDING:
            if self._finished(now):
                self._close(now)
            elif self._all_sent(now) and math.isinf(self.closed):
                self.closed = now
                return [*out, self._end_message(now, whole=True)]
            else:
                return out
        if self.state == CLOSING and now >= self._resend_end:
            assert self._message is not None
            self._resend_end = now + self._end_interval
            self._end_interval = min(2 * self._end_interval, 2.0)
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
            over += self.link.timeout
        oldest = self._next_expiry()
        return min(oldest, over) if over > self._last_poll else oldest

    def _next_expiry(self) -> float:
        """Return the time at which the next chunk under way counts as lost; infinity: no chunk."""
        expiry = self._expiry
        while expiry:
            at, order, sent = expiry[0]
            if sent.on_way(order):
                return at
            heapq.heappop(expiry)
        return math.inf

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
        return [*self._parts(taken=False), *self._ready]

    def taken_chunks(self) -> list[Part]:
        """Return (segments, encoded values) of the chunks that have arrived."""
        return self._parts(taken=True)

    def _parts(self, taken: bool) -> list[Part]:
        assert self.receipt is not None
        bits = np.unpackbits(np.frombuffer(self.receipt.taken, np.uint8), bitorder='little')
        flags = np.zeros(len(self._chunks), bool)
        flags[:self._fresh] = bits[:self._fresh]
        return [(sent.segments, sent.chunk.values) for sent, flag
                in zip(self._chunks, flags.tolist(), strict=True) if flag == taken]

    # -- internals -------------------------------------------------------------------------------

    def _first_missing(self) -> int:
        while self._low < self._fresh and self._chunks[self._low].arrived:
            self._low += 1
        return self._low

    def _arrive(self, sequences: Iterable[int], now: float, timed: bool = True) -> None:
        for sequence in sequences:
            sent = self._chunks[sequence]
            if sent.arrived:
                continue
            sent.arrived = True
            self._arrived += 1
            self.segments_arrived += sent.segments.size
            if not sent.lost:
                self._in_flight -= sent.nbytes
            if timed and sent.tries == 1:
                self.link.sample(sent.nbytes, sent.sent_at, sent.delivered_then, now, sent.full)
            else:
                self.link.delivered += sent.nbytes
            self._newest = max(self._newest, sent.order)
            if sequence < self._mandatory:
                self._mandatory_arrived += 1
        if self._minimum_arrived() and math.isinf(self.mta_duration):
            self.mta_duration = (now - self.started) * self.plan.mta_factor

    def _give_up(self, sent: _Sent) -> None:
        sent.lost = True
        self._in_flight -= sent.nbytes
        heapq.heappush(self._lost, sent.chunk.sequence)

    def _mark_lost(self, now: float) -> None:
        """Mark chunks as lost if later chunks have overtaken them, or if their time-out has passed.

        Only the oldest chunks under way are checked, so that the cost per message does not grow
        with the window.
        """
        flight, overtaken = self._flight, self._newest - DUPLICATES
        while flight:
            order, sent = flight[0]
            on_way = sent.on_way(order)
            if on_way and order > overtaken:
                break
            flight.popleft()
            if on_way:
                self._give_up(sent)
        while self._next_expiry() <= now:
            self._give_up(heapq.heappop(self._expiry)[2])
            self.link.timed_out(now)

    def _minimum_arrived(self) -> bool:
        return self._window >= self.plan.mandatory and self._mandatory_arrived == self._mandatory

    def _over(self, now: float) -> bool:
        return now >= self.started + self.plan.budget

    def _send(self, now: float) -> list[Chunk | End]:
        self._last_poll = now
        self._mark_lost(now)
        out: list[Chunk | End] = []
        limited, window = self._over(now), self.link.window_bytes
        while self._lost and not (limited and self._lost[0] >= self._mandatory):
            sent = self._chunks[self._lost[0]]
            if not sent.arrived and not self._room(sent.nbytes, window):
                return out
            heapq.heappop(self._lost)
            if not sent.arrived:
                out.append(self._transmit(sent, now, window))
        while self._room(0, window):
            if self._fresh == len(self._chunks) and not self._divide_window(limited, now):
                break
            if limited and self._fresh >= self._mandatory:
                break
            out.append(self._transmit(self._chunks[self._fresh], now, window))
            self._fresh += 1
        return out

    def _room(self, nbytes: int, window: int) -> bool:
        """Return whether the window (`LinkEstimate.window_bytes`) has room for ``nbytes`` bytes."""
        return self._in_flight == 0 or self._in_flight + nbytes < window

    def _transmit(self, sent: _Sent, now: float, window: int) -> Chunk:
        sent.order, self._order = self._order, self._order + 1
        sent.sent_at, sent.delivered_then = now, self.link.delivered
        sent.tries += 1
        sent.lost = False
        self._flight.append((sent.order, sent))
        heapq.heappush(self._expiry, (now + self.link.timeout, sent.order, sent))
        self._in_flight += sent.nbytes
        sent.full = not self._room(sent.nbytes, window)
        self.bytes_sent += sent.nbytes
        return sent.chunk

    def _encode(self, now: float) -> None:
        """Encode the next window, and more windows that will be sent, up to `Rows.at_once` bytes.

        A window will be sent if it is mandatory, or if the link can carry it within the plan's
        budget.
        """
        most, first = self.rows.at_once, self._window
        likely = min(most, self.link.rate * (self.started + self.plan.budget - now))
        windows: list[np.ndarray] = []
        ends = [0]  # running sums of the encoded bytes of the windows, from 0 on
        buffers = self.partition.are_buffers(self.plan.windows[first])
        for number, ids in enumerate(self.plan.windows[first:], first):
            ends.append(ends[-1] + int(self._sizes[ids].sum()))
            if windows and (ends[-1] > (most if number < self.plan.mandatory else likely)
                            or self.partition.are_buffers(ids) != buffers):
                break
            windows.append(ids)
        values = self.rows.encode(self.codec, np.concatenate(windows))
        self._ready += [(ids, values[begin:end]) for ids, begin, end in
                        zip(windows, ends, ends[1:], strict=False)]

    def _divide_window(self, limited: bool, now: float) -> bool:
        """Divide the next window into chunks; return False if no further window may be sent."""
        mandatory = self._window < self.plan.mandatory
        if self._window >= len(self.plan.windows) or (limited and not mandatory):
            return False
        if not self._ready:
            self._encode(now)
        ids, values = self._ready.popleft()
        codec = self.partition.codec_of(ids, self.codec)
        self._window += 1
        first = begin = 0
        chunks = split_into_chunks(ids, self._sizes[ids], self.link.chunk_bytes)
        for stop, end, id_bytes in chunks:
            part, data = ids[first:stop], values[begin:end]
            chunk = Chunk(self.transfer, len(self._chunks), codec.number, part.size, id_bytes, data)
            self._chunks.append(_Sent(chunk, part, id_bytes.size + data.size))
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
        return self._in_flight == 0 or now >= self.started + self.plan.budget + self.link.timeout

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
        self._resend_end, self._end_interval = now, self._first_interval
        if math.isinf(self.closed):
            self.closed = now
        elif self._arrived == self._fresh:  # the first End has arrived or will arrive soon
            self._resend_end = max(now, self.closed + self.link.round_trip)

    def _end_message(self, now: float, whole: bool = False) -> End:
        duration, mta = now - self.started, self.mta_duration
        if math.isinf(mta):  # estimated time until the mandatory rows are acknowledged
            mta = (duration + self.link.round_trip) * self.plan.mta_factor
        return End(self.transfer, self._fresh, duration, mta, self.command, whole, self.switched)
